"""Every optimizer and scheduler against PyTorch's numbers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import engine
from engine import optim
from engine.nn import Parameter
from engine.optim import lr_scheduler
from tests.data import optim_cases

REFERENCE = json.loads((Path(optim_cases.__file__).parent / "optim_reference.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", optim_cases.OPTIMIZERS, ids=optim_cases.optimizer_name)
def test_optimizer(case: tuple[str, dict[str, Any]]) -> None:
    ours = optim_cases.run_optimizer(case, engine, Parameter)
    theirs = REFERENCE["optimizers"][optim_cases.optimizer_name(case)]
    for mine, reference in zip(ours["parameters"], theirs["parameters"], strict=True):
        np.testing.assert_allclose(mine, reference, rtol=1e-10, atol=1e-13)
    assert ours["state"].keys() == theirs["state"].keys()
    for name, values in ours["state"].items():
        # scalars of the state are float32, in PyTorch as here
        np.testing.assert_allclose(
            values, theirs["state"][name], rtol=1e-6 if name in ("mu_product", "eta", "mu") else 1e-10, atol=1e-13
        )


@pytest.mark.parametrize("case", optim_cases.OPTIMIZERS, ids=optim_cases.optimizer_name)
def test_single_precision_follows_double(case: tuple[str, dict[str, Any]]) -> None:
    single = optim_cases.run_optimizer(case, engine, Parameter, "float32")
    theirs = REFERENCE["optimizers"][optim_cases.optimizer_name(case)]
    for mine, reference in zip(single["parameters"], theirs["parameters"], strict=True):
        np.testing.assert_allclose(mine, reference, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", optim_cases.LBFGS, ids=str)
def test_lbfgs(options: dict[str, Any]) -> None:
    ours = optim_cases.run_lbfgs(options, engine, Parameter)
    theirs = REFERENCE["lbfgs"][str(options)]
    np.testing.assert_allclose(ours["trace"], theirs["trace"], rtol=1e-6, atol=1e-9)
    assert ours["func_evals"] == theirs["func_evals"]


@pytest.mark.parametrize("name", optim_cases.SCHEDULERS)
def test_scheduler(name: str) -> None:
    ours = optim_cases.run_scheduler(name, engine, Parameter)
    np.testing.assert_allclose(ours, REFERENCE["schedulers"][name], rtol=1e-11)


@pytest.mark.parametrize("name", REFERENCE["schedulers with Adam"])
def test_scheduler_moves_beta1(name: str) -> None:
    ours = optim_cases.run_scheduler(name, engine, Parameter, "Adam")
    np.testing.assert_allclose(ours, REFERENCE["schedulers with Adam"][name], rtol=1e-11)


@pytest.mark.parametrize("name", optim_cases.SCHEDULERS)
def test_scheduler_continues_from_its_state(name: str) -> None:
    assert optim_cases.run_scheduler(name, engine, Parameter, interrupt=13) == optim_cases.run_scheduler(
        name, engine, Parameter
    )


BEYOND_PYTORCH = {"LAMB", "LARS"}  # test_lamb.py and test_lars.py


def test_nothing_public_is_left_out() -> None:
    optimizers = {name for name in optim.__all__ if isinstance(getattr(optim, name), type)}
    assert optimizers >= BEYOND_PYTORCH
    optimizers -= {"Optimizer", "LBFGS", "SparseAdam"} | BEYOND_PYTORCH
    assert optimizers == {name for name, _ in optim_cases.OPTIMIZERS}
    schedulers = {*lr_scheduler.__all__, "SWALR"} - {"LRScheduler"}
    assert schedulers == {name.split(" ")[0] for name in optim_cases.SCHEDULERS}
