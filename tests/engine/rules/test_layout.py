"""Layout rules, held against PyTorch's answers (tests/data/conformance) and against every address of small layouts."""

import copy
import pickle
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from engine.rules.layout import (
    MemoryFormat,
    Shape,
    Stride,
    broadcast_shapes,
    channels_last,
    channels_last_3d,
    channels_last_strides,
    contiguous_format,
    contiguous_strides,
    contract_strides,
    infer_size,
    internal_overlap,
    is_contiguous,
    is_non_overlapping_and_dense,
    obeys_layout_contract,
    overlap_status,
    preserve_format,
    preserve_strides,
    same_layout_modulo_size_one,
    storage_size,
    strides_for_format,
    strides_like_channels_last,
    strides_like_channels_last_3d,
    suggest_memory_format,
    view_strides,
)
from tests.data.conformance_facts import facts


@st.composite
def layouts(draw: st.DrawFn, max_rank: int = 4, min_size: int = 0) -> tuple[Shape, Stride]:
    """Permuted, sliced, expanded and overlapping layouts, odd strides on dimensions of size 1 included."""
    shape = tuple(draw(st.lists(st.integers(min_size, 4), max_size=max_rank)))
    stride = [0] * len(shape)
    expected = 1
    for dimension in draw(st.permutations(range(len(shape)))):
        stride[dimension] = expected
        expected *= max(shape[dimension], 1) * draw(st.sampled_from([1, 1, 1, 1, 2]))
    for dimension, size in enumerate(shape):
        if draw(st.integers(0, 9)) == 0 or (size == 1 and draw(st.booleans())):
            stride[dimension] = draw(st.integers(0, 9))
    return shape, tuple(stride)


def addresses(shape: Shape, stride: Stride) -> list[int]:
    """Of every element, in row-major order."""
    return [sum(i * step for i, step in zip(index, stride, strict=True)) for index in product(*map(range, shape))]


# Facts ---------------------------------------------------------------------------------------------------------------


def test_every_fact_of_memory_formats() -> None:
    rows = facts("formats.jsonl")
    assert len(rows) == 1077
    for row in rows:
        shape, stride = tuple(row["shape"]), tuple(row["stride"])
        row_major = contiguous_strides(shape)
        expected: dict[str, Any] = {
            "contiguous": is_contiguous(shape, stride),
            "non_overlapping_and_dense": is_non_overlapping_and_dense(shape, stride),
            "after_contiguous": stride if is_contiguous(shape, stride) else row_major,
            "clone_contiguous": row_major,
            "clone_preserve": preserve_strides(shape, stride),
            "empty_like": preserve_strides(shape, stride),
        }
        for memory_format, rank, suffix in ((channels_last, 4, "cl"), (channels_last_3d, 5, "cl3")):
            if len(shape) != rank:
                continue
            lies_so = is_contiguous(shape, stride, memory_format)
            converted = strides_for_format(shape, memory_format)
            expected[memory_format.name] = lies_so
            expected[f"contiguous_{suffix}"] = stride if lies_so else converted
            suggested = suggest_memory_format(shape, stride)
            expected[f"to_{suffix}"] = stride if suggested is memory_format else converted
            if rank == 4:
                expected["clone_cl"] = converted
        in_json = {key: list(value) if isinstance(value, tuple) else value for key, value in expected.items()}
        assert {"shape": row["shape"], "stride": row["stride"], **in_json} == row


def test_every_fact_of_views_by_shape() -> None:
    rows = [row for row in facts("views.jsonl") if row["op"] in ("view", "reshape")]
    assert len(rows) == 232
    for row in rows:
        shape, stride = tuple(row["in"]["shape"]), tuple(row["in"]["stride"])
        (wanted,) = row["args"]
        new_shape = infer_size(tuple(wanted), prod(shape))
        viewed = view_strides(shape, stride, new_shape)
        if row["op"] == "view":
            assert (viewed is None) == row.get("error", False), row
        else:
            assert (viewed is not None) == row["is_view"], row
            viewed = viewed or contiguous_strides(new_shape)
        if viewed is not None:
            assert (list(new_shape), list(viewed)) == (row["out"]["shape"], row["out"]["stride"]), row


