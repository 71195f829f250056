"""Matrix products on a GPU through cuBLAS. Row-major, column-major and transposed operands and batches are read as they
lie, by leading dimensions and batch strides, and results are written in the layout that is asked for.

cuBLAS sees every matrix by columns: a row-major C = A B is what it calls Cᵀ = Bᵀ Aᵀ, whose operands are the same
memory. Half precision is added up in single. Single precision may be rounded to TF32 inside a product, and partial sums
to half precision, where `engine.backends.cuda.matmul` allows it. Integers, which cuBLAS does not multiply, go to
cupy.matmul.
"""

from math import prod
from types import ModuleType
from typing import Any

import numpy as np

from engine.memory import backend
from engine.ops.matmul import captured as matmul_captured
from engine.rules.precision import matmul as allowed
from engine.rules.spec import Spec

Array = Any

_LOOPS_AT_MOST = 16  # calls for a batch whose strides are no single one; beyond, the operand is copied
_DISALLOW_REDUCED_PRECISION = 16  # CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION
_LARGEST = 2**31 - 1  # sizes and leading dimensions are C ints

# NumPy's letter (E: bfloat16) to the name of cuBLAS's element type, of the compute type, and of the factors' type.
_TYPES = {
    "e": ("CUDA_R_16F", "CUBLAS_COMPUTE_32F", "f"),
    "E": ("CUDA_R_16BF", "CUBLAS_COMPUTE_32F", "f"),
    "f": ("CUDA_R_32F", "CUBLAS_COMPUTE_32F", "f"),
    "d": ("CUDA_R_64F", "CUBLAS_COMPUTE_64F", "d"),
    "F": ("CUDA_C_32F", "CUBLAS_COMPUTE_32F", "F"),
    "D": ("CUDA_C_64F", "CUBLAS_COMPUTE_64F", "D"),
}
# Factors that cuBLAS reads from host memory.
_FACTORS = {(kind, value): np.array(value, kind) for kind in "fdFD" for value in (0, 1)}
_POINTERS = {key: array.ctypes.data for key, array in _FACTORS.items()}


def product(xp: ModuleType, a: Array, b: Array) -> Array:
    """a @ b as `numpy.matmul` has it: vectors, matrices, batches that broadcast. The result is row-major."""
    if a.dtype.char not in _TYPES or a.dtype != b.dtype:
        return xp.matmul(a, b)
    rows = a[None] if a.ndim == 1 else a
    columns = b[:, None] if b.ndim == 1 else b
    batch = np.broadcast_shapes(rows.shape[:-2], columns.shape[:-2])
    out = xp.empty((*batch, rows.shape[-2], columns.shape[-1]), a.dtype)
    write(xp, rows, columns, out)
    return out.reshape((*batch, *(rows.shape[-2:-1] if a.ndim > 1 else ()), *(b.shape[-1:] if b.ndim > 1 else ())))


def matmul(xp: ModuleType, a: Array, b: Array) -> Array:
    """xp.matmul; on a GPU this module's, since CuPy's cannot be recorded in a CUDA graph."""
    return np.matmul(a, b) if xp is np else product(xp, a, b)


def write(xp: ModuleType, a: Array, b: Array, out: Array, add: bool = False, tf32: bool | None = None) -> None:
    """out = a @ b, or out += a @ b: (..., M, K) and (..., K, N), leading axes broadcast. All of one dtype that cuBLAS
    has; the last two axes of `out` are row-major or column-major. `tf32`: in place of the switch of matrix products.
    """
    if not out.size:
        return
    if not a.shape[-1]:
        if not add:
            out.fill(0)
        return
    if b.ndim == 2 and a.ndim > 2 and a.flags.c_contiguous and out.flags.c_contiguous:  # one product over all rows
        a, out = a.reshape(-1, a.shape[-1]), out.reshape(-1, out.shape[-1])
    batch = out.shape[:-2]
    by_columns = _leading(out, -1)
    if by_columns is None:  # by rows: the transposed product
        a, b, out = b.swapaxes(-1, -2), a.swapaxes(-1, -2), out.swapaxes(-1, -2)
        by_columns = _leading(out, -1)
    assert by_columns is not None, "the result must be row-major or column-major"
    a, b = _spread(xp, _readable(xp, a), batch), _spread(xp, _readable(xp, b), batch)
    operands = [a, b, out]
    looped = _looped_axes(operands)
    if prod(batch[:looped]) > _LOOPS_AT_MOST:
        operands = [_spread(xp, xp.ascontiguousarray(array), batch) for array in (a, b)] + [out]
        looped = _looped_axes(operands)
    rounded = allowed.allow_tf32 if tf32 is None else tf32
    for index in np.ndindex(*batch[:looped]):
        first, second, target = (array[index] for array in operands)
        _multiply(first, second, target, add, rounded)


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


