"""The numpy|cupy seam: which array module a device uses, allocation by Spec, strided views. The only module that
imports CuPy.
"""

from types import ModuleType
from typing import Any

import numpy as np

from engine import layout
from engine.device import CPU, device
from engine.dtypes import of_numpy
from engine.spec import Spec, spec_of

SCALAR = np.generic  # what NumPy returns in place of a 0-dim array

Array = Any  # numpy.ndarray or cupy.ndarray: the two are used through the same methods

_cupy: ModuleType | None = None


def require_cupy() -> ModuleType:
    """The CuPy module, imported at first use.

    Raises: RuntimeError that says whether CuPy or a GPU is missing and how to get it, with the original cause.
    """
    global _cupy
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
        _cupy = module
    return _cupy


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
    try:
        if spec.dense and spec.numel:  # 0.2 µs (0.1 row-major); a strided view on flat memory takes 4
            sizes, axes = spec.allocation
            memory = xp.empty(sizes, spec.dtype.numpy)
            return memory if axes is None else memory.transpose(axes)
        flat = xp.empty(layout.storage_size(spec.shape, spec.stride), spec.dtype.numpy)
    except (MemoryError, ValueError) as cause:  # NumPy's ValueError: more than fits an address
        needed = layout.storage_size(spec.shape, spec.stride) * spec.dtype.itemsize
        raise RuntimeError(
            f"can't allocate memory: {needed:,} bytes on {where} for shape {list(spec.shape)}, {spec.dtype}; "
            "device='meta' computes shapes without memory"
        ) from cause
    return strided_view(flat, spec, 0)


def storage(array: Array) -> Array:
    """The array that owns `array`'s memory as far as NumPy or CuPy knows: the end of its chain of `.base`."""
    base = array.base
    while base is not None:
        if isinstance(base, _Interface):
            base = base.owner
        elif type(base) is not type(array):
            break
        array, base = base, base.base
    return array


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
    owner = storage(array)
    start = address(array) - address(owner) + offset * spec.dtype.itemsize
    if isinstance(array, np.ndarray):
        if owner.flags.c_contiguous and start <= owner.nbytes:  # 0.3 µs; np.lib.stride_tricks.as_strided takes 2.6
            return np.ndarray(spec.shape, spec.dtype.numpy, owner, start, spec.byte_strides)
        return np.asarray(_Interface(owner, address(owner) + start, spec))
    memory = array.data.mem
    pointer = require_cupy().cuda.MemoryPointer(memory, array.data.ptr - memory.ptr + offset * spec.dtype.itemsize)
    return require_cupy().ndarray(spec.shape, spec.dtype.numpy, pointer, spec.byte_strides)


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
