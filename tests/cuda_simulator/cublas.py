"""cuBLAS's matrix products as `cupy.cuda.cublas` has them, on raw pointers: matrices by columns, leading dimensions,
batch strides. A wrong leading dimension reads wrong elements here as it does there, or leaves the memory.

Half precision is added up in float32, TF32 rounds operands to 10 bits of mantissa.
"""

import ctypes
from typing import Any

import ml_dtypes
import numpy as np

from tests.cuda_simulator import counters, execution, handles, memory, streams

CUBLAS_OP_N, CUBLAS_OP_T, CUBLAS_OP_C = 0, 1, 2
CUBLAS_POINTER_MODE_HOST, CUBLAS_POINTER_MODE_DEVICE = 0, 1
CUBLAS_GEMM_DEFAULT, CUBLAS_GEMM_DEFAULT_TENSOR_OP = -1, 99
CUBLAS_DEFAULT_MATH, CUBLAS_TENSOR_OP_MATH = 0, 1
CUBLAS_COMPUTE_16F, CUBLAS_COMPUTE_16F_PEDANTIC = 64, 65
CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_PEDANTIC = 68, 69
CUBLAS_COMPUTE_64F, CUBLAS_COMPUTE_64F_PEDANTIC = 70, 71
CUBLAS_COMPUTE_32F_FAST_16F, CUBLAS_COMPUTE_32F_FAST_16BF, CUBLAS_COMPUTE_32F_FAST_TF32 = 74, 75, 77

# cudaDataType_t
_ELEMENTS = {0: "f4", 1: "f8", 2: "f2", 4: "c8", 5: "c16", 14: ml_dtypes.bfloat16}
_PRECISIONS = {CUBLAS_COMPUTE_32F: "f4", CUBLAS_COMPUTE_32F_PEDANTIC: "f4", CUBLAS_COMPUTE_32F_FAST_TF32: "f4"} | {
    CUBLAS_COMPUTE_64F: "f8",
    CUBLAS_COMPUTE_64F_PEDANTIC: "f8",
}
math_mode = CUBLAS_DEFAULT_MATH
calls: list[tuple[str, int, int]] = []  # (function, compute type, math mode) of every product, in order


class CUBLASError(RuntimeError):
    """What CuPy raises for a status that is not success."""


class _Handle:
    """What `Library` knows of a handle that it made."""

    def __init__(self) -> None:
        self.device = streams.current_device()
        self.stream = 0
        self.mode = CUBLAS_DEFAULT_MATH
        self.workspace: tuple[int, int] | None = None


class Library:
    """cuBLAS itself as `ctypes` calls it: on the stream that a handle was given, captured or not. A product needs a
    workspace that was given after the stream."""

    def __init__(self) -> None:
        self._handles: list[_Handle] = []

    def cublasCreate_v2(self, handle: Any) -> int:
        self._handles.append(_Handle())
        handle._obj.value = len(self._handles)
        return 0

    def cublasSetStream_v2(self, handle: Any, stream: Any) -> int:
        known = self._known(handle)
        known.stream, known.workspace = stream.value or 0, None
        return 0

    def cublasSetWorkspace_v2(self, handle: Any, workspace: Any, size: Any) -> int:
        block = memory.find(workspace.value)
        assert block is not None, "no device memory"
        assert workspace.value + size.value <= block.start + block.size
        assert workspace.value % 256 == 0
        self._known(handle).workspace = (workspace.value, size.value)
        return 0

    def cublasSetMathMode(self, handle: Any, mode: Any) -> int:
        self._known(handle).mode = mode.value
        return 0

    def cublasGemmEx(self, *arguments: Any) -> int:
        return self._run(gemmEx, "PiiiiiPPiiPiiPPiiii", arguments)

    def cublasGemmStridedBatchedEx(self, *arguments: Any) -> int:
        return self._run(gemmStridedBatchedEx, "PiiiiiPPiilPiilPPiiliii", arguments)

    def _known(self, handle: Any) -> _Handle:
        known = self._handles[handle.value - 1]
        assert known.device == streams.current_device(), "a handle belongs to one device"
        return known

    def _run(self, function: Any, kinds: str, arguments: Any) -> int:
        types = {"P": ctypes.c_void_p, "i": ctypes.c_int, "l": ctypes.c_longlong}
        assert [type(each) for each in arguments] == [types[kind] for kind in kinds], "nothing converts arguments here"
        known = self._known(arguments[0])
        assert known.stream == handles.get_current_stream().ptr, "work of another stream"
        assert known.workspace is not None
        _past_cupy.append(known)
        try:
            function(*(each.value or 0 for each in arguments))
        finally:
            _past_cupy.pop()
        return 0


library = Library()
_past_cupy: list[_Handle] = []


def refuse_in_capture() -> None:
    """Raises: NotImplementedError, as all of CuPy's functions of cuBLAS and cuSOLVER, on a stream that is captured."""
    if execution.capturing() and not _past_cupy:
        raise NotImplementedError("calling cuBLAS API during stream capture is currently unsupported")


def _check(handle: int) -> None:
    if _past_cupy:
        return
    assert handle == handles.Device().cublas_handle, "a handle belongs to one device"


def getMathMode(handle: int) -> int:
    _check(handle)
    return math_mode


def setMathMode(handle: int, mode: int) -> None:
    global math_mode
    _check(handle)
    math_mode = mode


