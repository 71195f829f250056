"""The numpy|cupy seam: which array module a device uses, allocation by Spec, strided views. The only module that
imports CuPy.
"""

import ctypes
import importlib
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np

from engine.rules import layout
from engine.rules.device import ASSIGNED_GPU, CPU, device
from engine.rules.dtypes import of_numpy
from engine.rules.spec import Spec, spec_of

SCALAR = np.generic  # what NumPy returns in place of a 0-dim array

Array = Any  # numpy.ndarray or cupy.ndarray: the two are used through the same methods

_cupy: ModuleType | None = None
when_found: list[Callable[[ModuleType], None]] = []
"""What the modules of this room do with CuPy when it is first asked for."""
several_gpus = False  # whether memory has to be asked for on the right one


def device_empty(shape: tuple[int, ...], dtype: Any, memory: Any = None) -> Array:
    """Uninitialised row-major memory on the GPU in use, `memory` (CuPy's MemoryPointer) or new. The first use of CuPy
    puts a quicker function in its place.

    Raises: as `require_cupy`; engine.cuda.OutOfMemoryError.
    """
    require_cupy()
    return device_empty(shape, dtype, memory)


def constant(value: Any) -> Any:
    """A NumPy scalar or struct as a kernel's argument that many launches pass, by value: 0.05 µs each where a scalar
    takes 0.2 and a struct 3. The first use of CuPy puts a class in its place, whose `kept` is the value as an array.
    """
    require_cupy()
    return constant(value)


def require_cupy() -> ModuleType:
    """The CuPy module, imported at first use.

    Raises: RuntimeError that says whether CuPy, a GPU or a library of CUDA's is missing and how to get it, with the
    original cause.
    """
    global _cupy, constant, device_empty, several_gpus
    if _cupy is None:
        try:
            import cupy as module
        except ImportError as cause:
            raise RuntimeError(
                "device 'cuda' needs CuPy, which cannot be imported here; install it with "
                "pip install 'allstride[cuda12]' or 'allstride[cuda13]', whichever matches the driver"
            ) from cause
        try:
            count = module.cuda.runtime.getDeviceCount()
        except module.cuda.runtime.CUDARuntimeError as cause:
            raise RuntimeError("device 'cuda': CuPy is installed but finds no usable NVIDIA GPU or driver") from cause
        if count == 0:
            raise RuntimeError("device 'cuda': CuPy is installed but the machine has no NVIDIA GPU")
        _require_libraries(module)
        if 0 < ASSIGNED_GPU < count:
            module.cuda.runtime.setDevice(ASSIGNED_GPU)
        for prepare in when_found:
            prepare(module)
        several_gpus = count > 1
        device_empty, constant = _maker_of_arrays(module), _class_of_constants(module)
        _cupy = module
    return _cupy


def _maker_of_arrays(cupy: Any) -> Callable[..., Array]:
    array = cupy.ndarray
    if not hasattr(array, "_init"):
        return array
    new = array.__base__.__new__

    # What `cupy.empty` does without its two functions in Python: 1.2 µs where it takes 2.0.
    def made(shape: Any, dtype: Any, memory: Any = None) -> Array:
        found = new(array)
        found._init(shape, dtype, memory)
        return found

    return made


def _class_of_constants(cupy: Any) -> Any:
    base: Any = cupy.cuda.function.CPointer

    class Constant(base):
        __slots__ = ("kept",)

        def __init__(self, value: Any) -> None:
            self.kept = np.array(value)
            super().__init__(self.kept.ctypes.data)

    return Constant


def _require_libraries(cupy: ModuleType) -> None:
    """Loads what nearly every call needs beside the driver; CuPy's wheel alone has neither.

    Raises: RuntimeError that names what is missing and the command that brings it.
    """
    for name, load in (("NVRTC", lambda: cupy.cuda.nvrtc.getVersion()), ("cuBLAS", lambda: cupy.cuda.cublas)):
        try:
            load()
        except (ImportError, RuntimeError) as cause:  # RuntimeError: of cuda.pathfinder, which looks for NVRTC
            release = cupy.cuda.runtime.runtimeGetVersion() // 1000  # that CuPy was built for
            raise RuntimeError(
                f"device 'cuda': CuPy finds a GPU but not {name}, a library of the CUDA Toolkit; install it with "
                f"pip install 'allstride[cuda{release}]'"
            ) from cause


def reported_by_cusolver() -> AbstractContextManager[Any]:
    """Inside it cupy.linalg raises numpy.linalg.LinAlgError where cuSOLVER reports failure; it waits for the report."""
    require_cupy()
    import cupyx

    found: AbstractContextManager[Any] = cupyx.errstate(linalg="raise")
    return found


def find_nccl() -> ModuleType | None:
    """CuPy's module for NCCL; None where it finds no library.

    Raises: RuntimeError without CuPy or GPU.
    """
    require_cupy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # CuPy's own, of a library that is not there: the caller says so
        try:
            module = importlib.import_module("cupy.cuda.nccl")
        except ImportError:
            return None
    return module if module.available else None


@cache
def cublas_library() -> Any:
    """cuBLAS itself: the library that CuPy's module for it is linked to."""
    return ctypes.CDLL(require_cupy().cuda.cublas.__file__)  # a look-up of a symbol goes on to what the module needs


def special_functions() -> Any:
    """cupyx.scipy.special: ufuncs of single and double precision on a GPU."""
    require_cupy()
    import cupyx.scipy.special

    return cupyx.scipy.special


