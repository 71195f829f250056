"""Properties of layouts on random shapes and strides: values are NumPy's, strides are the rule's, and the contract
holds after backward.
"""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ddp
import engine
from engine.ops.pointwise.rows import FUNCTIONS
from engine.rules import iterator, layout

SIZES = st.integers(0, 4)
quick = settings(max_examples=150, deadline=None)

BINARY = ["add", "sub", "mul", "maximum", "lt", "eq"]
UNARY = ["neg", "relu", "abs", "square"]


@st.composite
def strided(draw: Any, shape: tuple[int, ...] | None = None, dtype: engine.dtype = engine.float64) -> engine.Tensor:
    """A tensor of small integers with a random layout: permuted, sliced with steps, expanded, odd strides on axes of
    size 1.
    """
    if shape is None:
        shape = tuple(draw(st.lists(SIZES, max_size=4)))
    order = draw(st.permutations(range(len(shape))))
    stride, step = [0] * len(shape), 1
    for axis in order:
        kind = draw(st.sampled_from(["dense", "dense", "gap", "expanded"]))
        stride[axis] = 0 if kind == "expanded" else step
        if kind != "expanded":
            step *= max(shape[axis], 1) * (2 if kind == "gap" else 1)
    elements = layout.storage_size(shape, tuple(stride))
    values = draw(st.lists(st.integers(-9, 9), min_size=elements, max_size=elements))
    return engine.tensor(values, dtype=dtype).as_strided(shape, stride)


@st.composite
def operands(draw: Any) -> tuple[engine.Tensor, engine.Tensor]:
    """Two tensors that broadcast."""
    shape = draw(st.lists(st.integers(1, 4), max_size=4))
    kept = [1 if draw(st.booleans()) else size for size in shape][draw(st.integers(0, len(shape))) :]
    pair = draw(strided(tuple(shape))), draw(strided(tuple(kept)))
    return pair if draw(st.booleans()) else pair[::-1]


@given(operands(), st.sampled_from(BINARY))
@quick
def test_binary_operators_follow_numpy_and_the_stride_rule(
    pair: tuple[engine.Tensor, engine.Tensor], name: str
) -> None:
    a, b = pair
    out = getattr(engine, name)(a, b)
    ufunc = {"sub": "subtract", "mul": "multiply", "lt": "less", "eq": "equal"}.get(name, name)
    np.testing.assert_array_equal(out.numpy(), getattr(np, ufunc)(a.numpy(), b.numpy()))
    operand = tuple((tuple(t.shape), t.stride()) for t in pair)
    assert out.stride() == iterator.plan(operand).stride


@given(strided(), st.sampled_from(UNARY))
@quick
def test_unary_operators_follow_numpy_and_the_stride_rule(tensor: engine.Tensor, name: str) -> None:
    out = getattr(engine, name)(tensor)
    expected = {"neg": np.negative, "relu": lambda x: np.maximum(x, 0), "abs": np.abs, "square": np.square}[name](
        tensor.numpy()
    )
    np.testing.assert_array_equal(out.numpy(), expected)
    assert out.stride() == iterator.plan(((tuple(tensor.shape), tensor.stride()),)).stride


@given(strided(), st.integers(-9, 9))
@quick
def test_inplace_operators_write_where_the_functional_ones_compute(tensor: engine.Tensor, number: int) -> None:
    if layout.internal_overlap(tuple(tensor.shape), tensor.stride()) == "yes":
        with pytest.raises(RuntimeError, match="single memory location"):
            tensor.add_(number)
        return
    expected = tensor.numpy() + number
    same = tensor.add_(number)
    assert same is tensor
    np.testing.assert_array_equal(tensor.numpy(), expected)


VIEWS = {
    "permute": lambda t, n: (t.permute(*range(t.ndim)[::-1]), t.numpy().transpose()),
    "select": lambda t, n: (t.select(0, n % t.shape[0]), t.numpy()[n % t.shape[0]]) if t.ndim and t.shape[0] else None,
    "slice": lambda t, n: (t[1 : 4 : 1 + n % 2], t.numpy()[1 : 4 : 1 + n % 2]) if t.ndim else None,
    "unsqueeze": lambda t, n: (t.unsqueeze(n % (t.ndim + 1)), np.expand_dims(t.numpy(), n % (t.ndim + 1))),
    "squeeze": lambda t, n: (t.squeeze(), t.numpy().squeeze()),
    "diagonal": lambda t, n: (t.diagonal(n % 3 - 1), t.numpy().diagonal(n % 3 - 1)) if t.ndim > 1 else None,
    "none_and_ellipsis": lambda t, n: (t[None, ...], t.numpy()[None, ...]),
    "expand": lambda t, n: (t.expand(2, *t.shape), np.broadcast_to(t.numpy(), (2, *t.shape))),
    "movedim": lambda t, n: (t.movedim(0, -1), np.moveaxis(t.numpy(), 0, -1)) if t.ndim else None,
    "reshape": lambda t, n: (t.reshape(-1), t.numpy().reshape(-1)),
    "unfold": lambda t, n: (
        (
            t.unfold(0, 2, 1),
            np.moveaxis(np.lib.stride_tricks.sliding_window_view(t.numpy(), 2, 0), -1, -1),
        )
        if t.ndim and t.shape[0] >= 2
        else None
    ),
}


