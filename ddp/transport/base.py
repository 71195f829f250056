"""The seam between the Reducer and the ways to sum: what a transport is, and which dtypes it sums.

The rules every transport keeps (`tests/ddp/transport/test_transport.py` runs the same cases over the whole registry):

* **Buffers.** `allocate` is collective and called in the same order, with the same count and dtype, on every rank. The
  buffer's `array` is a flat array that the caller fills in place; after `wait` it holds the sum, bit for bit the same
  on every rank. Memory lives as long as the last array that looks at it, also after `close`.
* **Order of summation.** Element by element in rank order, `((x0 + x1) + x2) + ...`, then one true division by
  `divisor`, then one rounding to the dtype. So the bits depend neither on the bucket's size, nor on who summed which
  part, nor on arrival time, nor on the transport. float16 and bfloat16 are summed and divided in float32.
  `ddp/transport/order.py` is the only place that knows the order, and that of a buffer with `shards`: a tree, whose
  bits do not depend on the number of ranks either.
* **Header.** A few float64 that are summed with the buffer, in rank order, and never divided: exact for integers up to
  2**53. The ranks' headers are known before the first element is summed, so weights can travel in them.
* **Rounds.** `start` says that this rank has filled the buffer; from then until `wait` returns nobody but the transport
  touches it. Every rank starts the same buffers in the same order. `poll` makes progress and never blocks; `wait`
  blocks until the result is there and meanwhile makes progress on every buffer that was started, so ranks may wait in
  different orders. Two users of one group whose starts may interleave differently on different ranks (two wrapped
  modules in one graph) each take an `independent` transport, and wait in the same order.
* **Threads.** One thread at a time (`MPI_THREAD_SERIALIZED`): a transport takes no lock of its own, but one that is
  moved on by a thread (`ddp.transport.background`) does.
* **Devices.** These are the rules for host memory; `ddp.transport.cuda.common` adds what holds for buckets on a GPU.
* **Errors.** A misuse raises at once on the rank that commits it; a rank that dies is the launcher's business, which
  ends the job. An exception in the midst of a sum (MPI's, no memory, Ctrl-C) has left out something that other ranks
  wait for, and what comes next would be taken for it: from then on the transport raises, whatever it is asked.
"""

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

if TYPE_CHECKING:
    from mpi4py import MPI

    from ddp.transport.shards import Shards

CACHE_LINE = 64  # bytes; slices, flags and buckets start on such a boundary so that two ranks never write one line

# The dtype in which a dtype is summed: the one table, enumerated by the tests.
ACCUMULATORS: dict[str, str] = {
    "float16": "float32",
    "bfloat16": "float32",
    "float32": "float32",
    "float64": "float64",
    "complex64": "complex64",
    "complex128": "complex128",
    "int8": "int8",
    "int16": "int16",
    "int32": "int32",
    "int64": "int64",
    "uint8": "uint8",
}


class Buffer(Protocol):
    """A flat array to be summed over the ranks, with its header."""

    array: NDArray[Any]
    """Shape (count,): this rank's addends, and after `wait` the sum."""
    header: NDArray[np.float64]
    """Shape (header,): summed like the array, never divided."""
    shards: "Shards | None"
    """Where the sum is made of shards: takes what lies in `array` for each that this rank carries, before `start`."""


class Transport(Protocol):
    """How bytes are summed over the ranks of one group; see the module for the rules."""

    name: str
    rank: int
    size: int
    progress: str
    """What moves sums on between `start` and `wait`, with what was measured, for logs."""

    def allocate(
        self,
        count: int,
        dtype: DTypeLike,
        header: int = 0,
        shards: int | None = None,
    ) -> Buffer:
        """Collective: a zeroed buffer of `count` elements and `header` float64, with room for the shards that this rank
        carries of so many. TypeError: `dtype` is not summed.
        """
        ...

    def start(self, buffer: Any, divisor: float | None = 1.0) -> None:
        """This rank has filled `buffer`: sum it and divide by `divisor`. Returns at once.

        divisor: alike on every rank; None for the mean weighted by the ranks' weights (`ddp.transport.headers`) (if
        these are all equal, for the plain mean, bit for bit). With shards a rank's weight is the sum of its shards',
        and these are in the addends. RuntimeError if the buffer is in flight, or the transport closed; TypeError if
        integers are to be divided.
        """
        ...

    def poll(self) -> None:
        """Do what has become possible for the buffers in flight; never blocks. Cheap enough for every hook."""
        ...

    def wait(self, buffer: Any) -> None:
        """Block until `buffer.array` and `buffer.header` hold the sums. RuntimeError if it was not started."""
        ...

    def is_done(self, buffer: Any) -> bool:
        """Whether `wait` for a buffer in flight would return at once. Makes no progress: `poll` does."""
        ...

    def independent(self) -> "Transport":
        """Collective: a transport of the same ranks; no order among its buffers and this one's is needed."""
        ...

    def close(self) -> None:
        """Collective: give back communicators and windows. Arrays already handed out stay valid.

        Where a buffer is in flight, because an exception came in between, they are left to the end of MPI.
        """
        ...


def accumulator_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """The dtype in which arrays of `dtype` are summed. Raises TypeError, naming the known ones, when there is none."""
    name = np.dtype(dtype).name
    if name not in ACCUMULATORS:
        raise TypeError(f"transport: arrays of dtype {name} are not summed, expected one of {', '.join(ACCUMULATORS)}")
    return np.dtype(ACCUMULATORS[name])


def aligned_zeros(count: int, dtype: DTypeLike) -> NDArray[Any]:
    """Zeros of shape (count,) in private memory that starts on a cache line."""
    dtype = np.dtype(dtype)
    raw = np.zeros(count * dtype.itemsize + CACHE_LINE, np.uint8)
    shift = -raw.ctypes.data % CACHE_LINE
    return raw[shift : shift + count * dtype.itemsize].view(dtype)


def closed(name: str) -> RuntimeError:
    """The error for starting a buffer of a transport that was closed."""
    return RuntimeError(
        f"transport {name}: it was closed with its process group; after init_process_group wrap the model again"
    )


def stopped(name: str, cause: str) -> RuntimeError:
    """The error of a transport that an exception, `cause` in words, has ended in the midst of a sum."""
    return RuntimeError(
        f"transport {name}: {cause} ended it in the midst of a sum, and the other ranks wait for its part; end the job"
    )


def in_words(error: BaseException) -> str:
    """Kind and text; the exception itself would keep what its traceback looks at."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is at least `value`."""
    return -(-value // multiple) * multiple


def slice_bounds(count: int, itemsize: int, parts: int) -> list[int]:
    """`parts + 1` boundaries that cut `count` elements into slices of whole cache lines (the last ones may be short or
    empty).
    """
    step = round_up(-(-count // parts), CACHE_LINE // itemsize)
    return [min(part * step, count) for part in range(parts + 1)]


def required(name: str, comm: "MPI.Intracomm | None") -> "MPI.Intracomm":
    """The communicator of a transport that is not for one rank only. Raises RuntimeError where there is none."""
    if comm is None:
        raise RuntimeError(f"transport {name}: it needs MPI, which this process runs without; use 'loopback'")
    return comm
