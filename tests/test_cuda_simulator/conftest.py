"""The simulated GPU behaves like CuPy and CUDA, and finds what it is there to find."""

from collections.abc import Iterator
from typing import Any

import pytest

from engine.memory import backend
from tests import cuda_simulator as simulator
from tests.cuda_simulator import races


@pytest.fixture
def xp() -> Iterator[Any]:
    """The stand-in for CuPy, on two devices of 64 MiB."""
    simulator.install(devices=2, memory=64 << 20)
    try:
        yield backend.require_cupy()
    finally:
        races.found.clear()
        simulator.uninstall()


@pytest.fixture
def two_streams(xp: Any) -> tuple[Any, Any]:
    """Two streams that wait for nothing."""
    return xp.cuda.Stream(non_blocking=True), xp.cuda.Stream(non_blocking=True)
