"""How many threads work: those of the BLAS that NumPy came with, and ours, between which big kernels are shared.

How work is shared never changes a result: parts are elements that do not depend on each other, and sums over parts are
made of blocks that the sizes alone decide, joined in their order. Sizes and the number of threads decide which parts
there are and what the BLAS is told; who sleeps at the moment decides only who takes them. The BLAS promises none of
that for what it shares itself: products with a vector or of fewer than `engine.ops.matmul.kernels.product.FROM`
multiplications, and all on CPUs without AVX-512. So the last bits of a model can depend on the number of threads (an
LSTM's bias gradients do with 3 and 5).

OpenBLAS's threads do not sleep after a product but spin, for 34 ms unless told otherwise (OPENBLAS_THREAD_TIMEOUT, see
`engine/__init__.py`), and take the cores from ours. While parts run, the BLAS works on the threads that call it.

Ours look for work, and for the end of others' parts, for 0.2 ms before they sleep: who wakes a thread spends 15 µs on
it, on a virtual machine, and the thread comes 40 to 90 later. So who sleeps is not woken for little work, but when a
good deal of it has come. They look and sleep in compiled code, without the interpreter's lock: who asks for that while
it is taken sleeps, too, and is woken by a call of the system whenever the other thread comes to a kernel. So a thread
that has posted work is given time to be in compiled code, and all look whether the lock is free before they ask for it.
"""

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from math import isqrt
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeVar

import numpy as np

from engine.kernels.lock import look_for_lock
from engine.sharing.kernels import compiled_post, compiled_sleep, compiled_wait

T = TypeVar("T")

# (set, get) in the order of likelihood: NumPy's wheels, a distribution's OpenBLAS, MKL.
_FUNCTIONS = (
    ("scipy_openblas_set_num_threads64_", "scipy_openblas_get_num_threads64_"),
    ("openblas_set_num_threads64_", "openblas_get_num_threads64_"),
    ("openblas_set_num_threads", "openblas_get_num_threads"),
    ("MKL_Set_Num_Threads", "MKL_Get_Max_Threads"),
)


@cache
def _blas() -> tuple[Callable[[int], Any], Callable[[], int]]:
    # A symbol is looked for in the libraries the extension module was linked with, so this finds NumPy's own BLAS.
    # It keeps the interpreter's lock while it is told: to get that back takes longer.
    library = ctypes.PyDLL(np.linalg._umath_linalg.__file__)
    for setter, getter in _FUNCTIONS:
        if hasattr(library, setter):
            return getattr(library, setter), getattr(library, getter)
    raise RuntimeError(
        "NumPy's BLAS is neither OpenBLAS nor MKL, and its number of threads cannot be changed while it runs; set its "
        "environment variable (OMP_NUM_THREADS, VECLIB_MAXIMUM_THREADS ...) before Python starts"
    )


# How many elements of one pass over memory take as long as handing a piece of it to another thread: some 8 µs (1024 x
# 512 floats through relu take 60; the same hand-over by concurrent.futures takes 12 to 16).
HANDOVER = 1 << 16
PRODUCTS = 8  # multiplications of a matrix product in the time of one such element
WORTH = 4 * HANDOVER  # below that `in_pieces` shares nothing, and a caller need not ask it
_WAKING = 4 * WORTH  # what has to come, at once or one after another, before a thread that sleeps is woken for it

# What is waited for. Counters in words of memory, on cache lines of their own: a change says that a queue may have got
# something, and nothing else, so that it does no harm when two threads count as one.
_POSTED, _ENDED, _ASLEEP = 0, 8, 16  # the last one: how many of our threads sleep and wait to be woken
_counters = np.zeros(24, np.int64)
_WHERE = _counters.ctypes.data

_LOOKING = 200e-6  # seconds for which a thread looks before it sleeps
_UNTIL_COMPILED = 4e-6  # from a post until who has posted is in compiled code: each worker comes so much after the last
_LOOKING_FOR_LOCK = 20e-6  # for which the end of a kernel looks whether another thread lets go of the lock
_UNTIL_LOOKING = 2e-6  # from the end of the last part until the worker looks for more


class _Workers(NamedTuple):
    """The threads beside those that share."""

    work: "SimpleQueue[Any]"
    """What they are to help with; None dismisses one."""
    number: int
    waiting: "_Waiting"


