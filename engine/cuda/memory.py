"""How much device memory is used, in PyTorch's terms, and how much may be."""

from typing import Any

from engine.cuda.devices import device as _on
from engine.cuda.devices import index_of, is_available
from engine.memory import backend
from engine.memory.blocks import OutOfMemoryError as OutOfMemoryError
from engine.memory.blocks import free_done, in_words, note_reserved, reserved, statistics


def memory_allocated(device: Any = None) -> int:
    """Bytes that tensors on a GPU hold; 0 without a GPU, as all below that count bytes."""
    return statistics(index_of(device)).allocated if is_available() else 0


def memory_reserved(device: Any = None) -> int:
    """Bytes that were taken from the GPU, in use or kept for later; memory of CUDA graphs included."""
    return reserved(index_of(device)) if is_available() else 0


def max_memory_allocated(device: Any = None) -> int:
    """The most bytes that tensors held since the start, or since `reset_peak_memory_stats`."""
    return statistics(index_of(device)).peak if is_available() else 0


def max_memory_reserved(device: Any = None) -> int:
    """The most bytes that were taken from the GPU since the start, or since `reset_peak_memory_stats`."""
    return note_reserved(index_of(device)) if is_available() else 0


memory_cached, max_memory_cached = memory_reserved, max_memory_reserved  # older names


def reset_peak_memory_stats(device: Any = None) -> None:
    """Peaks are counted from now on."""
    if is_available():
        known = statistics(index_of(device))
        known.peak, known.peak_blocks, known.peak_reserved = known.allocated, known.blocks, 0


reset_max_memory_allocated = reset_max_memory_cached = reset_peak_memory_stats


def reset_accumulated_memory_stats(device: Any = None) -> None:
    """What was allocated and freed in sum is counted from now on."""
    if is_available():
        known = statistics(index_of(device))
        known.requested = known.freed = known.failures = known.retries = 0


def memory_stats(device: Any = None) -> dict[str, int]:
    """The counters under PyTorch's names, in bytes and blocks; those of its size classes are not there."""
    if not is_available():
        return {}
    known = statistics(index_of(device))
    return {
        "active_bytes.all.current": known.allocated,
        "active_bytes.all.peak": known.peak,
        "allocated_bytes.all.allocated": known.requested,
        "allocated_bytes.all.current": known.allocated,
        "allocated_bytes.all.freed": known.freed,
        "allocated_bytes.all.peak": known.peak,
        "allocation.all.current": known.blocks,
        "allocation.all.peak": known.peak_blocks,
        "num_alloc_retries": known.retries,
        "num_ooms": known.failures,
        "reserved_bytes.all.current": memory_reserved(device),
        "reserved_bytes.all.peak": note_reserved(index_of(device)),
    }


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """The same as a table."""
    stats = memory_stats(device)
    return "\n".join(f"{name:32} {in_words(stats[name]) if 'bytes' in name else stats[name]}" for name in stats)


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """(free, total) bytes of the GPU, whoever uses it."""
    with _on(index_of(device)):
        free, total = backend.require_cupy().cuda.runtime.memGetInfo()
        return int(free), int(total)


def empty_cache() -> None:
    """Gives unused memory back to the GPU; nothing where there is none."""
    if is_available():
        note_reserved(index_of(None))
        free_done()
        backend.require_cupy().get_default_memory_pool().free_all_blocks()


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    """Tensors get at most this part of the GPU's memory.

    Raises: TypeError unless `fraction` is a number; ValueError unless it is between 0 and 1.
    """
    if isinstance(fraction, bool) or not isinstance(fraction, int | float):
        raise TypeError(f"Invalid type for fraction argument, must be `float`, got {type(fraction).__name__}")
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    with _on(index_of(device)):
        total = backend.require_cupy().cuda.runtime.memGetInfo()[1]
        # CuPy reads 0 as "no limit", one byte is none that anybody can have
        backend.require_cupy().get_default_memory_pool().set_limit(size=max(int(total * fraction), 1))


def get_per_process_memory_fraction(device: Any = None) -> float:
    """The part that `set_per_process_memory_fraction` allows; 1 where there is no limit."""
    with _on(index_of(device)):
        total = backend.require_cupy().cuda.runtime.memGetInfo()[1]
        limit = backend.require_cupy().get_default_memory_pool().get_limit()
        return float(limit) / float(total) if limit else 1.0