@given(strided(), st.sampled_from(sorted(VIEWS)), st.integers(0, 7))
@quick
def test_views_equal_numpys_and_write_through(tensor: engine.Tensor, name: str, number: int) -> None:
    pair = VIEWS[name](tensor, number)
    if pair is None:
        return
    view, expected = pair
    np.testing.assert_array_equal(view.numpy(), expected)
    shares = view.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
    if not view.numel() or not shares or layout.internal_overlap(tuple(view.shape), view.stride()) != "no":
        return
    before = tensor._version
    view.fill_(77)
    assert (view.numpy() == 77).all()
    assert (tensor.numpy() == 77).any()
    assert tensor._version == view._version == before + 1


@given(strided(), st.data())
@quick
def test_the_contract_holds_after_backward(variable: engine.Tensor, data: st.DataObject) -> None:
    leaf = variable.detach().requires_grad_()
    weights = data.draw(strided(tuple(leaf.shape)))
    order = data.draw(st.permutations(range(leaf.ndim)))
    (leaf.permute(order) * weights.permute(order)).sum().backward()
    np.testing.assert_array_equal(leaf.grad.numpy(), weights.numpy())
    shape, stride = tuple(leaf.shape), leaf.stride()
    assert layout.same_layout_modulo_size_one(shape, leaf.grad.stride(), layout.contract_strides(shape, stride))
    (leaf * 2).sum().backward()
    assert layout.same_layout_modulo_size_one(shape, leaf.grad.stride(), layout.contract_strides(shape, stride))
    np.testing.assert_array_equal(leaf.grad.numpy(), weights.numpy() + 2)


class Weighted(engine.nn.Module):
    """Parameters of odd layouts, each multiplied by weights that depend on the rank."""

    def __init__(self, variables: list[engine.Tensor]) -> None:
        super().__init__()
        self.variables = engine.nn.ParameterList([engine.nn.Parameter(variable.clone()) for variable in variables])
        for parameter, variable in zip(self.variables, variables, strict=True):
            parameter.data = variable

    def forward(self, scale: float) -> engine.Tensor:
        return sum((parameter.permute(range(parameter.ndim)[::-1]) * scale).sum() for parameter in self.variables)


@pytest.mark.mpi(ranks=[1, 2])
def test_the_contract_holds_in_buckets() -> None:
    started = not ddp.is_initialized()
    if started:
        ddp.init_process_group()

    @given(st.lists(strided(), min_size=1, max_size=4))
    @settings(max_examples=25, deadline=None, derandomize=True, database=None)
    def holds(variables: list[engine.Tensor]) -> None:
        model = ddp.DistributedDataParallel(Weighted(variables))
        model(float(1 + ddp.get_rank())).backward()
        mean = sum(range(1, ddp.get_world_size() + 1)) / ddp.get_world_size()
        for parameter in model.parameters():
            shape = tuple(parameter.shape)
            assert layout.same_layout_modulo_size_one(
                shape, parameter.grad.stride(), layout.contract_strides(shape, parameter.stride())
            )
            assert (parameter.grad.numpy() == mean).all()

    engine.set_layout_report("off")  # breaking the contract on the way is what this is about
    try:
        holds()
    finally:
        engine.set_layout_report("warn")
        if started:
            ddp.destroy_process_group()


@pytest.mark.parametrize("size", [2**31, 2**33 + 7])
def test_sizes_beyond_32_bits_are_planned_without_memory(size: int) -> None:
    a = engine.empty(size, 3, device="meta")
    b = a.t() + engine.empty(3, 1, device="meta")
    assert b.shape == (3, size)
    assert b.stride() == (1, 3)
    assert b.numel() == 3 * size
    assert math.prod(a.unsqueeze(0).expand(5, -1, -1).shape) == 15 * size


def test_every_pointwise_operator_is_known_here() -> None:
    assert set(BINARY + UNARY) <= set(FUNCTIONS)