def test_every_fact_of_the_gradient_layout_contract() -> None:
    rows = facts("accumulate.jsonl")
    assert len(rows) == 1167
    for row in rows:
        shape, variable = tuple(row["variable"]["shape"]), tuple(row["variable"]["stride"])
        grad = tuple(row["grad1"]["stride"])
        obeys = obeys_layout_contract(shape, grad, variable)
        stolen = obeys and not row["held_elsewhere"] and not row["create_graph"]
        assert stolen == row["stolen"], row
        assert (grad if stolen else contract_strides(shape, variable)) == tuple(row["after1"]), row


# Memory formats ------------------------------------------------------------------------------------------------------


def test_formats_are_single_objects_with_pytorchs_names() -> None:
    for each in MemoryFormat:
        assert copy.deepcopy(each) is pickle.loads(pickle.dumps(each)) is each
        assert str(each) == repr(each) == f"engine.{each.name}"


def test_strides_of_each_format() -> None:
    assert contiguous_strides(()) == ()
    assert contiguous_strides((2, 3, 4, 5)) == (60, 20, 5, 1)
    assert contiguous_strides((2, 0, 3)) == (3, 3, 1)
    assert channels_last_strides((2, 3, 4, 5)) == (60, 1, 15, 3)
    assert channels_last_strides((2, 3, 0, 4)) == (0, 1, 12, 3)
    assert strides_for_format((2, 3, 4, 5, 6), channels_last_3d) == (360, 1, 90, 18, 3)


@pytest.mark.parametrize(("memory_format", "rank"), [(channels_last, 4), (channels_last_3d, 5)])
def test_a_format_of_another_rank(memory_format: MemoryFormat, rank: int) -> None:
    for other in {0, 1, 2, 3, 4, 5, 6} - {rank}:
        shape = (2,) * other
        with pytest.raises(RuntimeError, match=f"required rank {rank} tensor to use {memory_format.name} format"):
            strides_for_format(shape, memory_format)
        assert not is_contiguous(shape, contiguous_strides(shape), memory_format)


def test_preserve_is_no_format_to_compare_with() -> None:
    with pytest.raises(RuntimeError, match="preserve"):
        is_contiguous((2,), (1,), preserve_format)
    with pytest.raises(RuntimeError, match="preserve"):
        strides_for_format((2,), preserve_format)
    with pytest.raises(TypeError, match=r"engine.memory_format, got 'channels_last'"):
        strides_for_format((2,), "channels_last")
    with pytest.raises(TypeError, match=r"engine.memory_format, got None"):
        is_contiguous((2,), (1,), None)


@given(layouts())
def test_contiguity_is_numpys(layout: tuple[Shape, Stride]) -> None:
    shape, stride = layout
    array = np.lib.stride_tricks.as_strided(np.zeros(storage_size(*layout), np.int8), shape, stride)
    assert is_contiguous(shape, stride) == array.flags.c_contiguous
    assert is_contiguous(shape, contiguous_strides(shape))


@given(st.lists(st.integers(1, 4), min_size=5, max_size=5))
def test_each_format_recognises_its_own_strides(sizes: list[int]) -> None:
    for memory_format, shape in ((channels_last, tuple(sizes[:4])), (channels_last_3d, tuple(sizes))):
        stride = strides_for_format(shape, memory_format)
        assert is_contiguous(shape, stride, memory_format)
        assert is_non_overlapping_and_dense(shape, stride)
        # A batch that would begin where the channels do is the ambiguous case, and then row-major.
        assert suggest_memory_format(shape, stride) is (contiguous_format if stride[0] == 1 else memory_format)
        row_major = contiguous_strides(shape)
        exact = suggest_memory_format(shape, row_major, exact_match=True)
        assert exact is (memory_format if row_major == stride and stride[0] != 1 else contiguous_format)


def test_likeness_to_channels_last_ignores_gaps_but_exactness_does_not() -> None:
    shape, sliced = (2, 3, 4, 5), (240, 1, 60, 6)
    assert strides_like_channels_last(shape, sliced)
    assert not strides_like_channels_last_3d(shape, sliced)
    assert suggest_memory_format(shape, sliced) is channels_last
    assert suggest_memory_format(shape, sliced, exact_match=True) is contiguous_format
    assert not strides_like_channels_last(shape, (60, 0, 15, 3))
    assert not strides_like_channels_last((2, 3, 0, 5), channels_last_strides((2, 3, 0, 5)))


# Density and what keeps a layout -------------------------------------------------------------------------------------


