"""CuPy on the CPU driver."""

from collections.abc import Iterator
from types import ModuleType

import pytest

from tests import cuda_device
from tests.cuda_driver import control


@pytest.fixture
def cupy() -> Iterator[ModuleType]:
    """Problems that the test has not taken fail it."""
    if cuda_device.real():
        pytest.skip("there is a GPU, which CuPy finds in the place of the CPU driver")
    with control.watched():
        import cupy as module

        yield module
