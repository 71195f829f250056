"""How many threads matrix products use. They run in the BLAS that NumPy came with; everything else here is one
thread.
"""

import ctypes
from collections.abc import Callable
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


def set_num_threads(number: int) -> None:
    """Sets the number of threads of matrix products.

    Raises: RuntimeError for a number below 1, or where the BLAS cannot be told.
    """
    if not isinstance(number, int) or isinstance(number, bool):
        raise TypeError(f"set_num_threads expects an int, but got {type(number).__name__}")
    if number < 1:
        raise RuntimeError(f"set_num_threads expects a positive integer, got {number}")
    _blas()[0](number)


def get_num_threads() -> int:
    """The number of threads of matrix products."""
    return int(_blas()[1]())
