"""The examples' networks and the optimizers against PyTorch, step by step, from the same weights and batches.

PyTorch is not needed: its numbers are in tests/data/pytorch_reference.json, made by pytorch_reference.py beside it.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import engine
from tests.data import reference_models

# PyTorch's own float32 and float64 runs differ by less than 1e-6 over these steps.
TOLERANCE = {"float32": 1e-5, "float64": 1e-12}


@pytest.fixture(scope="module")
def reference() -> dict[str, Any]:
    return json.loads((Path(reference_models.__file__).parent / "pytorch_reference.json").read_text())


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", ["digits", pytest.param("gpt", marks=pytest.mark.full)])
def test_losses_are_those_of_pytorch(name: str, dtype: str, reference: dict[str, Any]) -> None:
    losses_of = {"digits": reference_models.digits_losses, "gpt": reference_models.gpt_losses}[name]
    losses = losses_of(getattr(engine, dtype))
    assert len(losses) == reference_models.STEPS
    np.testing.assert_allclose(losses, reference[name][dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("name", reference_models.OPTIMIZERS)
def test_optimizers_go_pytorchs_way(name: str, reference: dict[str, Any]) -> None:
    losses, parameters = reference_models.optimizer_trajectory(name)
    expected = reference["optimizers"][name]
    np.testing.assert_allclose(losses, expected["losses"], rtol=1e-12)
    assert parameters.keys() == expected["parameters"].keys()
    for key, values in parameters.items():
        np.testing.assert_allclose(values, expected["parameters"][key], rtol=1e-10, atol=1e-13, err_msg=key)


def test_the_reference_covers_every_optimizer(reference: dict[str, Any]) -> None:
    assert reference["optimizers"].keys() == reference_models.OPTIMIZERS.keys()
