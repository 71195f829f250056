"""What every test may use. Tests that want several MPI ranks are marked `mpi`: see `tests/mpi_plugin.py`."""

from collections.abc import Iterator

import pytest

import engine
from engine import backend
from tests import cuda_simulator

pytest_plugins = ["pytester", "tests.mpi_plugin"]


@pytest.fixture
def cuda() -> Iterator[engine.device]:
    """`engine.device("cuda")`: a real GPU where there is one, else two simulated ones (tests/cuda_simulator), whose
    races fail the test at its end. Tests marked `gpu` need the real one."""
    try:
        backend.require_cupy()
    except RuntimeError:
        cuda_simulator.install()
        try:
            yield engine.device("cuda")
        finally:
            cuda_simulator.uninstall()
    else:
        yield engine.device("cuda")
