"""Activations, softmax and special functions: PyTorch's values, layouts and derivatives; second derivatives; errors."""

import numpy as np
import pytest

import engine
import engine.nn.functional as F
from tests.data.operators.activation import CASES
from tests.engine.ops.checking import check_against_pytorch, check_second_order


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", CASES)
def test_values_and_first_derivatives(name: str, dtype: str) -> None:
    check_against_pytorch("activation", name, CASES[name], dtype)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.twice])
def test_second_derivatives(name: str) -> None:
    check_second_order(CASES[name])


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_half_precision_is_computed_in_single(name: str) -> None:
    x = engine.randn(5, 300, generator=engine.Generator().manual_seed(3)).to(getattr(engine, name))
    for function in (lambda x: F.softmax(x, -1), lambda x: F.log_softmax(x, 0), F.gelu, F.silu, F.mish, F.elu):
        assert engine.equal(function(x), function(x.float()).to(x.dtype))


def test_softmax_of_infinities() -> None:
    row = engine.tensor([[0.0, -float("inf")], [-float("inf"), -float("inf")], [float("inf"), 0.0]])
    assert np.array_equal(F.softmax(row, 1).numpy(), [[1, 0], [np.nan] * 2, [np.nan] * 2], equal_nan=True)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: F.softmax(engine.tensor([1, 2]), 0),
            NotImplementedError,
            '"softmax" not implemented for engine.int64',
        ),
        (lambda: F.gelu(engine.tensor([1, 2])), NotImplementedError, '"gelu" not implemented'),
        (
            lambda: F.gelu(engine.zeros(2), approximate="x"),
            RuntimeError,
            "approximate argument must be either none or tanh",
        ),
        (lambda: F.log_softmax(engine.zeros(2), 3), IndexError, "Dimension out of range"),
        (lambda: F.hardtanh(engine.zeros(2), 1.0, -1.0), ValueError, "min_val cannot be greater"),
        (lambda: F.celu(engine.zeros(2), 0.0), RuntimeError, "alpha cannot be 0"),
        (lambda: F.softshrink(engine.zeros(2), -1.0), RuntimeError, "lambda must be greater or equal to 0"),
    ],
)
def test_errors(call: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()  # type: ignore[operator]
