"""`cupy.RawModule` and `cupy.RawKernel`: CUDA C++ run on the CPU by `kernels.run` of this package."""

import ctypes
import importlib
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from tests.cuda_simulator import arrays, calls, counters, execution, memory, streams, tables
from tests.cuda_simulator.arrays import ndarray
from tests.cuda_simulator.errors import CUDADriverError

# Kernel name to the positions of arguments it only reads, beside pointers to const, and only writes; all other arrays
# count as read and written.
read_only: dict[str, frozenset[int]] = {}
write_only: dict[str, frozenset[int]] = {}
LIMITS = {"block": 1024, "shared": 227 * 1024, "default shared": 48 * 1024}
_extra: list[tuple[list[Any], list[Any]]] = []


@contextmanager
def touches(reads: Sequence[Any] = (), writes: Sequence[Any] = ()) -> Any:
    """Memory that the kernels launched inside touch besides their array arguments: through tables of addresses in
    device memory, say. Arrays, or (address, bytes) pairs."""
    _extra.append(([_reach(each) for each in reads], [_reach(each) for each in writes]))
    try:
        yield
    finally:
        _extra.pop()


def _reach(what: Any) -> Any:
    if isinstance(what, ndarray):
        return arrays.reach(what)
    address, size = what
    block = memory.find(address)
    return None if block is None else (block, address, address + size)


class RawModule:
    """`cupy.RawModule`."""

    def __init__(
        self,
        code: str | None = None,
        *,
        path: str | None = None,
        options: tuple[str, ...] = (),
        backend: str = "nvrtc",
        translate_cucomplex: bool = False,
        enable_cooperative_groups: bool = False,
        name_expressions: Sequence[str] | None = None,
        jitify: bool = False,
    ) -> None:
        if (code is None) == (path is None):
            raise TypeError("Exactly one of `code` and `path` keyword arguments must be given.")
        if not isinstance(options, tuple):
            raise TypeError(f"Argument 'options' has incorrect type (expected tuple, got {type(options).__name__})")
        if name_expressions is not None and not any("-std=" in each or "--std=" in each for each in options):
            raise ValueError("need to specify C++ standard for compiling template code")
        self.code = code
        self.file_path = path
        self.options = options
        self.backend = backend
        self.name_expressions = name_expressions
        self.enable_cooperative_groups = enable_cooperative_groups

    def compile(self, log_stream: Any = None) -> None:
        """Compiles nothing yet: the first launch does."""

    def get_function(self, name: str) -> "RawKernel":
        if self.code is None:
            raise NotImplementedError("the simulated device runs no compiled module")
        return RawKernel(self.code, name, self.options, self.backend)

    def get_global(self, name: str) -> Any:
        raise NotImplementedError("the simulated device has no get_global")


