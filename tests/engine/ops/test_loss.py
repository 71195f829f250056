import pytest

from tests.data.operators.loss import CASES
from tests.engine.ops.checking import check_against_pytorch, check_second_order


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", CASES)
def test_values_and_first_derivatives(name: str, dtype: str) -> None:
    check_against_pytorch("loss", name, CASES[name], dtype)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.twice])
def test_second_derivatives(name: str) -> None:
    check_second_order(CASES[name])
