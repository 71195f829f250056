"""What tests ask of the GPU they run on, where it is one of ours: CuPy itself on the CPU driver (tests/cuda_driver), or
the imitation of CuPy (tests/cuda_simulator).
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from tests import cuda_driver, cuda_simulator
from tests.cuda_driver import control
from tests.cuda_driver.counts import Counts
from tests.cuda_simulator import cublas


def ours() -> bool:
    """Whether there is no real GPU: what it is asked is counted, races are found, `pow` is the host's."""
    return cuda_driver.loaded() is not None or cuda_simulator.installed()


def counters() -> AbstractContextManager[Counts]:
    """Counts what is asked of the device while it is open; may be nested. Zeros on a real GPU."""
    return control.counters() if cuda_driver.loaded() else cuda_simulator.counters()


@contextmanager
def race() -> Iterator[None]:
    """A test of what nothing orders: it is found, and raised."""
    if cuda_driver.loaded():
        with pytest.raises(RuntimeError):
            yield
        assert any("race" in problem for problem in control.take_problems())
    else:
        with pytest.raises(cuda_simulator.RaceError):
            yield
        cuda_simulator.races.found.clear()


def last_product(count: Counts) -> tuple[int, int]:
    """cuBLAS's compute type and math mode of the last product that was counted."""
    if cuda_driver.loaded():
        _, compute, mode = [each for each in count.names if each.startswith("gemm")][-1].split()
        return int(compute), int(mode)
    return cublas.calls[-1][1:]