class RawKernel:
    """`cupy.RawKernel`."""

    def __init__(
        self,
        code: str,
        name: str,
        options: tuple[str, ...] = (),
        backend: str = "nvrtc",
        *,
        translate_cucomplex: bool = False,
        enable_cooperative_groups: bool = False,
        jitify: bool = False,
    ) -> None:
        self.code = code
        self.name = name
        self.options = options
        self.backend = backend
        self.file_path = None
        self.enable_cooperative_groups = enable_cooperative_groups
        self.max_dynamic_shared_size_bytes = LIMITS["default shared"]
        self.preferred_shared_memory_carveout = -1
        self.shared_size_bytes = 0
        self.local_size_bytes = 0
        self.const_size_bytes = 0
        self.num_regs = 32
        self.max_threads_per_block = LIMITS["block"]
        self.binary_version = self.ptx_version = 90

    @property
    def attributes(self) -> dict[str, int]:
        names = ("max_threads_per_block", "shared_size_bytes", "const_size_bytes", "local_size_bytes", "num_regs")
        return {
            **{name: getattr(self, name) for name in (*names, "ptx_version", "binary_version")},
            "cache_mode_ca": 0,
            "max_dynamic_shared_size_bytes": self.max_dynamic_shared_size_bytes,
            "preferred_shared_memory_carveout": self.preferred_shared_memory_carveout,
        }

    def compile(self, log_stream: Any = None) -> None:
        """Compiles nothing yet: the first launch does."""

    def __call__(
        self,
        grid: Sequence[int],
        block: Sequence[int],
        args: Sequence[Any],
        *,
        shared_mem: int = 0,
        stream: Any = None,
        enable_cooperative_groups: bool = False,
    ) -> None:
        """Queues the kernel on the current stream.

        Raises: CUDARuntimeError for a grid, block or shared memory the device does not take; TypeError for an argument
        that CuPy cannot pass.
        """
        if not isinstance(grid, tuple) or not isinstance(block, tuple):
            raise TypeError(f"grid and block are tuples, got {type(grid).__name__} and {type(block).__name__}")
        grid = tuple(max(1, int(each)) for each in (*grid, 1, 1)[:3])  # CuPy makes 1 of 0
        block = tuple(max(1, int(each)) for each in (*block, 1, 1)[:3])
        _check_launch(grid, block, shared_mem, self.max_dynamic_shared_size_bytes)
        run = _runner()
        reads: list[Any] = []
        writes: list[Any] = []
        passed: list[Any] = []
        known = read_only.get(self.name, frozenset()) | tables.only_read(self.code, self.name)
        fresh = write_only.get(self.name, frozenset())
        for position, each in enumerate(args):
            if isinstance(each, ndarray):
                calls.check_device(each)
                passed.append(arrays.host(each))
                if position not in fresh:
                    reads.append(arrays.reach(each))
                if position not in known:
                    writes.append(arrays.reach(each))
            else:
                passed.append(_scalar(each))
        for address, size, write in tables.beside(self.name, self.options, passed):
            (writes if write else reads).append(execution.range_of(address, size))
        for more_reads, more_writes in _extra:
            reads.extend(more_reads)
            writes.extend(more_writes)
        queue = streams.current_queue() if stream is None else stream._queue()
        counters.launched(self.name)
        code, options, name = self.code, tuple(self.options), self.name
        execution.submit(name, lambda: run(code, options, name, grid, block, passed, shared_mem), reads, writes, queue)


class CPointer:
    """`cupy.cuda.function.CPointer`: the address of an argument that somebody keeps; here a subclass says in `kept`."""

    def __init__(self, p: int = 0) -> None:
        self.ptr = p


class Function(RawKernel):
    """`cupy.cuda.Function`."""


def _check_launch(grid: Sequence[int], block: Sequence[int], shared_mem: int, shared_limit: int) -> None:
    fits = int(np.prod(block, dtype=np.int64)) <= LIMITS["block"] and block[2] <= 64
    fits = fits and grid[0] < 2**31 and max(grid[1:]) < 65536
    if not fits or shared_mem > min(shared_limit, LIMITS["shared"]):
        raise CUDADriverError("CUDA_ERROR_INVALID_VALUE: invalid argument")


def _scalar(value: Any) -> Any:
    """A kernel argument as CuPy passes it: Python numbers as 8 bytes, a MemoryPointer as its address."""
    if value is None:
        return np.uint64(0)
    if isinstance(value, memory.MemoryPointer):
        return np.uint64(value.ptr)
    if isinstance(value, CPointer):
        assert value.ptr == value.kept.ctypes.data
        return value.kept.copy() if value.kept.dtype.names else value.kept[()]
    if isinstance(value, bool):
        return np.bool_(value)
    if isinstance(value, int):
        return np.int64(value)
    if isinstance(value, float):
        return np.float64(value)
    if isinstance(value, complex):
        return np.complex128(value)
    if isinstance(value, np.generic):
        return value
    if isinstance(value, np.ndarray) and value.size == 1:
        return value  # a struct passed by value
    if isinstance(value, ctypes.Structure):
        return value
    if isinstance(value, np.ndarray):
        raise TypeError(f"a numpy.ndarray of shape {value.shape} as a kernel's parameter: pass a device array")
    raise TypeError(f"Unsupported type {type(value)}")


def _runner() -> Callable[..., None]:
    """`kernels.run(code, options, name, grid, block, arguments, shared_mem)`: arrays are host arrays on the device's
    bytes, numbers NumPy scalars of the parameters' types."""
    try:
        return importlib.import_module("tests.cuda_simulator.kernels").run
    except ModuleNotFoundError as cause:
        raise RuntimeError("the simulated device runs no raw kernels yet: tests/cuda_simulator/kernels.py") from cause
