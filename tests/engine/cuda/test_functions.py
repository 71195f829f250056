"""The public functions on the device beside the CPU, by the calls whose numbers are compared with PyTorch's
(tests/data/operators): values, dtypes, strides and first derivatives.
"""

import importlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import engine
from tests import cuda_device
from tests.data.operators import case as cases
from tests.engine.cuda.comparison import all_of, assert_same, assert_values, weights

pytestmark = pytest.mark.usefixtures("full_precision")

# Signs, phases and orders that LAPACK, which the CPU driver calls, and cuSOLVER choose each in its own way.
UNDECIDED = re.compile("svd|qr|eig")
FUSED = ["activation", "attention", "conv", "loss", "normalization", "pooling"]
FAMILIES = sorted(file.stem for file in Path(cases.__file__).parent.glob("*.npz"))


class OnDevice:
    """engine, whose arrays from NumPy are on the default device like all others."""

    def __getattr__(self, name: str) -> Any:
        return getattr(engine, name)

    def from_numpy(self, array: np.ndarray) -> engine.Tensor:
        return engine.from_numpy(array).to(engine.get_default_device())


@pytest.mark.parametrize(
    ("family", "kind"),
    [(family, "float64") for family in FAMILIES] + [(family, "float32") for family in FUSED],
)
def test_functions(family: str, kind: str, cuda: engine.device) -> None:
    module = importlib.import_module(f"tests.data.operators.{family}")
    chosen = {name: case for name, case in module.CASES.items() if cuda_device.ours() or not UNDECIDED.search(name)}
    all_of((name, lambda case=case: compare(case, kind, cuda)) for name, case in chosen.items())


def compare(case: cases.Case, kind: str, cuda: engine.device) -> None:
    here = cases.tensors(engine, case, kind)
    there = [each.detach().to(cuda).requires_grad_(each.requires_grad) for each in here]
    expected = cases.outputs(engine, case, here)
    with cuda:  # tensors that a case makes for itself
        found = cases.outputs(OnDevice(), case, there)
    tolerance = max(1e-8, 100 * case.tolerance) if kind == "float64" else 1e-3
    recorded = [place for place, result in enumerate(expected) if result.requires_grad]
    for one, other in zip(found, expected, strict=True):
        assert_same(one, other, "result", tolerance)
    if recorded:
        directions = weights([expected[place] for place in recorded], 3)
        engine.autograd.backward([expected[place] for place in recorded], directions)
        engine.autograd.backward([found[place] for place in recorded], [each.to(cuda) for each in directions])
        for one, other in zip(there, here, strict=True):
            assert_values(one.grad, other.grad, "derivative", tolerance)