def gemmEx(
    handle: int,
    transa: int,
    transb: int,
    m: int,
    n: int,
    k: int,
    alpha: int,
    A: int,
    Atype: int,
    lda: int,
    B: int,
    Btype: int,
    ldb: int,
    beta: int,
    C: int,
    Ctype: int,
    ldc: int,
    computeType: int,
    algo: int,
) -> None:
    """C = alpha op(A) op(B) + beta C, all by columns."""
    arguments = (alpha, A, Atype, lda, 0, B, Btype, ldb, 0, beta, C, Ctype, ldc, 0, 1, computeType, algo)
    _gemm("gemmEx", handle, transa, transb, m, n, k, *arguments)


def gemmStridedBatchedEx(
    handle: int,
    transa: int,
    transb: int,
    m: int,
    n: int,
    k: int,
    alpha: int,
    A: int,
    Atype: int,
    lda: int,
    strideA: int,
    B: int,
    Btype: int,
    ldb: int,
    strideB: int,
    beta: int,
    C: int,
    Ctype: int,
    ldc: int,
    strideC: int,
    batchCount: int,
    computeType: int,
    algo: int,
) -> None:
    """The same for `batchCount` triples of matrices that lie `stride` elements apart."""
    arguments = (alpha, A, Atype, lda, strideA, B, Btype, ldb, strideB, beta, C, Ctype, ldc, strideC)
    _gemm("gemmStridedBatchedEx", handle, transa, transb, m, n, k, *arguments, batchCount, computeType, algo)


def _gemm(name: str, handle: int, transa: int, transb: int, m: int, n: int, k: int, *rest: Any) -> None:
    (
        alpha,
        a,
        kind_a,
        lda,
        stride_a,
        b,
        kind_b,
        ldb,
        stride_b,
        beta,
        c,
        kind_c,
        ldc,
        stride_c,
        count,
        compute,
        algo,
    ) = rest
    refuse_in_capture()
    _check(handle)
    assert algo in (CUBLAS_GEMM_DEFAULT, CUBLAS_GEMM_DEFAULT_TENSOR_OP)
    if not all(-(2**31) <= each < 2**31 for each in (m, n, k, lda, ldb, ldc, count)):
        raise OverflowError("value too large to convert to int")
    if compute not in _PRECISIONS or not kind_a == kind_b == kind_c or kind_c not in _ELEMENTS:
        raise CUBLASError("CUBLAS_STATUS_NOT_SUPPORTED")
    element, precision = np.dtype(_ELEMENTS[kind_c]), np.dtype(_PRECISIONS[compute])
    if (element.itemsize == 8 and element.kind == "f") or element.itemsize == 16:
        supported = precision.itemsize == 8
    else:
        supported = precision.itemsize == 4
    if not supported:
        raise CUBLASError("CUBLAS_STATUS_NOT_SUPPORTED")
    size_a = (m, k) if transa == CUBLAS_OP_N else (k, m)
    size_b = (k, n) if transb == CUBLAS_OP_N else (n, k)
    if min(m, n, k, count) < 0 or lda < max(1, size_a[0]) or ldb < max(1, size_b[0]) or ldc < max(1, m):
        raise CUBLASError("CUBLAS_STATUS_INVALID_VALUE")
    wide = np.result_type(precision, element) if element.kind == "c" else precision
    factors = [np.ctypeslib.as_array((np.ctypeslib.ctypes.c_ubyte * wide.itemsize).from_address(at)).view(wide)[0]
               for at in (alpha, beta)]  # fmt: skip
    if not m * n * count:
        return
    in_a, range_a = _matrices(a, element, size_a, lda, stride_a, count)
    in_b, range_b = _matrices(b, element, size_b, ldb, stride_b, count)
    out, range_c = _matrices(c, element, (m, n), ldc, stride_c, count)
    calls.append((name, compute, _past_cupy[-1].mode if _past_cupy else math_mode))

    def run() -> None:
        left, right = (_prepared(array, turned, wide, compute) for array, turned in ((in_a, transa), (in_b, transb)))
        with np.errstate(all="ignore"):
            result = factors[0] * np.matmul(left, right)
            if factors[1] != 0:
                result = result + factors[1] * out.astype(wide)
            out[...] = result.astype(element)

    counters.launched(name)
    execution.submit(name, run, [range_a, range_b], [range_c])


def _matrices(
    pointer: int, element: np.dtype[Any], size: tuple[int, int], leading: int, stride: int, count: int
) -> tuple[Any, Any]:
    """(count, rows, columns) on the memory at `pointer`, and the bytes they may touch."""
    shape = (count, *size)
    strides = tuple(step * element.itemsize for step in (stride, 1, leading))
    if 0 in shape:
        return np.empty(shape, element), None
    block = memory.find(pointer)
    if block is None:
        raise CUBLASError("CUBLAS_STATUS_EXECUTION_FAILED")
    reached = execution.extent(block, pointer, shape, strides, element.itemsize)
    if reached[2] > block.start + block.size:
        raise CUBLASError("CUBLAS_STATUS_EXECUTION_FAILED")
    space = block.space
    return np.ndarray(shape, element, space.bytes.data, pointer - space.base, strides), reached


def _prepared(array: Any, operation: int, wide: np.dtype[Any], compute: int) -> Any:
    array = array.astype(wide)
    if compute == CUBLAS_COMPUTE_32F_FAST_TF32:
        array = _rounded(array)
    if operation == CUBLAS_OP_N:
        return array
    turned = array.swapaxes(-1, -2)
    return turned.conj() if operation == CUBLAS_OP_C else turned


def _rounded(array: Any) -> Any:
    """float32 numbers (or parts of complex ones) to 10 bits of mantissa, halves to even."""
    bits = array.view(np.uint32)
    kept = (bits + 0xFFF + ((bits >> 13) & 1)) & np.uint32(0xFFFFE000)
    return np.where(np.isfinite(array.view(np.float32)), kept, bits).astype(np.uint32).view(array.dtype)
