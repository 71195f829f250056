"""The GPU that tests run on, and what they ask of it: a real one where there is one, else CuPy on a driver for CPUs
(tests/cuda_driver).
"""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache

import pytest

from engine.memory import backend
from tests import cuda_driver
from tests.cuda_driver import control
from tests.cuda_driver.counts import Counts

RUNNER = "tests/ddp/cuda/on_driver.py"


@cache
def real() -> bool:
    """Whether NVIDIA's driver finds a GPU. First asked before ours is loaded, which has the same name."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int()
    return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0


@cache
def why_not() -> str | None:
    """What is missing for tests on a GPU; None where they run."""
    if not real():
        return cuda_driver.why_not()
    try:
        backend.require_cupy()
    except RuntimeError as missing:
        return str(missing)
    return None


def prepare() -> None:
    """Before the first test: CuPy, which any test may import, is to find our driver, and it no GPU but in tests that
    want one."""
    if not real():
        cuda_driver.load()
        cuda_driver.hide()


@contextmanager
def watched() -> Iterator[None]:
    """A GPU is there inside; problems that the driver has found are raised at the end."""
    with nullcontext() if real() else control.watched():
        yield


def runner() -> list[str]:
    """What stands before a script that wants a GPU where there is none."""
    return [] if real() else [RUNNER]


def ours() -> bool:
    """Whether there is no real GPU: what it is asked is counted, races are found, `pow` is the host's."""
    return not real()


def several(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """A device of ours for each of `count` ranks, and NCCL's stand-in: what NCCL needs."""
    from tests.cuda_driver import nccl

    assert nccl.runtime.getDeviceCount() >= count
    monkeypatch.setitem(sys.modules, "cupy.cuda.nccl", nccl)


def counters() -> AbstractContextManager[Counts]:
    """Counts what is asked of the device while it is open; may be nested. Zeros on a real GPU."""
    return nullcontext(Counts()) if real() else control.counters()


def checked(seed: int = 0) -> AbstractContextManager[None]:
    """Accesses of threads of one grid to the same byte, one of them a write, have to be ordered inside; threads and
    blocks take turns in an order that `seed` permutes. A real GPU does what it does."""
    return nullcontext() if real() else control.checked(seed)


def order(seed: int) -> AbstractContextManager[None]:
    """Threads and blocks take turns in a permuted order. A real GPU has its own."""
    return nullcontext() if real() else control.order(seed)


@contextmanager
def race() -> Iterator[None]:
    """A test of what nothing orders: it is found, and raised."""
    with pytest.raises(RuntimeError):
        yield
    assert any("race" in problem for problem in control.take_problems())


def last_product(count: Counts) -> tuple[int, int]:
    """cuBLAS's compute type and math mode of the last product that was counted."""
    _, compute, mode = [each for each in count.names if each.startswith("gemm")][-1].split()
    return int(compute), int(mode)