@given(layouts())
def test_density_means_that_the_addresses_are_a_range(layout: tuple[Shape, Stride]) -> None:
    found = sorted(addresses(*layout))
    assert is_non_overlapping_and_dense(*layout) == (found == list(range(len(found))))


@given(layouts())
def test_storage_ends_with_the_last_address(layout: tuple[Shape, Stride]) -> None:
    assert storage_size(*layout) == max(addresses(*layout), default=-1) + 1


@given(layouts())
def test_a_preserved_layout_is_dense_and_keeps_the_order(layout: tuple[Shape, Stride]) -> None:
    shape, stride = layout
    kept = preserve_strides(shape, stride)
    assert is_non_overlapping_and_dense(shape, kept)
    if is_non_overlapping_and_dense(shape, stride):
        assert kept == stride
    elif 0 not in stride:
        long = [dimension for dimension, size in enumerate(shape) if size > 1]
        for a, b in product(long, long):
            if stride[a] < stride[b]:
                assert kept[a] < kept[b]


@given(layouts(), layouts())
def test_same_layout_means_same_addresses(layout: tuple[Shape, Stride], other: tuple[Shape, Stride]) -> None:
    shape, stride = layout
    for another in (contiguous_strides(shape), preserve_strides(shape, stride), other[1]):
        if len(another) == len(shape):
            same = addresses(shape, stride) == addresses(shape, another)
            assert same_layout_modulo_size_one(shape, stride, another) == same


@given(layouts())
def test_an_obedient_copy_obeys(layout: tuple[Shape, Stride]) -> None:
    shape, variable = layout
    copied = contract_strides(shape, variable)
    assert is_non_overlapping_and_dense(shape, copied)
    # PyTorch takes stride 0 on a dimension of size 1 for an expanded gradient, the variable's own not excepted.
    assume(0 not in copied)
    assert obeys_layout_contract(shape, copied, variable)


def test_contract_modulo_size_one() -> None:
    assert obeys_layout_contract((3, 1), (1, 7), (1, 3))
    assert not obeys_layout_contract((3, 1), (1, 0), (1, 3))
    assert not obeys_layout_contract((2, 3), (3, 1), (1, 2))
    assert obeys_layout_contract((2, 3), (3, 1), (6, 2))  # a variable with gaps wants a row-major gradient
    assert not obeys_layout_contract((2, 3), (6, 2), (6, 2))


# Views ---------------------------------------------------------------------------------------------------------------


@given(layouts(max_rank=3), st.data())
def test_a_view_exists_exactly_where_the_addresses_allow_one(layout: tuple[Shape, Stride], data: st.DataObject) -> None:
    shape, stride = layout
    numel = prod(shape)
    new_shape: list[int] = []
    left = numel
    while left > 1 and len(new_shape) < 4:
        new_shape.append(data.draw(st.sampled_from([n for n in range(1, left + 1) if left % n == 0])))
        left //= new_shape[-1]
    new_shape.append(left)
    wanted = tuple(new_shape)
    found = view_strides(shape, stride, wanted)
    in_order = np.array(addresses(shape, stride)).reshape(wanted)
    if found is not None:
        assert addresses(wanted, found) == in_order.ravel().tolist()
    else:
        steps = [0 if size == 1 else int(in_order.take(1, axis).flat[0]) for axis, size in enumerate(wanted)]
        assert addresses(wanted, tuple(steps)) != in_order.ravel().tolist()


def test_views_of_scalars_and_of_nothing() -> None:
    assert view_strides((), (), (1, 1)) == (1, 1)
    assert view_strides((1,), (9,), ()) == ()
    assert view_strides((2, 0), (5, 7), (2, 0)) == (5, 7)
    assert view_strides((2, 0), (5, 7), (0, 3)) == (3, 1)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.data())
def test_a_missing_size_is_inferred(sizes: list[int], data: st.DataObject) -> None:
    shape = tuple(sizes)
    axis = data.draw(st.integers(0, len(shape) - 1))
    assert infer_size((*shape[:axis], -1, *shape[axis + 1 :]), prod(shape)) == shape
    assert infer_size(shape, prod(shape)) == shape


