"""Further elementwise functions and rearrangements: PyTorch's values, layouts and derivatives; second derivatives;
errors.
"""

from collections.abc import Callable

import pytest

import engine
from tests.data.operators.elementwise import CASES
from tests.engine.ops.checking import check_against_pytorch, check_second_order


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", CASES)
def test_values_and_first_derivatives(name: str, dtype: str) -> None:
    check_against_pytorch("elementwise", name, CASES[name], dtype)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.twice])
def test_second_derivatives(name: str) -> None:
    check_second_order(CASES[name])


def test_nan_to_num_uses_the_limits_of_the_dtype() -> None:
    found = engine.nan_to_num(engine.tensor([float("inf"), -float("inf"), float("nan")]))
    assert found.tolist() == [engine.finfo(engine.float32).max, engine.finfo(engine.float32).min, 0]


def test_float_power_is_double() -> None:
    assert engine.float_power(engine.tensor([2, 3]), 2).dtype is engine.float64
    assert engine.float_power(engine.tensor([2.0]), engine.tensor([0.5])).item() == 2**0.5


X = engine.zeros(2, 3)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: engine.addcdiv(X.long(), X.long(), X.long()), RuntimeError, "Integer division with addcdiv"),
        (lambda: engine.isclose(X, X.double()), RuntimeError, "did not match"),
        (lambda: engine.masked_scatter(X, X == 0, engine.zeros(2)), RuntimeError, "6 elements are asked for"),
        (lambda: engine.masked_scatter(X, X, X), RuntimeError, "only supports boolean masks"),
        (lambda: engine.hsplit(X, 2), RuntimeError, "not divisible"),
        (lambda: engine.vsplit(X[0], 1), RuntimeError, "at least 2 dimension"),
        (lambda: engine.fliplr(X[0]), RuntimeError, ">= 2-d"),
        (lambda: engine.rot90(X, 1, (0, 0)), RuntimeError, "rotation dims to be different"),
        (lambda: engine.diag(engine.zeros(1, 1, 1)), RuntimeError, "Supports 1D or 2D"),
        (lambda: engine.diagonal_scatter(X, X), RuntimeError, "equal to the slice of self"),
        (lambda: engine.polygamma(-1, X), RuntimeError, "negative n"),
        (lambda: engine.cov(engine.zeros(1, 1, 1)), RuntimeError, "two or fewer dimensions"),
        (lambda: engine.combinations(X), RuntimeError, "1D vector"),
    ],
)
def test_errors(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
