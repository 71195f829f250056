"""TensorIterator's plans, held against PyTorch's answers (tests/data/conformance) and against every address visited."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.rules.dtypes import DTYPES
from engine.rules.iterator import (
    Operand,
    Plan,
    fast_setup,
    plan,
    reduction_shape,
)
from engine.rules.layout import (
    Stride,
    channels_last_3d,
    channels_last_strides,
    contiguous_strides,
    is_non_overlapping_and_dense,
    preserve_strides,
    same_layout_modulo_size_one,
    strides_for_format,
)
from engine.rules.promotion import DIMENSIONED, ZERO_DIM, result_dtype
from tests.data.conformance_facts import facts

CHANNELS_LAST = (2, 3, 4, 5), channels_last_strides((2, 3, 4, 5))
ROW_MAJOR = (2, 3, 4, 5), contiguous_strides((2, 3, 4, 5))
NUMBER: Operand = ((), ())


@st.composite
def operand_lists(draw: st.DrawFn) -> tuple[Operand, ...]:
    """One to three operands that broadcast together, of permuted, sliced, expanded and size-1 layouts."""
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=4)))
    operands = []
    for _ in range(draw(st.integers(1, 3))):
        own = shape
        if draw(st.booleans()):
            own = tuple(
                1 if draw(st.integers(0, 3)) == 0 else size for size in shape[draw(st.integers(0, len(shape))) :]
            )
        stride = [0] * len(own)
        expected = 1
        for dimension in draw(st.permutations(range(len(own)))):
            stride[dimension] = expected
            expected *= max(own[dimension], 1) * draw(st.sampled_from([1, 1, 1, 2]))
        for dimension, size in enumerate(own):
            if draw(st.integers(0, 9)) == 0 or (size == 1 and draw(st.booleans())):
                stride[dimension] = draw(st.integers(0, 9))
        operands.append((own, tuple(stride)))
    return tuple(operands)


# Facts ---------------------------------------------------------------------------------------------------------------


def test_every_fact_of_elementwise_operators() -> None:
    rows = facts("iterator.jsonl")
    assert len(rows) == 1318
    for row in rows:
        operands = [(tuple(each["shape"]), tuple(each["stride"]), DTYPES[each["dtype"]]) for each in row["in"]]
        condition, values = (operands[:1], operands[1:]) if row["op"] == "where" else ([], operands)
        common = result_dtype(tuple((own, DIMENSIONED if shape else ZERO_DIM) for shape, _, own in values))
        planned = plan(
            tuple((shape, stride) for shape, stride, _ in condition)
            + tuple(
                (shape, stride if own is common else preserve_strides(shape, stride)) for shape, stride, own in values
            )
        )
        dtype = "bool" if row["op"] == "lt" else common.name
        out = {"shape": list(planned.shape), "stride": list(planned.stride), "dtype": dtype}
        assert out == row["out"], row


def test_every_fact_of_accumulation_under_create_graph() -> None:
    rows = [row for row in facts("accumulate.jsonl") if row["create_graph"]]
    assert len(rows) > 100
    for row in rows:
        shape = tuple(row["variable"]["shape"])
        added = plan(((shape, tuple(row["after1"])), (shape, tuple(row["grad2"]["stride"])))).stride
        assert list(added) == row["after2"], row


# Rules by name -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operands", "expected"),
    [
        ((ROW_MAJOR, ROW_MAJOR), (ROW_MAJOR[1], "contiguous")),
        ((CHANNELS_LAST, CHANNELS_LAST), (CHANNELS_LAST[1], "channels_last")),
        ((((2, 3), (1, 2)), ((2, 3), (1, 2))), ((1, 2), "same_dense")),
        ((ROW_MAJOR, CHANNELS_LAST), (ROW_MAJOR[1], "general")),
        ((CHANNELS_LAST, ROW_MAJOR), (CHANNELS_LAST[1], "general")),
        ((CHANNELS_LAST, NUMBER), (CHANNELS_LAST[1], "general")),
        ((NUMBER, CHANNELS_LAST), (CHANNELS_LAST[1], "general")),
        ((((3, 1, 1), (1, 1, 1)), CHANNELS_LAST), (CHANNELS_LAST[1], "general")),
        ((((2, 3), (0, 1)),), ((3, 1), "general")),
        ((((2, 3), (6, 2)),), ((3, 1), "general")),
        ((((2, 3), (2, 4)),), ((1, 2), "general")),
        ((NUMBER, NUMBER), ((), "contiguous")),
        # Both row-major and channels-last: row-major, and the odd stride of a dimension of size 1 is forgotten ...
        ((((2, 4, 1, 1), (4, 1, 9, 9)),), ((4, 1, 1, 1), "contiguous")),
        # ... while the general set-up lets it take part.
        ((((2, 4, 1, 1), (4, 1, 4, 4)), NUMBER), ((4, 1, 4, 4), "general")),
    ],
)
def test_which_set_up_serves(operands: tuple[Operand, ...], expected: tuple[Stride, str]) -> None:
    planned = plan(operands)
    assert (planned.stride, planned.kind) == expected
    assert fast_setup(operands) == planned.kind


def test_channels_last_3d_has_no_set_up_of_its_own() -> None:
    shape = (2, 3, 4, 5, 6)
    stride = strides_for_format(shape, channels_last_3d)
    assert plan(((shape, stride), (shape, stride))) == Plan(shape, stride, "same_dense")
    assert plan(((shape, stride), (shape, contiguous_strides(shape)))) == Plan(shape, stride, "general")


def test_without_elements() -> None:
    assert plan((((2, 0, 4), (1, 4, 2)),)).stride == (4, 4, 1)
    assert plan((((2, 0, 4), (1, 4, 2)), ((2, 1, 4), (1, 77, 2)))).stride == (1, 8, 2)


def test_sizes_beyond_memory() -> None:
    shape = (2**33, 2**31)
    assert plan(((shape, (1, 2**33)), ((2**31,), (1,)))) == Plan(shape, (1, 2**33), "general")


def test_a_repeated_layout_is_planned_once() -> None:
    assert plan((ROW_MAJOR, CHANNELS_LAST)) is plan((ROW_MAJOR, CHANNELS_LAST))


def test_shapes_that_do_not_fit() -> None:
    with pytest.raises(RuntimeError, match=r"shapes \[2, 3\] and \[4\] do not broadcast together"):
        plan((((2, 3), (3, 1)), ((4,), (1,))))


# Properties ----------------------------------------------------------------------------------------------------------


@given(operand_lists())
def test_outputs_are_dense_and_of_the_broadcast_shape(operands: tuple[Operand, ...]) -> None:
    planned = plan(operands)
    assert planned.shape == np.broadcast_shapes(*(shape for shape, _ in operands))
    assert is_non_overlapping_and_dense(planned.shape, planned.stride)


@given(operand_lists())
def test_a_fast_set_up_means_that_all_lie_alike(operands: tuple[Operand, ...]) -> None:
    planned = plan(operands)
    if planned.kind != "general":
        for shape, stride in operands:
            assert shape == planned.shape
            assert same_layout_modulo_size_one(shape, stride, planned.stride)


@given(operand_lists())
def test_the_left_operand_decides(operands: tuple[Operand, ...]) -> None:
    shape, stride = operands[0]
    planned = plan(operands)
    if planned.shape == shape and 0 not in stride and is_non_overlapping_and_dense(shape, stride):
        assert same_layout_modulo_size_one(shape, planned.stride, stride)


@given(operand_lists(), st.data())
def test_shapes_of_reductions(operands: tuple[Operand, ...], data: st.DataObject) -> None:
    shape, _ = operands[0]
    dims = tuple(data.draw(st.sets(st.sampled_from(range(len(shape)))))) if shape else ()
    for keepdim in (False, True):
        expected = np.empty(shape).sum(axis=dims, keepdims=keepdim).shape
        assert reduction_shape(shape, dims, keepdim) == expected