class _Waiting(NamedTuple):
    """How it is waited for what is in a queue."""

    wait_for: Callable[..., int]
    """Of `engine.sharing.kernels`."""
    looks_a_second: float
    """0 where there are more threads than processors: looking would keep others from their work."""
    bed: tuple[int, ...] = ()
    """Where it is counted that this thread sleeps, and the file that wakes it; else it sleeps at the queue."""

    def get(self, queue: "SimpleQueue[T]", counter: int, seconds: float) -> T:
        """The next of a queue. seconds: to wait more when the counter has changed."""
        looks, more = int(_LOOKING * self.looks_a_second), int(seconds * self.looks_a_second)
        while looks:
            known = int(_counters[counter])
            try:
                return queue.get_nowait()
            except Empty:
                if not self.wait_for(_WHERE + 8 * counter, known + 1, looks, more, *self.bed):
                    break
        return queue.get()


_number: int | None = None  # None: as many as the BLAS has, which nobody has told otherwise
_workers: _Workers | None = None
_pipe: tuple[int, int] | None = None  # who sleeps reads from it
_put_off = 0  # work that no thread was woken for, since the last that was shared
_here = threading.local()  # in_part: whether this thread works on a part, which it does not share further
_telling = threading.Lock()
_sharing = 0  # calls of `share` under way, on any thread; meanwhile the BLAS has one thread


def set_num_threads(number: int) -> None:
    """Sets the number of threads of matrix products and other big kernels.

    Raises: RuntimeError for a number below 1, or where the BLAS cannot be told.
    """
    global _number
    if not isinstance(number, int) or isinstance(number, bool):
        raise TypeError(f"set_num_threads expects an int, but got {type(number).__name__}")
    if number < 1:
        raise RuntimeError(f"set_num_threads expects a positive integer, got {number}")
    with _telling:
        _blas()[0](1 if _sharing else number)
        _dismiss_workers()
        _number = number


def get_num_threads() -> int:
    """The number of threads of matrix products and other big kernels."""
    global _number
    if _number is None:
        _number = int(_blas()[1]())
    return _number


def usable_threads() -> int:
    """The same, and 1 where the BLAS does not say."""
    global _number
    if _number is None:
        try:
            _number = get_num_threads()
        except RuntimeError:
            _number = 1
    return _number


def share(function: Callable[[Any], Any], parts: Sequence[Any], work: int | None = None) -> None:
    """Calls `function` on each part, on as many threads as are set; it must release the interpreter's lock to gain.

    work: all of it, in elements of a plain pass over memory, where it may be too little to call other threads. Every
    thread takes the next part when it is done with one, so one that the machine keeps busy otherwise delays nobody.
    What a part shares it does by itself. Raises what the first failing part raised, after all have ended.
    """
    number = usable_threads()
    alone = number == 1 or len(parts) < 2 or getattr(_here, "in_part", False)
    if alone or (work is not None and number_for(work, len(parts)) < 2):
        for part in parts:
            function(part)
        return
    # Lists and queues, whose operations are indivisible, instead of locks. A worker reaches the function through
    # `held` only: one that comes late keeps no array alive.
    held, numbered, ended = [function], iter(tuple(enumerate(parts))), SimpleQueue[Any]()
    errors, unseen = [], len(parts)
    workers = _call_workers(number)
    try:
        _here.in_part = True
        if work is None or _is_worth_waking(workers, work):
            for _ in range(min(number, len(parts)) - 1):
                workers.work.put((held, numbered, ended))
            _wake(min(number, len(parts)) - 1)
        for place, part in numbered:
            unseen -= 1
            try:
                function(part)
            except BaseException as error:  # noqa: BLE001 - raised below, when the other threads have ended
                errors.append((place, error))
        for _ in range(unseen):
            place, problem = workers.waiting.get(ended, _ENDED, _UNTIL_LOOKING)
            if problem is not None:
                errors.append((place, problem))
    finally:
        _here.in_part = False
        held.clear()
        _release_blas()
    if errors:
        raise min(errors, key=lambda pair: pair[0])[1]


