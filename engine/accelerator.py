"""`engine.accelerator`: the same questions as `engine.cuda`, in the words that name no vendor."""

from typing import Any

from engine import cuda
from engine.cuda import current_stream as current_stream
from engine.cuda import device_count as device_count
from engine.cuda import empty_cache as empty_cache
from engine.cuda import is_available as is_available
from engine.cuda import max_memory_allocated as max_memory_allocated
from engine.cuda import max_memory_reserved as max_memory_reserved
from engine.cuda import memory_allocated as memory_allocated
from engine.cuda import memory_reserved as memory_reserved
from engine.cuda import memory_stats as memory_stats
from engine.cuda import reset_accumulated_memory_stats as reset_accumulated_memory_stats
from engine.cuda import reset_peak_memory_stats as reset_peak_memory_stats
from engine.cuda import set_stream as set_stream
from engine.cuda import synchronize as synchronize
from engine.rules.device import cuda_without_index, device

current_device_index = current_device_idx = cuda.current_device
set_device_index = set_device_idx = cuda.set_device


def current_accelerator(check_available: bool = False) -> device | None:
    """device(type="cuda"), which names no GPU, as PyTorch's does, where CuPy finds one, else None."""
    return cuda_without_index() if is_available() else None


class device_index(cuda.device):
    """Context manager: another GPU is the one in use inside; None changes nothing."""

    def __init__(self, device: int | None) -> None:
        super().__init__(device)


def get_memory_info(device_index: Any = None) -> tuple[int, int]:
    """(free, total) bytes."""
    return cuda.mem_get_info(device_index)
