"""The spatial operators without their compiled kernels: the formulation that CuPy arrays go through, on NumPy's."""

import importlib
from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest

from engine.calls.namespaces import OPERATORS
from engine.ops.conv import arrays as conv_arrays
from engine.ops.conv import cpu as conv_cpu
from tests.engine.ops.checking import check_against_pytorch

MODULES = (
    *("norm.batch_norm", "norm.layer_norm", "norm.group_norm"),
    *("pooling.max_pool", "pooling.avg_pool", "resample.operator"),
)
FAMILIES = ("conv", "pooling", "normalization", "padding", "upsampling")
CASES = {
    (family, name): case
    for family in FAMILIES
    for name, case in importlib.import_module(f"tests.data.operators.{family}").CASES.items()
}


@pytest.fixture(scope="module")
def without_kernels() -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    for module in MODULES:
        # by import_module: in the package these names are functions
        patch.setattr(importlib.import_module(f"engine.ops.{module}"), "compiled", lambda xp, array: False)
    patch.setattr(conv_cpu, "_forward", lambda *_: partial(conv_arrays.convolve, np))
    patch.setattr(conv_cpu, "_input_gradient", lambda *_: conv_cpu._input_gradient_of_arrays)
    patch.setattr(conv_cpu, "_weight_gradient", lambda *_: partial(conv_arrays.weight_gradient, np))
    for operator in OPERATORS.values():
        operator.plans.clear()
    yield
    patch.undo()
    for operator in OPERATORS.values():
        operator.plans.clear()


@pytest.mark.usefixtures("without_kernels")
@pytest.mark.parametrize(("family", "name"), CASES, ids=[f"{family}-{name}" for family, name in CASES])
def test_values_and_first_derivatives(family: str, name: str) -> None:
    check_against_pytorch(family, name, CASES[family, name], "float64")
