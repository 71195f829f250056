"""What every test may use. Tests that want several MPI ranks are marked `mpi`: see `launch/testing/`."""

import gc
import math
import os
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

import engine
from launch.machine import cpu_quota
from tests import cuda_device, tiers

pytest_plugins = ["pytester", "launch.testing"]

# The same examples in every run, like the numbers of `_seeds`, and none refused because a busy machine gave it no
# processor for a second. `--hypothesis-profile=default` looks for others.
settings.register_profile("same", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("same")

TORCHRUN_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

_MOST_WORKERS = 8  # the tests on ranks are half of the work, and only four pieces of it


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="run what a plain `pytest` leaves out, too (tests/tiers.py)")


def pytest_report_header(config: pytest.Config) -> str:
    return tiers.header(config)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if tiers.is_left_out(collection_path) and not tiers.runs_everything(config) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if "cuda" in getattr(item, "fixturenames", ()):
            item.add_marker("gpu")
    quick = [item for item in items if not tiers.needs_everything(item)]
    for item in quick:
        item.add_marker("quick")
    if not tiers.runs_everything(config):
        config.hook.pytest_deselected(items=[item for item in items if tiers.needs_everything(item)])
        items[:] = quick
    if any(tiers.needs_a_gpu(item) for item in items) and cuda_device.why_not() is None:
        cuda_device.prepare()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Iterator[None]:
    """What is made meanwhile stays: to look for garbage in it again and again was a sixth of the time of collecting."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """What was imported and collected stays: no test's garbage is looked for in it."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if tiers.needs_a_gpu(item) and (reason := cuda_device.why_not()) is not None:
        pytest.skip(reason)  # from here, so that all of them are one line of the summary


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than the processors that affinity mask and control group leave, since tests on ranks and on processes
    wait a sixth of their time; 0, in this process, where it is one."""
    processors = math.ceil(min(len(os.sched_getaffinity(0)), cpu_quota(), _MOST_WORKERS))
    return processors + 1 if processors > 1 else 0


@pytest.fixture(autouse=True)
def _seeds() -> None:
    """Every test draws the same numbers in every run: what holds for a sample of them fails once in a thousand runs
    else."""
    random.seed(0)
    np.random.seed(0)
    engine.manual_seed(0)


@pytest.fixture(scope="module", autouse=True)
def _torchrun_variables() -> Iterator[None]:
    """What `init_process_group` sets for a user's script is not left to the next file, whose jobs would inherit it."""
    before = {name: os.environ.get(name) for name in TORCHRUN_VARIABLES}
    yield
    for name, value in before.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


@pytest.fixture
def cuda() -> Iterator[engine.device]:
    """`engine.device("cuda")`: a real GPU where there is one, else CuPy on two devices of the CPU driver
    (tests/cuda_driver), whose races fail the test at its end. Tests with it are marked `gpu`."""
    with cuda_device.watched():
        yield engine.device("cuda")
