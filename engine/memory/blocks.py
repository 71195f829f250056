"""Device memory: the allocator, what it counts (`engine.cuda.memory` has the questions), and who still uses a block on
another stream.

Blocks come from CuPy's pool, in which a freed block can be had at once by the stream it was allocated on. That is right
as long as no other stream uses it; `Tensor.record_stream` says that one does, and then the block goes back to the pool
only after an event of that stream. CuPy's pool counts what is in use, but neither a peak nor what each request was;
`install` puts one Python call around its allocations and frees that does.
"""

import gc
import weakref
from collections import deque
from typing import Any

from engine.memory import backend
from engine.memory.guard import on_gpu


class OutOfMemoryError(RuntimeError):
    """A GPU has not so much memory; the message says how much was asked for, is free, and is held by this process."""


class _Device:
    """What is known of the memory of one GPU."""

    __slots__ = (
        "allocated",
        "blocks",
        "failures",
        "freed",
        "peak",
        "peak_blocks",
        "peak_reserved",
        "requested",
        "retries",
        "users",
    )

    def __init__(self) -> None:
        self.allocated = self.peak = 0  # bytes
        self.blocks = self.peak_blocks = 0
        self.requested = self.freed = 0  # bytes, since the start
        self.peak_reserved = 0
        self.failures = self.retries = 0
        # Block, by its identity -> streams besides its own that use it, by their addresses. Not an attribute of the
        # block: were a stream garbage together with it, it could be destroyed first.
        self.users: dict[int, dict[int, Any]] = {}


_devices: dict[int, _Device] = {}
# (events of streams that use it, a block nobody holds any more), oldest first
_waiting: deque[tuple[list[Any], Any]] = deque()
# Address of a capturing stream -> the pool that a CUDA graph allocates from (`engine.cuda.graphs`).
capturing: dict[int, "PrivatePool"] = {}
living_pools: "weakref.WeakSet[PrivatePool]" = weakref.WeakSet()


class PrivatePool:
    """Memory of a CUDA graph, which nobody else is given while the graph can be replayed."""

    def __init__(self) -> None:
        self.pool = backend.require_cupy().cuda.MemoryPool()
        living_pools.add(self)
        # What is not to be given away as long as graphs read it: host memory that they copy, blocks that were freed
        # during a capture though other streams used them.
        self.kept: list[Any] = []


def statistics(index: int) -> _Device:
    """The counters of a GPU."""
    found = _devices.get(index)
    if found is None:
        found = _devices[index] = _Device()
    return found


def install(cupy: Any) -> None:
    """Makes CuPy allocate through here, from now on."""
    global _devices
    _waiting.clear()
    capturing.clear()
    known_devices: dict[int, _Device] = {}
    _devices = known_devices
    seam = backend
    pool = cupy.get_default_memory_pool()
    cuda = cupy.cuda
    pointer_to, current_stream, out_of_memory = (
        cuda.MemoryPointer,
        cuda.get_current_stream,
        cuda.memory.OutOfMemoryError,
    )

    base: Any = cuda.BaseMemory

    class Block(base):
        """One allocation: CuPy's own in `inner`, of the `private` pool of a CUDA graph or of none, counted in `known`.
        What few blocks have is an attribute of the class until one has it: to set one takes 20 ns of 1000.
        """

        __slots__ = ("__dict__", "inner", "known")
        private: PrivatePool | None = None

        def __del__(self) -> None:
            if _devices is not known_devices:  # CuPy was exchanged since, or the interpreter ends
                return
            known, size = self.known, self.size
            known.allocated -= size
            known.freed += size
            known.blocks -= 1
            if known.users and (streams := known.users.pop(id(self), None)) and seam._cupy is cupy:
                _free_later(self, streams)

    def allocate(size: int) -> Any:
        if not size:
            return pool.malloc(0)
        if _waiting:
            free_done()
        private = private_pool(current_stream()) if capturing else None
        source = pool if private is None else private.pool
        try:
            inner = source.malloc(size).mem
        except out_of_memory as error:
            inner = _malloc_again(source, size, error)
        block = made(Block)  # without a constructor, which is one more call
        block.inner = inner
        block.ptr = inner.ptr
        block.size = size = inner.size  # rounded: what is counted
        block.device_id = index = inner.device_id
        if private is not None:
            block.private = private
        block.known = known = known_devices.get(index) or statistics(index)
        known.requested += size
        known.allocated = allocated = known.allocated + size
        known.blocks = blocks = known.blocks + 1
        if allocated > known.peak:
            known.peak = allocated
        if blocks > known.peak_blocks:
            known.peak_blocks = blocks
        return pointer_to(block, 0)

    made: Any = base.__new__
    cuda.set_allocator(allocate)


