"""Embedding, its adjoint and dropout: PyTorch's values, layouts and derivatives; second derivatives; errors."""

from collections.abc import Callable

import numpy as np
import pytest

import engine
import engine.nn.functional as F
from engine import ops
from tests.data.operators.embedding import CASES
from tests.engine.ops.checking import check_against_pytorch, check_second_order


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", CASES)
def test_values_and_first_derivatives(name: str, dtype: str) -> None:
    check_against_pytorch("embedding", name, CASES[name], dtype)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.twice])
def test_second_derivatives(name: str) -> None:
    check_second_order(CASES[name])


def test_half_precision_gradient() -> None:
    table = engine.ones(4, 3, dtype=engine.bfloat16, requires_grad=True)
    F.embedding(engine.tensor([1, 1, 3, 0]), table, padding_idx=0).sum().backward()
    assert table.grad.float().tolist() == [[0] * 3, [2] * 3, [0] * 3, [1] * 3]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: F.embedding(engine.tensor([0, 12]), engine.zeros(3, 4)), IndexError, "index out of range in self: 12"),
        (lambda: F.embedding(engine.tensor([-1]), engine.zeros(3, 4)), IndexError, "index out of range in self: -1"),
        (
            lambda: F.embedding(engine.tensor([1.0]), engine.zeros(3, 4)),
            RuntimeError,
            "to have one of the scalar types",
        ),
        (lambda: F.embedding(engine.tensor([1]), engine.zeros(4)), RuntimeError, "'weight' must be 2-D"),
    ],
)
def test_errors(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_dropout_keeps_the_mean_and_sends_the_gradient_where_it_kept() -> None:
    engine.manual_seed(0)
    x = engine.ones(200, 50, requires_grad=True)
    y = ops.dropout(x, 0.2)
    kept = y != 0
    assert abs(kept.float().mean().item() - 0.8) < 0.02
    np.testing.assert_allclose(y.detach().numpy()[kept.numpy()], 1.25)
    y.sum().backward()
    assert engine.equal(x.grad, y.detach())


def test_dropout_of_slices_layouts_and_both_ends() -> None:
    x = engine.randn(4, 3, 5, 5).to(memory_format=engine.channels_last).requires_grad_()
    y = ops.dropout(x, 0.5, mask_shape=(4, 3, 1, 1))
    assert y.is_contiguous(memory_format=engine.channels_last)
    assert all(piece.all() or not piece.any() for piece in (y != 0).flatten(0, 1))
    (first,) = engine.autograd.grad((y**2).sum(), x, create_graph=True)
    (second,) = engine.autograd.grad(first.sum(), x)
    np.testing.assert_allclose(second.numpy(), 2 * 4 * (y != 0).numpy(), rtol=1e-6)
    assert ops.dropout(x, 0.0) is x
    assert ops.dropout(x, 0.7, training=False) is x
    assert not ops.dropout(x, 1.0).any()
    with pytest.raises(ValueError, match="dropout probability has to be between 0 and 1"):
        ops.dropout(x, 1.5)


def test_the_layout_does_not_change_what_is_dropped() -> None:
    x = engine.ones(2, 3, 4, 4)
    engine.manual_seed(5)
    plain = ops.dropout(x, 0.5)
    engine.manual_seed(5)
    assert engine.equal(ops.dropout(x.to(memory_format=engine.channels_last), 0.5), plain)
