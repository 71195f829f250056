"""How many threads work: those of the BLAS that NumPy came with, and ours, between which big kernels are shared.

How work is shared never changes a result: parts are elements that do not depend on each other, and sums over parts are
made of blocks that the sizes alone decide, joined in their order. The BLAS does not promise that of what it shares
itself: products with a vector or of fewer than `engine.ops.matmul.kernels.product.FROM` multiplications, and all on
CPUs without AVX-512. So the last bits of a model can depend on the number of threads (an LSTM's bias gradients do with
3 and 5).

OpenBLAS's threads do not sleep after a product but spin, for 34 ms unless told otherwise (OPENBLAS_THREAD_TIMEOUT, see
`engine/__init__.py`), and take the cores from ours. While parts run, the BLAS works on the threads that call it.
"""

import ctypes
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from math import isqrt
from queue import SimpleQueue
from typing import Any

import numpy as np

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
    library = ctypes.CDLL(np.linalg._umath_linalg.__file__)
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

_number: int | None = None  # None: as many as the BLAS has, which nobody has told otherwise
_work: "SimpleQueue[Any] | None" = None  # where the other threads wait for what they are to help with
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


def share(function: Callable[[Any], Any], parts: Sequence[Any]) -> None:
    """Calls `function` on each part, on as many threads as are set; it must release the interpreter's lock to gain.

    Every thread takes the next part when it is done with one, so one that the machine keeps busy otherwise delays
    nobody. What a part shares it does by itself. Raises what the first failing part raised, after all have ended.
    """
    number = usable_threads()
    if number == 1 or len(parts) < 2 or getattr(_here, "in_part", False):
        for part in parts:
            function(part)
        return
    # Lists and queues, whose operations are indivisible, instead of locks. A worker reaches the function through
    # `held` only: one that comes late keeps no array alive.
    held, numbered, ended = [function], iter(tuple(enumerate(parts))), SimpleQueue[Any]()
    errors, unseen = [], len(parts)
    work = _call_workers(number)
    try:
        _here.in_part = True
        for _ in range(min(number, len(parts)) - 1):
            work.put((held, numbered, ended))
        for place, part in numbered:
            unseen -= 1
            try:
                function(part)
            except BaseException as error:  # noqa: BLE001 - raised below, when the other threads have ended
                errors.append((place, error))
        for _ in range(unseen):
            place, problem = ended.get()
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
    return _cut(size, max(min(usable_threads(), size // max(least, 1)), 1))


def in_pieces(function: Callable[[slice], Any], size: int, work: int) -> None:
    """Calls `function` on all of 0 ... size, or on pieces of it on several threads where that is faster.

    work: all of it, in elements of a plain pass over memory. n pieces take the time of one divided by n, and that of n
    handovers one after the other: the least for n = sqrt(work / HANDOVER), and no more than the threads there are.
    """
    number = 1 if work < WORTH else min(usable_threads(), size, isqrt(work // HANDOVER))
    if number < 2:
        function(slice(0, size))
    else:
        share(function, _cut(size, number))


def _cut(size: int, number: int) -> list[slice]:
    ends = [-(-size * place // number) for place in range(number + 1)]
    return [slice(*pair) for pair in pairwise(ends)] if size else []


def _call_workers(number: int) -> "SimpleQueue[Any]":
    """The queue of the other threads, which are started the first time; the BLAS gets by with one thread from here."""
    global _work, _sharing
    with _telling:
        if _work is None:
            _work = SimpleQueue()
            for _ in range(number - 1):
                # daemons: the interpreter need not wake them to end
                threading.Thread(target=_help, args=(_work,), name="engine", daemon=True).start()
        _sharing += 1
        if _sharing == 1:
            _blas()[0](1)
        return _work


def _release_blas() -> None:
    global _sharing
    with _telling:
        _sharing -= 1
        if not _sharing:
            _blas()[0](usable_threads())


def _help(work: "SimpleQueue[Any]") -> None:
    """What a worker does, until it is dismissed."""
    _here.in_part = True
    while (wanted := work.get()) is not None:
        _take(*wanted)


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
    global _work
    if _work is not None:
        for _ in range(usable_threads() - 1):
            _work.put(None)
    _work = None


def _start_anew() -> None:
    """Threads do not live on in the child of a fork."""
    global _work, _sharing, _telling, _here
    _work, _telling, _here = None, threading.Lock(), threading.local()
    if _sharing:
        _sharing = 0
        _blas()[0](usable_threads())


os.register_at_fork(after_in_child=_start_anew)
