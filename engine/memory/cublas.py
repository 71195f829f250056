"""cuBLAS handles of our own: one a thread and GPU, on the stream that is current, with a workspace for each stream.

CuPy's functions set the stream before every product, which gives a handle cuBLAS's own pool of scratch memory back: in
a CUDA graph each product would then be three nodes, one of which allocates, and its bits could differ from those on
another stream ("cublasSetStream", "cublasSetWorkspace" and "Results Reproducibility" in cuBLAS's documentation). They
also refuse streams that are captured. So cuBLAS is called past them, and stream and workspace are set only when another
stream is current than at the thread's last product.
"""

import ctypes
import itertools
import threading
from collections.abc import Callable
from typing import Any

from engine.memory import backend

_HOPPER, _WORKSPACE, _OF_HOPPER = 90, 4 << 20, 32 << 20  # compute capability times ten; bytes, as cuBLAS recommends

_local = threading.local()  # .handles: GPU -> Handle
_workspaces: dict[tuple[int, int, int], Any] = {}  # (GPU, address of a stream, capture) -> memory
_captures: list[int] = []  # the numbers of the recordings of CUDA graphs that are going on
_numbers = itertools.count(1)
_gpu_in_use: Callable[[], int]  # of CuPy, once it is found
_current_stream: Callable[[], Any]


class Handle:
    """A cublasHandle_t, as a ctypes argument: `raw`."""

    __slots__ = ("_set_math_mode", "capture", "gpu", "library", "mode", "raw", "stream")

    def __init__(self, gpu: int) -> None:
        self.gpu = gpu
        self.library = backend.cublas_library()
        self._set_math_mode = self.library.cublasSetMathMode
        self.raw = ctypes.c_void_p()
        self.stream = self.capture = -1  # address of the stream it is prepared for, and the number of the capture or 0
        self.mode = 0
        require("cublasCreate", self.library.cublasCreate_v2(ctypes.byref(self.raw)))

    def prepare(self, stream: int, math_mode: int) -> None:
        """Makes the handle one of this stream and math mode."""
        at = stream, _captures[-1] if _captures else 0
        if (self.stream, self.capture) != at:
            require("cublasSetStream", self.library.cublasSetStream_v2(self.raw, ctypes.c_void_p(stream)))
            memory = _workspaces.get((self.gpu, *at))
            if memory is None:
                memory = _workspaces[self.gpu, *at] = _allocate(self.gpu)
            size = ctypes.c_size_t(memory.size)
            status = self.library.cublasSetWorkspace_v2(self.raw, ctypes.c_void_p(memory.ptr), size)
            require("cublasSetWorkspace", status)
            self.stream, self.capture = at
        if self.mode != math_mode:
            require("cublasSetMathMode", self._set_math_mode(self.raw, ctypes.c_int(math_mode)))
            self.mode = math_mode


def handle(math_mode: int) -> Handle:
    """This thread's handle for the GPU in use, on its current stream: 0.3 µs where nothing has changed."""
    gpu = _gpu_in_use()
    try:
        found: Handle = _local.handles[gpu]
    except (AttributeError, KeyError):
        found = _new(gpu)
    stream = _current_stream().ptr
    if stream != found.stream or found.capture or _captures or math_mode != found.mode:
        found.prepare(stream, math_mode)
    return found


def _new(gpu: int) -> Handle:
    handles = _local.__dict__.setdefault("handles", {})
    made: Handle = handles.setdefault(gpu, Handle(gpu))
    return made


def require(name: str, status: int) -> None:
    """Raises: RuntimeError unless cuBLAS's status is success."""
    if status:
        raise RuntimeError(f"cuBLAS: {name}: expected status 0, got {status}")


def _allocate(gpu: int) -> Any:
    cuda = backend.require_cupy().cuda
    hopper = int(cuda.Device(gpu).compute_capability) >= _HOPPER
    return cuda.Memory(
        _OF_HOPPER if hopper else _WORKSPACE
    )  # from the driver: no tensor's memory, and in no graph's pool


def begin_capture() -> int:
    """From now on products have workspaces that nobody else has: a CUDA graph may run beside all other work."""
    number = next(_numbers)
    _captures.append(number)
    return number


def end_capture(number: int) -> list[Any]:
    """Ends that; returns the workspaces, which the graph has to keep."""
    _captures.remove(number)
    return [_workspaces.pop(each) for each in list(_workspaces) if each[2] == number]


def _forget(cupy: Any) -> None:
    """All handles and workspaces: CuPy was exchanged."""
    global _current_stream, _gpu_in_use, _local
    _gpu_in_use, _current_stream = cupy.cuda.runtime.getDevice, cupy.cuda.get_current_stream
    _local = threading.local()
    _workspaces.clear()
    _captures.clear()


backend.when_found.append(_forget)
