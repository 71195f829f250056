"""Which GPU: how many there are, which one is in use, what it is called and can do."""

from types import SimpleNamespace
from typing import Any, Self

from engine.memory.backend import require_cupy
from engine.rules.device import device as _device
from engine.tensor import Tensor


def is_available() -> bool:
    """Whether CuPy can be imported and finds a GPU."""
    try:
        require_cupy()
    except RuntimeError:
        return False
    return True


def is_initialized() -> bool:
    """As `is_available`: there is nothing to initialise besides CuPy."""
    return is_available()


def init() -> None:
    """Looks for CuPy and a GPU. Raises: RuntimeError where one is missing."""
    require_cupy()


def device_count() -> int:
    """Number of GPUs, 0 without CuPy."""
    return int(require_cupy().cuda.runtime.getDeviceCount()) if is_available() else 0


def current_device() -> int:
    """Index of the GPU in use. Raises: RuntimeError where there is none, saying what is missing; as all below."""
    return int(require_cupy().cuda.runtime.getDevice())


def index_of(device: Any) -> int:
    """The index that a device, "cuda:1", 1, or None for the one in use, stands for.

    Raises: ValueError for a device that is no GPU.
    """
    if device is None:
        return current_device()
    if isinstance(device, int):
        return device
    known = _device(device)
    if known.type != "cuda":
        raise ValueError(f"Expected a cuda device, but got: {known}")
    if isinstance(device, str) and ":" not in device:
        return current_device()
    assert known.index is not None
    return known.index


def set_device(device: Any) -> None:
    """Makes a GPU the one in use on this thread; nothing for a negative index."""
    index = index_of(device)
    if index >= 0:
        require_cupy().cuda.runtime.setDevice(index)


class device:
    """Context manager: another GPU is the one in use inside. None and negative indices: nothing changes.

    Args: device: an index, "cuda:1" or an engine.device.
    """

    def __init__(self, device: Any) -> None:
        self.idx = -1 if device is None else index_of(device)
        self._before: list[int] = []

    def __enter__(self) -> Self:
        self._before.append(-1)
        if self.idx >= 0:
            runtime = require_cupy().cuda.runtime
            before = runtime.getDevice()
            if before != self.idx:
                runtime.setDevice(self.idx)
                self._before[-1] = before
        return self

    def __exit__(self, *_: object) -> None:
        before = self._before.pop()
        if before >= 0:
            require_cupy().cuda.runtime.setDevice(before)


class device_of(device):
    """Context manager: the GPU of a tensor is the one in use inside; nothing for a tensor elsewhere."""

    def __init__(self, obj: Tensor) -> None:
        super().__init__(obj.device.index if obj.is_cuda else -1)


def _properties(device: Any) -> dict[str, Any]:
    found: dict[str, Any] = require_cupy().cuda.runtime.getDeviceProperties(index_of(device))
    return found


def get_device_name(device: Any = None) -> str:
    """The GPU's name."""
    name = _properties(device)["name"]
    return name.decode() if isinstance(name, bytes) else str(name)


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """Compute capability, (9, 0) for Hopper."""
    found = _properties(device)
    return int(found["major"]), int(found["minor"])


def get_device_properties(device: Any = None) -> SimpleNamespace:
    """name, major, minor, total_memory (bytes), multi_processor_count, warp_size, max_threads_per_multi_processor,
    shared_memory_per_block, L2_cache_size.
    """
    found = _properties(device)
    return SimpleNamespace(
        name=get_device_name(device),
        major=int(found["major"]),
        minor=int(found["minor"]),
        total_memory=int(found["totalGlobalMem"]),
        multi_processor_count=int(found["multiProcessorCount"]),
        warp_size=int(found["warpSize"]),
        max_threads_per_multi_processor=int(found["maxThreadsPerMultiProcessor"]),
        shared_memory_per_block=int(found["sharedMemPerBlock"]),
        L2_cache_size=int(found["l2CacheSize"]),
    )


def can_device_access_peer(device: Any, peer_device: Any) -> bool:
    """Whether one GPU can read the memory of another directly."""
    return bool(require_cupy().cuda.runtime.deviceCanAccessPeer(index_of(device), index_of(peer_device)))


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether the GPU computes in bfloat16 (compute capability 8 and later)."""
    return is_available() and get_device_capability() >= (8, 0)


def synchronize(device: Any = None) -> None:
    """Waits until a GPU has done all work given to it."""
    require_cupy().cuda.Device(index_of(device)).synchronize()
