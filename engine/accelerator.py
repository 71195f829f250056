"""`engine.accelerator`: the same questions as `engine.cuda`, in the words that name no vendor."""

from engine import cuda
from engine.cuda import device_count as device_count
from engine.cuda import is_available as is_available
from engine.cuda import synchronize as synchronize
from engine.device import device

current_device_index = cuda.current_device


def current_accelerator(check_available: bool = False) -> device | None:
    """device("cuda") where CuPy finds a GPU, else None."""
    return device("cuda") if is_available() else None
