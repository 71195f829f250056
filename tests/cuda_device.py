"""What tests ask of the GPU they run on, where it is one of ours: CuPy itself on the CPU driver (tests/cuda_driver), or
the imitation of CuPy (tests/cuda_simulator). With ALLSTRIDE_CUDA_DRIVER set it is the driver.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import pytest

from engine.memory import backend
from tests import cuda_driver, cuda_simulator
from tests.cuda_driver import control
from tests.cuda_driver.counts import Counts
from tests.cuda_simulator import cublas

RUNNER = "tests/ddp/cuda/on_simulator.py"


def on_driver() -> bool:
    """Whether this run of pytest is on the CPU driver, loaded or not yet."""
    return bool(os.environ.get("ALLSTRIDE_CUDA_DRIVER"))


def install() -> None:
    """A GPU of ours for the whole of this process, a rank for example."""
    if on_driver():
        cuda_driver.load()
    else:
        cuda_simulator.install()


def uninstall() -> None:
    """At its end: problems that nobody has taken are raised."""
    if cuda_driver.loaded():
        control.raise_problems()
    else:
        cuda_simulator.uninstall()


def runner() -> list[str]:
    """What stands before a script that wants a GPU where there is none."""
    if not on_driver():
        try:
            backend.require_cupy()
        except RuntimeError:
            pass
        else:
            return []
    return [RUNNER]


def ours() -> bool:
    """Whether there is no real GPU: what it is asked is counted, races are found, `pow` is the host's."""
    return cuda_driver.loaded() is not None or cuda_simulator.installed()


def several(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """A device of ours for each of `count` ranks, and NCCL's stand-in: what NCCL needs."""
    if cuda_driver.loaded():
        from tests.cuda_driver import nccl as stand_in

        assert stand_in.runtime.getDeviceCount() >= count
        monkeypatch.setitem(sys.modules, "cupy.cuda.nccl", stand_in)
        return
    from tests.cuda_simulator import nccl, streams

    monkeypatch.setattr(streams, "_count", max(count, streams.device_count()))
    monkeypatch.setitem(sys.modules, "cupy.cuda.nccl", nccl)


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


def full(monkeypatch: pytest.MonkeyPatch) -> AbstractContextManager[None]:
    """The device of ours that is current has no more memory than is in use now."""
    if cuda_driver.loaded():
        return control.full()
    from tests.cuda_simulator import memory

    arena = memory.arena_of(0)
    monkeypatch.setattr(memory, "_capacity", arena.used - arena.left)
    return nullcontext()


def without_mapping(monkeypatch: pytest.MonkeyPatch) -> AbstractContextManager[None]:
    """Other processes' memory cannot be mapped."""
    if cuda_driver.loaded():
        return control.without_mapping()
    from tests.cuda_simulator import ipc
    from tests.cuda_simulator.errors import CUDARuntimeError

    def fail(handle: bytes) -> int:
        raise CUDARuntimeError("cudaErrorMapBufferObjectFailed")

    monkeypatch.setattr(ipc, "open_memory", fail)
    return nullcontext()


def last_product(count: Counts) -> tuple[int, int]:
    """cuBLAS's compute type and math mode of the last product that was counted."""
    if cuda_driver.loaded():
        _, compute, mode = [each for each in count.names if each.startswith("gemm")][-1].split()
        return int(compute), int(mode)
    return cublas.calls[-1][1:]