def pieces(size: int, least: int) -> list[slice]:
    """0 ... size cut into one piece a thread, none of them (but a last one) below `least`."""
    return cut(size, max(min(usable_threads(), size // max(least, 1)), 1))


def number_for(work: int, size: int) -> int:
    """How many threads, and no more than `size`, make the least time of so much work.

    work: all of it, in elements of a plain pass over memory. n pieces take the time of one divided by n, and that of n
    handovers one after the other: the least for n = sqrt(work / HANDOVER), and no more than the threads there are.
    """
    return 1 if work < WORTH else min(usable_threads(), size, isqrt(work // HANDOVER))


def _is_worth_waking(workers: _Workers, work: int) -> bool:
    """Whether this is to be shared now: some of the others look for work, or a good deal of it has come since they
    sleep.
    """
    global _put_off
    _put_off += work
    if _counters[_ASLEEP] >= workers.number and _put_off < _WAKING:
        return False
    _put_off = 0
    return True


def in_pieces(function: Callable[[slice], Any], size: int, work: int) -> None:
    """Calls `function` on all of 0 ... size, or on pieces of it on several threads where :func:`number_for` says so."""
    number = number_for(work, size)
    if number < 2:
        function(slice(0, size))
    else:
        share(function, cut(size, number), work)


def cut(size: int, number: int) -> list[slice]:
    """0 ... size in so many pieces."""
    ends = [-(-size * place // number) for place in range(number + 1)]
    return [slice(*pair) for pair in pairwise(ends)] if size else []


def _call_workers(number: int) -> _Workers:
    """The other threads, which are started the first time; the BLAS gets by with one thread from here."""
    global _workers, _sharing
    with _telling:
        if _workers is None:
            _workers = _start_workers(number - 1)
        _sharing += 1
        if _sharing == 1:
            _blas()[0](1)
        return _workers


def _start_workers(count: int) -> _Workers:
    global _pipe
    wait, looks = compiled_wait(), 1000
    enough = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    seconds = []
    for _ in range(3 if count < enough else 0):
        began = time.perf_counter()
        wait(_WHERE, int(_counters[_POSTED]) + 1, looks, 0)
        seconds.append(time.perf_counter() - began)
    rate = looks / min(seconds) if seconds else 0.0
    look_for_lock(int(_LOOKING_FOR_LOCK * rate))
    if _pipe is None:
        _pipe = os.pipe()
    workers = _Workers(SimpleQueue(), count, _Waiting(wait, rate))
    theirs = _Waiting(compiled_sleep(), rate, (_WHERE + 8 * _ASLEEP, _pipe[0]))
    for place in range(count):
        # daemons: the interpreter need not wake them to end
        threading.Thread(target=_help, args=(workers.work, theirs, place), name="engine", daemon=True).start()
    return workers


def _wake(number: int) -> None:
    """Tells those who look that there is work, and so many of those who sleep."""
    asleep = compiled_post()(_WHERE + 8 * _POSTED, _WHERE + 8 * _ASLEEP)
    if asleep and _pipe is not None:
        os.write(_pipe[1], bytes(min(asleep, number)))


def _release_blas() -> None:
    global _sharing
    with _telling:
        _sharing -= 1
        if not _sharing:
            _blas()[0](usable_threads())


def _help(work: "SimpleQueue[Any]", waiting: _Waiting, place: int) -> None:
    """What a worker does, until it is dismissed."""
    _here.in_part = True
    seconds = (place + 1) * _UNTIL_COMPILED
    while (wanted := waiting.get(work, _POSTED, seconds)) is not None:
        _take(*wanted)
        _counters[_ENDED] += 1  # late: who hears of it is to find the interpreter's lock free


def _take(held: list[Any], numbered: Iterator[tuple[int, Any]], ended: "SimpleQueue[Any]") -> None:
    """Takes parts of what is shared, a function of its own so that nothing of the last one is kept while waiting."""
    for place, part in numbered:
        problem = None
        try:
            held[0](part)
        except BaseException as error:  # noqa: BLE001 - raised by the thread that shares
            problem = error
        ended.put((place, problem))


def _dismiss_workers() -> None:
    """Ends the workers; what they have not taken of work under way, the thread that shares it does."""
    global _workers
    if _workers is not None:
        for _ in range(_workers.number):
            _workers.work.put(None)
        _wake(_workers.number)
        look_for_lock(0)
    _workers = None


def _start_anew() -> None:
    """Threads do not live on in the child of a fork."""
    global _workers, _sharing, _telling, _here, _pipe
    _workers, _telling, _here = None, threading.Lock(), threading.local()
    _counters[_ASLEEP] = 0
    if _pipe is not None:
        for end in _pipe:
            os.close(end)
        _pipe = None
    if _sharing:
        _sharing = 0
        _blas()[0](usable_threads())


os.register_at_fork(after_in_child=_start_anew)
