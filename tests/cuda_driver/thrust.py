"""In place of `cupy.cuda.thrust`, machine code for GPUs in CuPy's wheel: NumPy sorts, when it is the stream's turn.

The functions have the originals' parameters: addresses of device memory, the keys' dtype, shapes whose last axis is
sorted.
"""

import ctypes
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
from cupy.cuda import common, runtime, stream

from tests import cuda_driver

available = True
_kept: list[tuple[Callable[[Any], None], None]] = []  # what graphs may run once more


def get_build_version() -> int:
    """Of Thrust."""
    return 300102


def sort(dtype: Any, data: int, keys: int, shape: Sequence[int]) -> None:
    """Sorts rows in place."""
    dtype = _checked(dtype)

    def work() -> None:
        found = _array(data, shape, dtype, write=True)
        found[...] = _rows(found, _order(found))

    _queue(work)


def argsort(dtype: Any, indices: int, data: int, keys: int, shape: Sequence[int]) -> None:
    """Sorts rows in place and says where their elements were."""
    dtype = _checked(dtype)

    def work() -> None:
        found = _array(data, shape, dtype, write=True)
        order = _order(found)
        _array(indices, shape, np.dtype(np.int64), write=True)[...] = order
        found[...] = _rows(found, order)

    _queue(work)


def lexsort(dtype: Any, indices: int, keys: int, count: int, size: int) -> None:
    """The order of columns, by the last row of keys first."""
    dtype = _checked(dtype, TypeError)

    def work() -> None:
        rows = _array(keys, (count, size), dtype, write=False)
        _array(indices, (size,), np.dtype(np.int64), write=True)[...] = np.lexsort(rows)

    _queue(work)


def _checked(dtype: Any, error: type[Exception] = NotImplementedError) -> np.dtype:
    try:
        common._get_dtype_id(dtype)
    except ValueError:
        raise error(f"Sorting arrays with dtype '{dtype}' is not supported") from None
    return np.dtype(dtype)


def _order(rows: np.ndarray) -> np.ndarray:
    return np.argsort(rows, axis=-1, kind="stable")


def _rows(rows: np.ndarray, order: np.ndarray) -> np.ndarray:
    return np.take_along_axis(rows, order, axis=-1)


def _array(address: int, shape: Sequence[int], dtype: np.dtype, write: bool) -> np.ndarray:
    size = prod(shape) * dtype.itemsize
    cuda_driver.driver().driver_touch(ctypes.c_void_p(address), ctypes.c_size_t(size), int(write))
    return np.frombuffer((ctypes.c_char * size).from_address(address), dtype).reshape(tuple(shape))


def _queue(work: Callable[[], None]) -> None:
    work_and_argument = (lambda _: work(), None)
    _kept.append(work_and_argument)
    runtime._launchHostFuncUnmanaged(stream.get_current_stream().ptr, work_and_argument)
