"""How a matrix product is put to cuBLAS: a pure function of the layouts of its operands, remembered.

cuBLAS sees every matrix by columns: a row-major C = A B is what it calls Cᵀ = Bᵀ Aᵀ, whose operands are the same
memory. A plan is made on arrays of NumPy that lie as the operands do and whose elements nobody reads.
"""

import ctypes
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from engine.memory import backend, cublas
from engine.rules.precision import matmul as allowed

Array = Any
Layout = tuple[tuple[int, ...], tuple[int, ...]]  # shape, strides in bytes

_LOOPS_AT_MOST = 16  # calls for a batch whose strides are no single one; beyond, the operand is copied
_DISALLOW_REDUCED_PRECISION = 16  # CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION
_LARGEST = 2**31 - 1  # sizes and leading dimensions are C ints
_TF32 = 77  # CUBLAS_COMPUTE_32F_FAST_TF32
_DEFAULT = -1  # CUBLAS_GEMM_DEFAULT

# NumPy's letter (E: bfloat16) to cuBLAS's element type (cudaDataType_t) and compute type (cublasComputeType_t), and the
# letter of the factors.
TYPES = {
    "e": (2, 68, "f"),
    "E": (14, 68, "f"),
    "f": (0, 68, "f"),
    "d": (1, 70, "d"),
    "F": (4, 68, "F"),
    "D": (5, 70, "D"),
}
# Factors that cuBLAS reads from host memory.
_FACTORS = {(kind, value): np.array(value, kind) for kind in "fdFD" for value in (0, 1)}
_POINTERS = {key: ctypes.c_void_p(array.ctypes.data) for key, array in _FACTORS.items()}

_INT, _LONG, _POINTER = ctypes.c_int, ctypes.c_longlong, ctypes.c_void_p


class Calls:
    """What one product asks of cuBLAS, for each part of a batch, and which operands are copied before."""

    __slots__ = ("_copied", "_each", "_fills", "_kind", "_swapped")

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._fills = False  # with 0: there is nothing to add up
        self._copied: list[tuple[int, ...] | None] = [None, None]  # the shape of a row-major copy
        self._swapped = False
        self._each: list[_Call] = []

    def run(self, a: Array, b: Array, out: Array) -> None:
        """Queues it on the current stream, for arrays of these layouts."""
        if not self._each:
            if self._fills:
                out.fill(0)
            return
        if self._copied[0] is not None or self._copied[1] is not None:
            a, b = _copy(a, self._copied[0], (None, ...)), _copy(b, self._copied[1], (..., None))
        if self._swapped:
            a, b = b, a
        of_a, of_b, of_out = a.data.ptr, b.data.ptr, out.data.ptr
        handle = cublas.handle(0 if self._kind not in "eE" else _math_mode(self._kind))
        for call in self._each:
            call(handle, of_a, of_b, of_out)


class _Call:
    """One call of cuBLAS but for the addresses of the operands: arguments as ctypes passes them."""

    __slots__ = ("_after", "_before", "_between", "_name", "_of_b", "_offsets")

    def __init__(
        self, a: Array, b: Array, out: Array, kind: str, add: bool, tf32: bool, starts: tuple[int, int, int]
    ) -> None:
        element, compute, factor = TYPES[kind]
        (m, n), k = out.shape[-2:], a.shape[-1]
        assert max(m, n, k) <= _LARGEST, "cuBLAS counts in 32 bits"
        count = prod(out.shape[:-2])
        batch = count != 1
        self._name = "cublasGemmStridedBatchedEx" if batch else "cublasGemmEx"
        turned_a, lead_a = _operation(a)
        turned_b, lead_b = _operation(b)
        lead_out = _leading(out, -1)
        assert lead_out is not None

        def matrix(leading: int, array: Array) -> tuple[Any, ...]:
            described = (_INT(element), _INT(leading))
            return (*described, _LONG(_batch_stride(array))) if batch else described

        compute = _TF32 if kind in "fF" and tf32 else compute
        self._before = (*map(_INT, (turned_a, turned_b, m, n, k)), _POINTERS[factor, 1])
        self._between = matrix(lead_a, a)
        self._of_b = (*matrix(lead_b, b), _POINTERS[factor, int(add)])
        counted = (_INT(count),) if batch else ()
        self._after = (*matrix(lead_out, out), *counted, _INT(compute), _INT(_DEFAULT))
        self._offsets = tuple(_address(array) - start for array, start in zip((a, b, out), starts, strict=True))

    def __call__(self, handle: cublas.Handle, a: int, b: int, out: int) -> None:
        from_a, from_b, to = self._offsets
        status = getattr(handle.library, self._name)(
            handle.raw,
            *self._before,
            _POINTER(a + from_a),
            *self._between,
            _POINTER(b + from_b),
            *self._of_b,
            _POINTER(out + to),
            *self._after,
        )
        if status:
            cublas.require(self._name, status)


