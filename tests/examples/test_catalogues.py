"""The examples that show one package each run to their end and leave out no public name."""

import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

import ddp
import engine.data
import engine.nn
import engine.optim
from tests.examples.running import ROOT, command, run


@pytest.mark.full
@pytest.mark.parametrize(
    ("script", "ranks", "lines"),
    [
        ("autograd.py", 1, 8),
        ("collectives.py", 1, 7),
        ("collectives.py", 3, 7),
        ("data.py", 1, 4),
        ("layers.py", 1, 150),
        ("optimizers.py", 1, 15),
        ("custom_operator.py", 1, 20),
    ],
)
def test_it_runs(script: str, ranks: int, lines: int) -> None:
    """The examples themselves assert what they say; a line is printed for each thing shown."""
    done = run(command(ranks, f"examples/{script}"))
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    assert len(done.stdout.splitlines()) >= lines


def public(package: ModuleType, base: type | None = None) -> set[str]:
    """Classes (below `base`) and functions that the package names."""
    found = {name: getattr(package, name) for name in dir(package) if not name.startswith("_")}
    if base is not None:
        return {name for name, each in found.items() if inspect.isclass(each) and issubclass(each, base)}
    return {name for name, each in found.items() if inspect.isclass(each) or inspect.isfunction(each)}


def left_out(script: str, names: set[str]) -> set[str]:
    text = Path(ROOT, "examples", script).read_text()
    return {name for name in names if name not in text}


def test_every_layer_and_loss_is_shown() -> None:
    """By the lines that are printed, since some names are put together there."""
    shown = {line.split()[0] for line in run(command(1, "examples/layers.py")).stdout.splitlines()}
    bases = {
        "Module",
        "Container",
        "RNNBase",
        "RNNCellBase",
        "ModuleList",
        "ModuleDict",
        "ParameterList",
        "ParameterDict",
    }
    assert public(engine.nn, engine.nn.Module) - bases - shown == set()
    assert left_out("layers.py", {"ModuleList", "ModuleDict", "ParameterList", "ParameterDict", "Buffer"}) == set()


def test_every_optimizer_is_shown() -> None:
    assert left_out("optimizers.py", public(engine.optim, engine.optim.Optimizer) - {"Optimizer"}) == set()


def test_every_dataset_and_sampler_is_shown() -> None:
    bases = (engine.data.Dataset, engine.data.Sampler)
    names = set().union(*(public(engine.data, base) for base in bases)) - {"Dataset", "Sampler"}
    assert left_out("data.py", names) == set()


def test_every_collective_is_shown() -> None:
    """Functions of the modules that hold them, but for those that PyTorch calls deprecated."""
    folders = ("ddp.collectives.", "ddp.groups.subgroups")
    names = {name for name in dir(ddp) if str(getattr(getattr(ddp, name), "__module__", "")).startswith(folders)}
    names = {name for name in names if not name.endswith("_coalesced")}
    assert len(names) > 20
    assert left_out("collectives.py", {name for name in names if not name.startswith("_")}) == set()


@pytest.mark.full
def test_data_parallel_training() -> None:
    """ZeRO and an optimizer within backward change no bit of what plain training gives."""
    done = run(command(3, "examples/data_parallel.py"))
    assert done.returncode == 0, done.stderr
    losses = dict(re.findall(r"^(\w+) +(-?\d+\.\d{4})   ", done.stdout, re.MULTILINE))
    assert len(losses) == 12
    assert losses["plain"] == losses["state_divided"] == losses["step_within_backward"] == losses["watched"]
    assert "it was the last one in" in done.stdout
