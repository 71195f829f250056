"""Sorting, selection, counting, running extrema: PyTorch's values, layouts, first and second derivatives; errors."""

from collections.abc import Callable

import pytest

import engine
from tests.data.operators.sorting import CASES
from tests.engine.ops.checking import check_against_pytorch, check_second_order


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", CASES)
def test_values_and_first_derivatives(name: str, dtype: str) -> None:
    check_against_pytorch("sorting", name, CASES[name], dtype)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.twice])
def test_second_derivatives(name: str) -> None:
    check_second_order(CASES[name])


def test_results_have_names() -> None:
    x = engine.tensor([3.0, 1.0, 2.0])
    assert x.sort().values.tolist() == [1, 2, 3]
    assert x.topk(1).indices.tolist() == [0]
    assert x.median(0).values.item() == 2
    assert x.kthvalue(1).indices.item() == 1


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: engine.topk(engine.zeros(3), 5), RuntimeError, "selected index k out of range"),
        (lambda: engine.kthvalue(engine.zeros(3), 5), RuntimeError, "selected number k out of range"),
        (lambda: engine.sort(engine.zeros(2), 3), IndexError, "Dimension out of range"),
        (lambda: engine.median(engine.zeros(2, 0), 1), IndexError, "non-zero size"),
        (lambda: engine.bincount(engine.tensor([-1])), RuntimeError, "only supports 1-d non-negative integral"),
        (lambda: engine.bincount(engine.zeros(2)), RuntimeError, "integral inputs, got engine.float32"),
        (lambda: engine.histc(engine.zeros(2), 3, 2, 1), RuntimeError, "max must be larger than min"),
        (lambda: engine.histc(engine.tensor([1]), 3), RuntimeError, "not implemented"),
        (lambda: engine.quantile(engine.zeros(2), 1.5), RuntimeError, r"range \[0, 1\]"),
        (
            lambda: engine.quantile(engine.zeros(2), 0.5, interpolation="x"),
            RuntimeError,
            "interpolation must be one of",
        ),
        (lambda: engine.quantile(engine.tensor([1]), 0.5), RuntimeError, "either float or double"),
        (
            lambda: engine.bucketize(engine.zeros(2), engine.zeros(2, 2)),
            RuntimeError,
            "boundaries tensor must be 1 dimension",
        ),
        (lambda: engine.searchsorted(engine.zeros(2, 3), engine.zeros(3, 3)), RuntimeError, "first N-1 dimensions"),
        (lambda: engine.diff(engine.zeros(())), RuntimeError, "at least one-dimensional"),
        (lambda: engine.cummax(engine.zeros(2), 1), IndexError, "Dimension out of range .*got 1"),
    ],
)
def test_errors(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