def _readable(xp: ModuleType, array: Array) -> Array:
    """`array`, or a row-major copy where its matrices lie neither by rows nor by columns."""
    return array if _leading(array, -1) or _leading(array, -2) else xp.ascontiguousarray(array)


def _spread(xp: ModuleType, array: Array, batch: tuple[int, ...]) -> Array:
    shape = (*batch, *array.shape[-2:])
    return array if array.shape == shape else xp.broadcast_to(array, shape)


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


def _multiply(a: Array, b: Array, out: Array, add: bool, tf32: bool) -> None:
    """out (..., M, N), by columns, = a @ b, the leading axes one batch stride each."""
    cupy: Any = backend.require_cupy()
    cublas, runtime = cupy.cuda.cublas, cupy.cuda.runtime
    letter = out.dtype.char
    kind, compute, factor = _TYPES[letter]
    if letter in "fF" and tf32:
        compute = "CUBLAS_COMPUTE_32F_FAST_TF32"
    type_of = getattr(runtime, kind)
    (m, n), k = out.shape[-2:], a.shape[-1]
    count = prod(out.shape[:-2])
    turned_a, lead_a = _operation(a)
    turned_b, lead_b = _operation(b)
    lead_out = _leading(out, -1)
    assert max(m, n, k) <= _LARGEST, "cuBLAS counts in 32 bits"
    one, other = _POINTERS[factor, 1], _POINTERS[factor, int(add)]
    handle = cupy.cuda.device.get_cublas_handle()
    full_sums = (letter == "e" and not allowed.allow_fp16_reduced_precision_reduction) or (
        letter == "E" and not allowed.allow_bf16_reduced_precision_reduction
    )
    if full_sums:
        before = cublas.getMathMode(handle)
        cublas.setMathMode(handle, _DISALLOW_REDUCED_PRECISION)
    try:
        operations = [cublas.CUBLAS_OP_T if turned else cublas.CUBLAS_OP_N for turned in (turned_a, turned_b)]
        how = (getattr(cublas, compute), cublas.CUBLAS_GEMM_DEFAULT)
        if count == 1:
            name, arguments = (
                "gemmEx",
                (
                    *(handle, *operations, m, n, k, one, a.data.ptr, type_of, lead_a, b.data.ptr, type_of, lead_b),
                    *(other, out.data.ptr, type_of, lead_out, *how),
                ),
            )
        else:
            name, arguments = (
                "gemmStridedBatchedEx",
                (
                    *(handle, *operations, m, n, k, one, a.data.ptr, type_of, lead_a, _batch_stride(a)),
                    *(b.data.ptr, type_of, lead_b, _batch_stride(b)),
                    *(other, out.data.ptr, type_of, lead_out, _batch_stride(out), count, *how),
                ),
            )
        try:
            getattr(cublas, name)(*arguments)
        except NotImplementedError:  # CuPy's, while a CUDA graph is recorded
            matmul_captured.call(name, *arguments)
    finally:
        if full_sums:
            cublas.setMathMode(handle, before)


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


# --- linear -----------------------------------------------------------------------------------------------------------


def linear(xp: ModuleType, input: Array, weight: Array, bias: Array = None) -> Array:
    """input @ weight.T + bias. The bias is there first and the product is added to it: both are rounded once."""
    shape = (*input.shape[:-1], weight.shape[0])
    rows = input if input.ndim == 2 else input.reshape(prod(input.shape[:-1]), input.shape[-1])
    if input.dtype.char not in _TYPES:
        out = xp.matmul(rows, weight.T)
        return (out if bias is None else out + bias).reshape(shape)
    out = xp.empty((rows.shape[0], weight.shape[0]), input.dtype)
    if bias is not None:
        out[...] = bias
    write(xp, rows, weight.T, out, add=bias is not None)
    return out.reshape(shape)


def linear_input_slope(xp: ModuleType, g: Array, weight: Array, input_spec: Spec) -> Array:
    """g @ weight in the shape of the input."""
    return product(xp, g.reshape(prod(g.shape[:-1]), weight.shape[0]), weight).reshape(tuple(input_spec.shape))


def linear_weight_slope(xp: ModuleType, g: Array, input: Array, weight_spec: Spec, into: Array) -> Array:
    """gᵀ @ input: written to `into` where that can take it, else in memory that lies as a dense weight does."""
    out_features, in_features = weight_spec.shape
    g = g.reshape(prod(g.shape[:-1]), out_features)
    rows = input.reshape(prod(input.shape[:-1]), in_features)
    if g.dtype.char not in _TYPES or g.dtype != rows.dtype:
        return xp.matmul(g.T, rows)
    if into is None or into.dtype != g.dtype or not (into.flags.c_contiguous or into.flags.f_contiguous):
        by_columns = not weight_spec.contiguous and weight_spec.dense
        into = xp.empty((in_features, out_features), g.dtype).T if by_columns else xp.empty(weight_spec.shape, g.dtype)
    write(xp, g.T, rows, into)
    return into