def private_pool(raw: Any) -> PrivatePool | None:
    """The pool of the CUDA graph that a stream's work goes into: its own, or that of the capture it was drawn into."""
    found = capturing.get(raw.ptr)
    if found is None and raw.ptr > 2 and raw.is_capturing():  # the default streams are never captured
        return next(reversed(capturing.values()))
    return found


def _free_later(block: Any, streams: dict[int, Any]) -> None:
    """Keeps a block that nobody holds any more until the streams that use it have come so far."""
    if block.private is not None:
        block.private.kept.append(block.inner)
        return
    events = []
    cuda = backend.require_cupy().cuda
    for raw in streams.values():
        captured = private_pool(raw) if capturing else None
        if captured is not None:  # an event of a capture cannot be asked whether it is done
            captured.kept.append(block.inner)
            return
        with on_gpu(block.device_id if raw.device_id < 0 else raw.device_id):  # an event is recorded on its own GPU
            event = cuda.Event(disable_timing=True)
            event.record(raw)
        events.append(event)
    _waiting.append((events, block.inner))


def free_done() -> None:
    """Gives blocks back that no stream uses any more. Asking an event does not wait for it."""
    if capturing:  # which forbids to ask
        return
    while (oldest := _take_oldest()) is not None:
        if not all(event.done for event in oldest[0]):
            _waiting.appendleft(oldest)
            return


def _take_oldest() -> tuple[list[Any], Any] | None:
    """Whoever looks at a block that waits has it to himself: several threads allocate."""
    try:
        return _waiting.popleft()
    except IndexError:
        return None


def _malloc_again(source: Any, size: int, error: BaseException) -> Any:
    """A second attempt after whatever can be freed is free.

    Raises: OutOfMemoryError.
    """
    cupy = backend.require_cupy()
    index = cupy.cuda.runtime.getDevice()
    known = statistics(index)
    if not capturing:
        known.retries += 1
        gc.collect()
        while (oldest := _take_oldest()) is not None:
            for event in oldest[0]:
                event.synchronize()
        note_reserved(index)
        source.free_all_blocks()
        try:
            return source.malloc(size).mem
        except cupy.cuda.memory.OutOfMemoryError:
            pass
    known.failures += 1
    free, total = cupy.cuda.runtime.memGetInfo()
    reserved_now = reserved(index)
    limit = cupy.get_default_memory_pool().get_limit()
    raise OutOfMemoryError(
        f"CUDA out of memory. Tried to allocate {in_words(size)}. GPU {index} has a total capacity of "
        f"{in_words(total)} of which {in_words(free)} is free. This process has reserved {in_words(reserved_now)}, "
        f"of which {in_words(known.allocated)} is allocated by tensors"
        + (f"; its limit is {in_words(limit)} (set_per_process_memory_fraction)" if limit else "")
        + "."
    ) from error


def in_words(number: int) -> str:
    """A number of bytes: "1.50 MiB"."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if number >= size:
            return f"{number / size:.2f} {unit}"
    return f"{number} bytes"


def was_allocated_here(array: Any) -> bool:
    """Whether a raw array's memory is a block of ours; others' is CuPy's own, or that of whoever made it."""
    return hasattr(array.data.mem, "known")


def record_stream(array: Any, raw: Any) -> None:
    """A stream of CuPy's uses the memory of a raw array: what is freed goes back to the pool only after that.

    Raises: RuntimeError for memory that was not allocated here.
    """
    block = array.data.mem
    if not was_allocated_here(array):
        if getattr(block, "size", 0) == 0:
            return
        raise RuntimeError(
            f"record_stream: this memory was not allocated by engine ({type(block).__name__}); whoever made it has to "
            "keep it until the stream is done"
        )
    block.known.users.setdefault(id(block), {})[raw.ptr] = raw


def reserved(index: int) -> int:
    """Bytes that were taken from a GPU, in use or kept for later; memory of CUDA graphs included."""
    with on_gpu(index):
        pools = [backend.require_cupy().get_default_memory_pool(), *(private.pool for private in living_pools)]
        return sum(int(pool.total_bytes()) for pool in pools)


def note_reserved(index: int) -> int:
    """Brings the peak of `reserved` up to date; needed before memory is given back."""
    known = statistics(index)
    known.peak_reserved = max(known.peak_reserved, reserved(index))
    return known.peak_reserved


backend.when_found.append(install)
