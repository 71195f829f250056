"""The core, complex numbers and special values: PyTorch's stored values, layouts and first derivatives; how many
operators have such samples.
"""

import importlib

import pytest

import engine
from engine.calls.namespaces import OPERATORS
from tests.data.operators import case as cases
from tests.data.operators import complex_numbers, core, special_values
from tests.engine.ops.checking import FOLDER, check_against_pytorch, check_second_order

FAMILIES = {"core": core.CASES, "complex_numbers": complex_numbers.CASES, "special_values": special_values.CASES}


@pytest.mark.parametrize(
    ("family", "name", "dtype"),
    [
        (family, name, dtype)
        for family, listed in FAMILIES.items()
        for name in listed
        for dtype in ("float64", "float32")
        if (family, dtype) != ("special_values", "float32")  # other numbers are special there: 1e300 is infinite
    ],
)
def test_values_and_first_derivatives(family: str, name: str, dtype: str) -> None:
    check_against_pytorch(family, name, FAMILIES[family][name], dtype)


@pytest.mark.parametrize("name", [name for name, case in core.CASES.items() if case.twice])
def test_second_derivatives(name: str) -> None:
    check_second_order(core.CASES[name])


def test_at_least_150_operators_have_stored_samples() -> None:
    for operator in OPERATORS.values():
        operator.plans.clear()
    for file in sorted(FOLDER.glob("*.npz")):
        for case in importlib.import_module(f"tests.data.operators.{file.stem}").CASES.values():
            cases.outputs(engine, case, cases.tensors(engine, case, "float64"))
    called = {name for name, operator in OPERATORS.items() if operator.plans}
    assert len(called) >= 150, f"{len(called)} of {len(OPERATORS)} operators"


def test_gradients_of_complex_operands_are_conjugated_however_the_call_is_made() -> None:
    """One operand that requires a gradient or both, function or method, beside a number, in place."""
    z, w = engine.tensor([1.0 + 2.0j], requires_grad=True), engine.tensor([3.0 - 1.0j])
    calls = [lambda: z * w, lambda: engine.mul(z, w), lambda: w * z, lambda: z * (3 - 1j), lambda: (w * 1).mul_(z)]
    for call in calls:
        (gradient,) = engine.autograd.grad(call().real.sum(), z)
        assert gradient.tolist() == [3 + 1j]
    (gradient,) = engine.autograd.grad((z * z).real.sum(), z)
    assert gradient.tolist() == [2 - 4j]
    (gradient,) = engine.autograd.grad(engine.addcmul(w, z, w).real.sum(), z)
    assert gradient.tolist() == [3 + 1j]
