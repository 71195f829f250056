"""How many threads work: those of the BLAS that NumPy came with, and ours, between which big kernels are shared.

How work is shared never changes a result: parts are elements that do not depend on each other.
"""

import ctypes
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
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


_number: int | None = None  # None: as many as the BLAS has, which nobody has told otherwise
_pool: ThreadPoolExecutor | None = None


def set_num_threads(number: int) -> None:
    """Sets the number of threads of matrix products and other big kernels.

    Raises: RuntimeError for a number below 1, or where the BLAS cannot be told.
    """
    global _number
    if not isinstance(number, int) or isinstance(number, bool):
        raise TypeError(f"set_num_threads expects an int, but got {type(number).__name__}")
    if number < 1:
        raise RuntimeError(f"set_num_threads expects a positive integer, got {number}")
    _blas()[0](number)
    _number = number
    _forget_pool()


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

    Raises what the first failing part raised, after all have ended.
    """
    global _pool
    number = usable_threads()
    if number == 1 or len(parts) < 2:
        for part in parts:
            function(part)
        return
    if _pool is None:
        _pool = ThreadPoolExecutor(number - 1, thread_name_prefix="engine")
    waiting = [_pool.submit(function, part) for part in parts[1:]]
    try:
        function(parts[0])
    finally:
        errors = [work.exception() for work in waiting]
    for error in errors:
        if error is not None:
            raise error


def pieces(size: int, least: int) -> list[slice]:
    """0 ... size cut into one piece a thread, none of them (but a last one) below `least`."""
    number = max(min(usable_threads(), size // max(least, 1)), 1)
    each = -(-size // number)
    return [slice(first, min(first + each, size)) for first in range(0, size, each)] if size else []


def _forget_pool() -> None:
    global _pool
    _pool = None


os.register_at_fork(after_in_child=_forget_pool)  # threads do not live on in a child
