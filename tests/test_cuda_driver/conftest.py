"""CuPy on the CPU driver, for whole runs with ALLSTRIDE_CUDA_DRIVER set: the simulator stands in for `cupy` else."""

import os
from collections.abc import Iterator
from types import ModuleType

import pytest

from tests import cuda_driver
from tests.cuda_driver import control


@pytest.fixture
def cupy() -> Iterator[ModuleType]:
    """The real one. Problems that the test has not taken fail it."""
    if not os.environ.get("ALLSTRIDE_CUDA_DRIVER"):
        pytest.skip("runs with ALLSTRIDE_CUDA_DRIVER=1, for the whole of pytest")
    if (reason := cuda_driver.why_not()) is not None:
        pytest.skip(reason)
    with control.watched():
        import cupy as module

        yield module
