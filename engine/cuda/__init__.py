"""`engine.cuda`: whether there is a GPU, which one, and waiting for it. Nothing here imports CuPy until it is asked."""

from typing import Any

from engine.backend import require_cupy
from engine.cuda import amp as amp
from engine.device import device as _device
from engine.random import default_generator


def is_available() -> bool:
    """Whether CuPy can be imported and finds a GPU."""
    try:
        require_cupy()
    except RuntimeError:
        return False
    return True


def device_count() -> int:
    """Number of GPUs, 0 without CuPy."""
    return int(require_cupy().cuda.runtime.getDeviceCount()) if is_available() else 0


def current_device() -> int:
    """Index of the GPU in use. Raises: RuntimeError where there is none, saying what is missing; as all below."""
    return int(require_cupy().cuda.runtime.getDevice())


def _index(device: Any) -> int:
    if device is None:
        return current_device()
    return device if isinstance(device, int) else _device(device).index or 0


def set_device(device: Any) -> None:
    """Makes a GPU the one in use."""
    require_cupy().cuda.Device(_index(device)).use()


def get_device_name(device: Any = None) -> str:
    """The GPU's name."""
    return require_cupy().cuda.runtime.getDeviceProperties(_index(device))["name"].decode()


def synchronize(device: Any = None) -> None:
    """Waits until the GPU has done all work given to it."""
    require_cupy().cuda.Device(_index(device)).synchronize()


def empty_cache() -> None:
    """Gives unused memory back to the GPU; nothing where there is none."""
    if is_available():
        require_cupy().get_default_memory_pool().free_all_blocks()


def is_bf16_supported() -> bool:
    """Whether the GPU computes in bfloat16 (compute capability 8 and later)."""
    return is_available() and int(require_cupy().cuda.Device().compute_capability) >= 80


def manual_seed(seed: int) -> None:
    """Seeds the random numbers of the GPU, which are drawn on the host; nothing where there is no GPU."""
    if is_available():
        default_generator.manual_seed(int(seed))


manual_seed_all = manual_seed
