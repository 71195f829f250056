"""What a device lets a block have: compute capability and shared memory, more than it gets unasked where permitted."""

from functools import lru_cache
from typing import Any

from engine.kernels.cuda.launch import Launch, Source
from engine.memory import backend

TENSOR_CORES = 80  # the compute capability, times ten, from which mma.cuh works: bfloat16, TF32, asynchronous copies
_UNASKED = 48 << 10  # bytes of shared memory


def limits() -> tuple[int, int]:
    """Of the current device: compute capability times ten, and bytes of shared memory a block may have."""
    return _limits(backend.require_cupy().cuda.runtime.getDevice())


@lru_cache
def _limits(index: int) -> tuple[int, int]:
    device = backend.require_cupy().cuda.Device(index)
    return int(device.compute_capability), int(device.attributes["MaxSharedMemoryPerBlockOptin"])


_permitted: dict[int, Launch] = {}


def ready(source: Source, kernel: str, macros: dict[str, str], shared_bytes: int) -> Launch:
    """The kernel, permitted to use that much shared memory."""
    launch: Any = source.get(kernel, **macros)
    if shared_bytes > _UNASKED and _permitted.get(id(launch)) is not launch:
        driver = backend.require_cupy().cuda.driver
        driver.funcSetAttribute(launch.ptr, driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes)
        _permitted[id(launch)] = launch  # kept, so that its id stays its own
    return launch