def is_on_gpu(value: Any) -> bool:
    """Whether a value is an array of CuPy's."""
    return _cupy is not None and isinstance(value, _cupy.ndarray)


def array_module(where: device) -> ModuleType:
    """numpy for "cpu", cupy for "cuda".

    Raises: RuntimeError for "cuda" without CuPy or GPU; NotImplementedError for "meta", which has no memory.
    """
    if where is CPU:
        return np
    if where.type == "cuda":
        return require_cupy()
    raise NotImplementedError("a tensor on device 'meta' has a shape but no memory, so its values cannot be read")


def empty(spec: Spec) -> Array:
    """Uninitialised memory laid out as `spec` says (None on "meta").

    Raises: RuntimeError, as PyTorch does, where there is not so much memory.
    """
    where = spec.device
    xp: Any = np
    if where is not CPU:
        if where.type == "meta":
            return None
        xp = array_module(where)
        if several_gpus and xp.cuda.runtime.getDevice() != where.index:
            with xp.cuda.Device(where.index):
                return empty(spec)
    try:
        if spec.dense and spec.numel:  # 0.2 µs (0.1 row-major); a strided view on flat memory takes 4
            sizes, axes = spec.allocation
            memory = np.empty(sizes, spec.dtype.numpy) if xp is np else device_empty(sizes, spec.dtype.numpy)
            return memory if axes is None else memory.transpose(axes)
        flat = xp.empty(layout.storage_size(spec.shape, spec.stride), spec.dtype.numpy)
    except (MemoryError, ValueError) as cause:  # NumPy's ValueError: more than fits an address
        needed = layout.storage_size(spec.shape, spec.stride) * spec.dtype.itemsize
        raise RuntimeError(
            f"can't allocate memory: {needed:,} bytes on {where} for shape {list(spec.shape)}, {spec.dtype}; "
            "device='meta' computes shapes without memory"
        ) from cause
    return strided_view(flat, spec, 0)


def ones(spec: Spec) -> Array:
    """Memory laid out as `spec` says, filled with 1 (None on "meta"). Raises as `empty`."""
    made = empty(spec)
    if made is not None and several_gpus and spec.device is not CPU:
        with require_cupy().cuda.Device(spec.device.index):
            made.fill(1)
    elif made is not None:
        made.fill(1)
    return made


def storage(array: Array) -> Array:
    """The array that owns `array`'s memory as far as NumPy knows: the end of its chain of `.base`. On a GPU the bytes
    of the whole block that was allocated, since CuPy's views from a pointer have no base.
    """
    if not isinstance(array, np.ndarray):
        cupy, block = require_cupy(), array.data.mem
        return cupy.ndarray((block.size,), np.uint8, cupy.cuda.MemoryPointer(block, 0))
    base = array.base
    while base is not None:
        if isinstance(base, _Interface):
            base = base.owner
        elif type(base) is not type(array):
            break
        array, base = base, base.base
    return array


def share_storage(one: Array, other: Array) -> bool:
    """Whether two arrays look into the same memory block."""
    if isinstance(one, np.ndarray):
        return storage(one) is storage(other)
    return one.data.mem is other.data.mem


def address(array: Array) -> int:
    """Address in bytes of the first element."""
    if isinstance(array, np.ndarray):
        return array.__array_interface__["data"][0]
    return array.data.ptr


class _Interface:
    """Lets NumPy view memory whose owner is not one C-contiguous array (a Fortran-ordered array of the user's, say)."""

    def __init__(self, owner: Array, pointer: int, spec: Spec) -> None:
        self.owner = owner  # kept alive through the view's .base
        self.__array_interface__ = {
            "version": 3,
            "shape": tuple(spec.shape),
            "typestr": spec.dtype.numpy.str,
            "data": (pointer, not owner.flags.writeable),
            "strides": spec.byte_strides,
        }


def strided_view(array: Array, spec: Spec, offset: int) -> Array:
    """A view on the storage of `array`: `offset` elements after the first element of `array`, with the spec's shape and
    strides.

    The caller has checked that the view stays inside the storage.
    """
    if isinstance(array, np.generic):  # what NumPy makes of the result of 0-dim arrays
        array = np.asarray(array)
    if isinstance(array, np.ndarray):
        owner = storage(array)
        start = address(array) - address(owner) + offset * spec.dtype.itemsize
        if owner.flags.c_contiguous and start <= owner.nbytes:  # 0.3 µs; np.lib.stride_tricks.as_strided takes 2.6
            return np.ndarray(spec.shape, spec.dtype.numpy, owner, start, spec.byte_strides)
        view = np.asarray(_Interface(owner, address(owner) + start, spec))
        return view if view.dtype == spec.dtype.numpy else view.view(spec.dtype.numpy)  # bfloat16 has no type string
    distance = offset * spec.dtype.itemsize if array.size else 0  # CuPy's memory of no elements cannot be stepped in
    return require_cupy().ndarray(tuple(spec.shape), spec.dtype.numpy, array.data + distance, spec.byte_strides)


_by_layout: dict[tuple[object, ...], Spec] = {}


def spec_of_array(array: Array, where: device = CPU) -> Spec:
    """The Spec that describes an array as it is."""
    key = (array.shape, array.strides, array.dtype, where)
    spec = _by_layout.get(key)
    if spec is None:
        if len(_by_layout) >= 65_536:
            _by_layout.clear()
        kind = of_numpy(array.dtype)
        stride = tuple(step // kind.itemsize for step in array.strides)
        spec = _by_layout[key] = spec_of(array.shape, stride, kind, where)
    return spec