def _math_mode(kind: str) -> int:
    reduced = allowed.allow_fp16_reduced_precision_reduction if kind == "e" else None
    reduced = allowed.allow_bf16_reduced_precision_reduction if reduced is None else reduced
    return 0 if reduced else _DISALLOW_REDUCED_PRECISION


def _copy(array: Array, shape: tuple[int, ...] | None, as_matrix: tuple[Any, ...]) -> Array:
    """A row-major copy, spread to `shape` where that has more elements; `as_matrix`: the index that turns a vector."""
    if shape is None:
        return array
    cupy = backend.require_cupy()
    if array.size != prod(shape):
        array = cupy.broadcast_to(array[as_matrix] if array.ndim == 1 else array, shape)
    return cupy.ascontiguousarray(array)


@lru_cache(16384)
def product(a: Layout, b: Layout, dtype: np.dtype, other: np.dtype, tf32: bool) -> tuple[tuple[int, ...], Calls] | None:
    """The shape of a @ b (vectors, matrices, batches that broadcast) and its calls, into row-major memory; None for
    dtypes that cuBLAS does not multiply.
    """
    if dtype.char not in TYPES or dtype != other:
        return None
    first, second = _stand_in(a, dtype), _stand_in(b, dtype)
    rows = first[None] if first.ndim == 1 else first
    columns = second[:, None] if second.ndim == 1 else second
    batch = np.broadcast_shapes(rows.shape[:-2], columns.shape[:-2])
    out = _row_major((*batch, rows.shape[-2], columns.shape[-1]), dtype)
    shape = (*batch, *(rows.shape[-2:-1] if first.ndim > 1 else ()), *(second.shape[-1:] if second.ndim > 1 else ()))
    return shape, _calls(rows, columns, out, dtype.char, False, tf32)


@lru_cache(16384)
def linear(
    input: Layout, weight: Layout, dtype: np.dtype, of_weight: np.dtype, add: bool, tf32: bool
) -> tuple[tuple[int, ...], Calls] | None:
    """The same of input @ weight.T; `add`: to what the result's memory holds."""
    if dtype.char not in TYPES or dtype != of_weight:
        return None
    rows, other = _stand_in(input, dtype), _stand_in(weight, dtype)
    shape = (*rows.shape[:-1], other.shape[0])
    out = _row_major((prod(rows.shape[:-1]), other.shape[0]), dtype)
    flat = rows if rows.ndim == 2 else _merged(rows)
    readable = _leading(other, -1) or _leading(other, -2)
    if not readable:
        other = _row_major(other.shape, dtype)
    calls = _calls(_row_major((prod(rows.shape[:-1]), rows.shape[-1]), dtype) if flat is None else flat, other.T, out,
                   dtype.char, add, tf32)  # fmt: skip
    if flat is None:
        calls._copied[0] = rows.shape
    if not readable:
        calls._copied[1] = other.shape
    return shape, calls


@lru_cache(16384)
def write(a: Layout, b: Layout, out: Layout, dtype: np.dtype, add: bool, tf32: bool) -> Calls:
    """The calls of out = a @ b, or out += a @ b."""
    return _calls(_stand_in(a, dtype), _stand_in(b, dtype), _stand_in(out, dtype), dtype.char, add, tf32)


