"""What the tests of the GPU share."""

import pytest

import engine
from engine.backends import cudnn
from tests import cuda_device


@pytest.fixture
def on_driver(cuda: engine.device) -> engine.device:
    """`cuda`, where it is the CPU driver's."""
    if not cuda_device.ours():
        pytest.skip("counts what only the CPU driver counts")
    return cuda


@pytest.fixture
def two(cuda: engine.device) -> tuple[engine.device, engine.device]:
    """Two GPUs."""
    if engine.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    return engine.device("cuda", 0), engine.device("cuda", 1)


@pytest.fixture
def full_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolutions of float32 may use TF32 otherwise, as in PyTorch."""
    monkeypatch.setattr(cudnn, "allow_tf32", False)
