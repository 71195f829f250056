"""Losses: PyTorch's values, layouts and derivatives; second derivatives; errors."""

from collections.abc import Callable

import numpy as np
import pytest

import engine
import engine.nn.functional as F
from tests.data.operators.loss import CASES
from tests.engine.ops.checking import check_against_pytorch, check_second_order


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", CASES)
def test_values_and_first_derivatives(name: str, dtype: str) -> None:
    check_against_pytorch("loss", name, CASES[name], dtype)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.twice])
def test_second_derivatives(name: str) -> None:
    check_second_order(CASES[name])


@pytest.mark.parametrize("options", [{}, {"reduction": "none"}, {"label_smoothing": 0.1}])
def test_half_precision_goes_through_single(options: dict[str, object]) -> None:
    x = engine.randn(6, 5).to(engine.bfloat16).requires_grad_()
    y = engine.tensor([0, 4, -100, 2, 2, 1])
    wide = x.detach().float().requires_grad_()
    loss, expected = F.cross_entropy(x, y, **options), F.cross_entropy(wide, y, **options)
    assert engine.equal(loss, expected.to(x.dtype))
    (slope,), (wide_slope,) = engine.autograd.grad(loss.sum(), x), engine.autograd.grad(expected.sum(), wide)
    np.testing.assert_allclose(slope.float().numpy(), wide_slope.numpy(), atol=4e-3)


def test_byte_targets_and_ignored_infinities() -> None:
    x = engine.tensor([[0.0, 1.0], [-float("inf"), 0.0], [float("nan"), 0.0]], requires_grad=True)
    loss = F.nll_loss(x, engine.tensor([1, 0, 0]), ignore_index=0)
    loss.backward()
    assert loss.item() == -1.0
    assert x.grad.tolist() == [[0, -1], [0, 0], [0, 0]]
    logits = engine.randn(3, 4)
    assert engine.equal(
        F.cross_entropy(logits, engine.tensor([1, 2, 3], dtype=engine.uint8)),
        F.cross_entropy(logits, engine.tensor([1, 2, 3])),
    )


def test_target_probabilities_that_are_learnt_get_a_gradient() -> None:
    x, y = engine.randn(3, 4), engine.rand(3, 4).requires_grad_()
    F.cross_entropy(x, y, reduction="sum").backward()
    np.testing.assert_allclose(y.grad.numpy(), -F.log_softmax(x, 1).numpy(), rtol=1e-5)


X, Y = engine.zeros(2, 5), engine.tensor([1, 2])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: F.cross_entropy(X, engine.tensor([1, 12])), IndexError, "Target 12 is out of bounds"),
        (lambda: F.cross_entropy(X.double(), engine.tensor([1, -1])), IndexError, "Target -1 is out of bounds"),
        (lambda: F.cross_entropy(X.bfloat16(), engine.tensor([1, 5])), IndexError, "Target 5 is out of bounds"),
        (lambda: F.nll_loss(X, engine.tensor([1, 7])), IndexError, "Target 7 is out of bounds"),
        (
            lambda: F.cross_entropy(X, engine.tensor([1, 2, 3])),
            ValueError,
            r"Expected input batch_size \(2\) to match target batch_size \(3\)",
        ),
        (lambda: F.cross_entropy(X, engine.zeros(2)), RuntimeError, "expected target dtype to be Long or Byte"),
        (lambda: F.cross_entropy(X, Y.int()), RuntimeError, "Long or Byte .*but got engine.int32"),
        (lambda: F.cross_entropy(X, engine.zeros(2, 4).long()), RuntimeError, "multi-target not supported"),
        (
            lambda: F.cross_entropy(engine.zeros(2, 5, 3), engine.zeros(2, 4).long()),
            RuntimeError,
            r"Expected target size \[2, 3\], got \[2, 4\]",
        ),
        (lambda: F.cross_entropy(X, Y, reduction="x"), ValueError, "x is not a valid value for reduction"),
        (lambda: F.cross_entropy(X, Y, weight=engine.ones(3)), RuntimeError, "all 5 classes or no classes"),
        (lambda: F.cross_entropy(X, Y, weight=engine.ones(5).double()), RuntimeError, "expected weight of dtype"),
        (lambda: F.cross_entropy(X, Y, label_smoothing=2), RuntimeError, "label_smoothing must be between 0.0 and 1.0"),
        (lambda: F.cross_entropy(X.long(), Y), NotImplementedError, '"cross_entropy" not implemented'),
    ],
)
def test_errors(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("dtype", [engine.float16, engine.bfloat16, engine.float32])
def test_cross_entropy_of_no_rows(dtype: engine.dtype) -> None:
    x, none = engine.zeros(0, 5, dtype=dtype, requires_grad=True), engine.zeros(0, dtype=engine.int64)
    mean = F.cross_entropy(x, none)
    assert mean.isnan()
    mean.backward()
    assert x.grad.shape == (0, 5)
    assert F.cross_entropy(x, none, reduction="sum").item() == 0
    assert F.cross_entropy(x, none, reduction="none").shape == (0,)