def _calls(a: Array, b: Array, out: Array, kind: str, add: bool, tf32: bool) -> Calls:
    made = Calls(kind)
    if not out.size:
        return made
    if not a.shape[-1]:
        made._fills = not add
        return made
    if b.ndim == 2 and a.ndim > 2 and a.flags.c_contiguous and out.flags.c_contiguous:  # one product over all rows
        a, out = a.reshape(-1, a.shape[-1]), out.reshape(-1, out.shape[-1])
    batch = out.shape[:-2]
    swapped = _leading(out, -1) is None
    if swapped:  # by rows: the transposed product
        out = out.swapaxes(-1, -2)
    assert _leading(out, -1) is not None, "the result must be row-major or column-major"
    operands = []
    for place, array in enumerate((a, b)):
        if not (_leading(array, -1) or _leading(array, -2)):
            made._copied[place] = array.shape
            array = _row_major(array.shape, array.dtype)
        operands.append(_spread(array, batch))
    if prod(batch[: _looped_axes([*operands, out])]) > _LOOPS_AT_MOST:
        for place, array in enumerate(operands):
            made._copied[place] = array.shape
            operands[place] = _row_major(array.shape, array.dtype)
    if swapped:
        operands = [array.swapaxes(-1, -2) for array in reversed(operands)]
    made._swapped = swapped
    arrays = [*operands, out]
    starts = (_address(arrays[0]), _address(arrays[1]), _address(out))
    looped = _looped_axes(arrays)
    for index in np.ndindex(*batch[:looped]):
        first, second, target = (array[index] for array in arrays)
        made._each.append(_Call(first, second, target, kind, add, tf32, starts))
    return made


# --- arrays that stand in for those on the device ---------------------------------------------------------------------


def _stand_in(layout: Layout, dtype: np.dtype) -> Array:
    return np.lib.stride_tricks.as_strided(np.empty((), f"V{dtype.itemsize}"), *layout)


def _row_major(shape: tuple[int, ...], dtype: np.dtype) -> Array:
    strides = [dtype.itemsize * prod(shape[axis + 1 :]) for axis in range(len(shape))]
    return _stand_in((shape, tuple(strides)), dtype)


def _merged(array: Array) -> Array:
    """All rows as one matrix, or None where that needs a copy."""
    try:
        return np.reshape(array, (prod(array.shape[:-1]), array.shape[-1]), copy=False)
    except ValueError:
        return None


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def _leading(array: Array, axis: int) -> int | None:
    """The leading dimension (elements) of matrices that lie by columns (axis -1) or by rows (axis -2); None where they
    do not.
    """
    other = -3 - axis
    step, inner = array.strides[axis], array.strides[other]
    outer_size, size = array.shape[axis], array.shape[other]
    if size > 1 and inner != array.itemsize:
        return None
    if outer_size == 1:
        return max(size, 1)
    leading = step // array.itemsize
    return leading if step % array.itemsize == 0 and size <= leading <= _LARGEST else None


def _spread(array: Array, batch: tuple[int, ...]) -> Array:
    shape = (*batch, *array.shape[-2:])
    return array if array.shape == shape else np.broadcast_to(array, shape)


def _looped_axes(operands: list[Array]) -> int:
    """How many leading axes must be looped over, so that in the others each operand has one stride."""
    batch = operands[0].ndim - 2
    looped = max(batch - 1, 0)
    while looped > 0 and all(
        array.shape[looped - 1] == 1 or array.strides[looped - 1] == array.strides[looped] * array.shape[looped]
        for array in operands
    ):
        looped -= 1
    return looped


def _operation(array: Array) -> tuple[bool, int]:
    """(whether the matrices lie by rows, which cuBLAS reads as transposed; their leading dimension)."""
    leading = _leading(array, -1)
    if leading is not None:
        return False, leading
    leading = _leading(array, -2)
    assert leading is not None
    return True, leading


def _batch_stride(array: Array) -> int:
    """Elements between the matrices of a batch whose axes have one stride together."""
    for size, step in zip(array.shape[-3::-1], array.strides[-3::-1], strict=True):
        if size > 1:
            return int(step // array.itemsize)
    return 0