@pytest.mark.parametrize(
    ("new_shape", "numel", "message"),
    [
        ((-1, 2, -1), 8, "only one dimension can be inferred"),
        ((2, -3), 6, "invalid shape dimension -3 at index 1 of shape"),
        ((2, 3), 7, r"shape '\[2, 3\]' is invalid for input of size 7"),
        ((-1, 3), 7, r"shape '\[-1, 3\]' is invalid for input of size 7"),
        ((-1, 0), 7, "is invalid for input of size 7"),
        ((-1, 0), 0, "cannot reshape tensor of 0 elements .* ambiguous"),
        ((), 0, r"shape '\[\]' is invalid for input of size 0"),
    ],
)
def test_sizes_that_cannot_be(new_shape: Shape, numel: int, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        infer_size(new_shape, numel)


# Broadcasting --------------------------------------------------------------------------------------------------------


@given(st.lists(st.lists(st.sampled_from([0, 1, 1, 2, 3]), max_size=4), min_size=1, max_size=3))
def test_broadcasting_is_numpys(sizes: list[list[int]]) -> None:
    shapes = [tuple(each) for each in sizes]
    try:
        expected = np.broadcast_shapes(*shapes)
    except ValueError:
        with pytest.raises(RuntimeError, match="do not broadcast together"):
            broadcast_shapes(*shapes)
    else:
        assert broadcast_shapes(*shapes) == expected


def test_broadcasting_names_shapes_and_axis() -> None:
    with pytest.raises(RuntimeError) as caught:
        broadcast_shapes((2, 3, 4), (5, 4))
    assert str(caught.value) == (
        "The size of tensor a (3) must match the size of tensor b (5) at non-singleton dimension 1: "
        "shapes [2, 3, 4] and [5, 4] do not broadcast together"
    )


# Overlap -------------------------------------------------------------------------------------------------------------


@given(layouts())
def test_internal_overlap_never_lies(layout: tuple[Shape, Stride]) -> None:
    found = addresses(*layout)
    answer = internal_overlap(*layout)
    if answer != "too hard":
        assert (answer == "yes") == (len(set(found)) < len(found))


@given(
    layouts(min_size=1), st.integers(0, 12), layouts(), st.integers(0, 12), st.sampled_from([(4, 4), (2, 4), (8, 1)])
)
def test_overlap_of_two_layouts_never_lies(
    first: tuple[Shape, Stride],
    first_offset: int,
    second: tuple[Shape, Stride],
    second_offset: int,
    itemsizes: tuple[int, int],
) -> None:
    def touched(layout: tuple[Shape, Stride], address: int, itemsize: int) -> set[int]:
        return {address + each * itemsize + byte for each in addresses(*layout) for byte in range(itemsize)}

    a_size, b_size = itemsizes
    answer = overlap_status(first_offset, *first, a_size, second_offset, *second, b_size)
    a, b = touched(first, first_offset, a_size), touched(second, second_offset, b_size)
    if answer == "no":
        assert not a & b
    elif answer == "partial":
        assert a & b
    elif answer == "full":
        assert a == b


def test_overlap_of_two_layouts() -> None:
    square, column_major = ((2, 2), (2, 1)), ((2, 2), (1, 2))
    assert overlap_status(64, *square, 4, 64, *square, 4) == "full"
    assert overlap_status(64, *square, 4, 64, *column_major, 4) == "partial"
    assert overlap_status(64, *square, 4, 72, *square, 4) == "partial"
    assert overlap_status(64, *square, 4, 80, *square, 4) == "no"
    assert overlap_status(64, *square, 4, 64, (2, 2), (4, 2), 4) == "too hard"
    assert overlap_status(64, *square, 4, 64, (0, 2), (2, 1), 4) == "no"


# Sizes beyond memory -------------------------------------------------------------------------------------------------


def test_sizes_beyond_memory() -> None:
    shape = (2**33, 3, 2**31, 5)
    assert channels_last_strides(shape) == (15 * 2**31, 1, 15, 3)
    assert is_contiguous(shape, channels_last_strides(shape), channels_last)
    assert storage_size(shape, contiguous_strides(shape)) == prod(shape)
    assert view_strides((2**33, 4), (4, 1), (2**35,)) == (1,)
    assert view_strides((2**33, 4), (1, 2**33), (2**35,)) is None
    assert infer_size((-1, 2**31), 2**64) == (2**33, 2**31)
    assert preserve_strides((2**40, 2**40), (2, 2**42)) == (1, 2**40)
