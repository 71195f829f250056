"""cuBLAS while a CUDA graph is recorded. CuPy's functions refuse every call on a stream that is captured; cuBLAS itself
records its kernels there, the factors' values included, so it is called past them. (cuBLAS's documentation, "CUDA
Graphs Support"; its scratch memory is then a node of the graph.)
"""

import ctypes

from engine.memory import backend

_POINTER, _INT, _LONG = ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong
_MATRIX = (_POINTER, _INT, _INT)  # address, element type, leading dimension
_BATCH = (*_MATRIX, _LONG)  # and stride
_BEFORE = (_POINTER, *[_INT] * 5, _POINTER)  # handle, two operations, m, n, k, factor
_PARAMETERS = {
    "gemmEx": (*_BEFORE, *_MATRIX, *_MATRIX, _POINTER, *_MATRIX, _INT, _INT),
    "gemmStridedBatchedEx": (*_BEFORE, *_BATCH, *_BATCH, _POINTER, *_BATCH, _INT, _INT, _INT),
}


def call(name: str, handle: int, *arguments: int) -> None:
    """What `cupy.cuda.cublas.<name>` does, on the current stream, captured or not.

    Raises: RuntimeError with cuBLAS's status.
    """
    library = backend.cublas_library()
    stream = backend.require_cupy().cuda.get_current_stream().ptr
    status = library.cublasSetStream_v2(_POINTER(handle), _POINTER(stream))
    if not status:
        given = zip(_PARAMETERS[name], (handle, *arguments), strict=True)
        status = getattr(library, f"cublas{name[0].upper()}{name[1:]}")(*(kind(value) for kind, value in given))
    if status:
        raise RuntimeError(f"cuBLAS: {name} on a stream that a CUDA graph records: expected status 0, got {status}")
