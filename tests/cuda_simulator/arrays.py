"""`cupy.ndarray`: an array in simulated device memory. Its values never become NumPy's without `get`."""

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.cuda_simulator import execution, handles, memory, pools, streams


class Flags:
    """`ndarray.flags`."""

    def __init__(self, c_contiguous: bool, f_contiguous: bool, owndata: bool) -> None:
        self.c_contiguous = c_contiguous
        self.f_contiguous = f_contiguous
        self.owndata = owndata

    @property
    def fnc(self) -> bool:
        return self.f_contiguous and not self.c_contiguous

    @property
    def forc(self) -> bool:
        return self.f_contiguous or self.c_contiguous

    def __getitem__(self, name: str) -> bool:
        return {"C_CONTIGUOUS": self.c_contiguous, "F_CONTIGUOUS": self.f_contiguous, "OWNDATA": self.owndata}[name]


def contiguous_strides(shape: tuple[int, ...], itemsize: int, order: str = "C") -> tuple[int, ...]:
    strides = []
    step = itemsize
    for length in reversed(shape) if order == "C" else shape:
        strides.append(step)
        step *= max(length, 1)
    return tuple(reversed(strides)) if order == "C" else tuple(strides)


class Exported:
    """What stands for DLPack's capsule; `from_dlpack` reads it."""

    def __init__(self, array: "ndarray") -> None:
        self.array = array


class ndarray:
    """An array on a simulated device."""

    __slots__ = ("__weakref__", "_shape", "_strides", "base", "data", "dtype")
    __array_priority__ = 100
    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self, shape: Any, dtype: Any = float, memptr: Any = None, strides: Any = None, order: str = "C"
    ) -> None:
        self._shape: tuple[int, ...] = (
            (int(shape),) if isinstance(shape, (int, np.integer)) else tuple(int(each) for each in shape)
        )
        if any(length < 0 for length in self._shape):
            raise ValueError("Negative dimensions are not allowed")
        self.dtype = np.dtype(dtype)
        if self.dtype.kind in "OSUMm" or (self.dtype.kind == "V" and self.dtype.names is not None):
            raise ValueError(f"Unsupported dtype {self.dtype}")
        if order not in ("C", "F", None):
            raise ValueError(f"order not understood. order={order}")
        if strides is not None:
            if memptr is None:
                raise ValueError("memptr is required if strides is given.")
            self._strides = tuple(int(each) for each in strides)
        else:
            self._strides = contiguous_strides(self._shape, self.dtype.itemsize, order or "C")
        self.data = pools.alloc(self.size * self.dtype.itemsize) if memptr is None else memptr
        self.base: ndarray | None = None

    # What it is.

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    @shape.setter
    def shape(self, shape: Any) -> None:
        changed = host(self).view()
        changed.shape = shape
        self._shape, self._strides = changed.shape, changed.strides

    @property
    def strides(self) -> tuple[int, ...]:
        return self._strides

    @property
    def ndim(self) -> int:
        return len(self._shape)

    @property
    def size(self) -> int:
        size = 1
        for length in self._shape:
            size *= length
        return size

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def device(self) -> handles.Device:
        return self.data.device

    @property
    def flags(self) -> Flags:
        flags = np.lib.stride_tricks.as_strided(np.empty(1, self.dtype), self._shape, self._strides).flags
        return Flags(flags.c_contiguous, flags.f_contiguous, self.base is None)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "shape": self._shape,
            "typestr": self.dtype.str,
            "descr": self.dtype.descr,
            "data": (self.data.ptr if self.size else 0, False),
            "version": 3,
            "strides": None if self.flags.c_contiguous else self._strides,
        }
        queue = streams.current_queue()
        found["stream"] = 1 if queue.null else queue.handle
        return found

    @property
    def T(self) -> "ndarray":
        return self.transpose()

    @property
    def mT(self) -> "ndarray":
        return self.swapaxes(-1, -2)

    @property
    def flat(self) -> Any:
        raise NotImplementedError("the simulated device has no flatiter")

    @property
    def real(self) -> "ndarray":
        return calls.call(np.real, "real", (self,), {}) if self.dtype.kind == "c" else self

    @real.setter
    def real(self, value: Any) -> None:
        store(self.real, Ellipsis, value)

    @property
    def imag(self) -> "ndarray":
        return calls.call(np.imag, "imag", (self,), {})

    @imag.setter
    def imag(self, value: Any) -> None:
        store(self.imag, Ellipsis, value)

    # To the host, which waits.

    def get(self, stream: Any = None, order: str = "C", out: Any = None, blocking: bool = True) -> Any:
        """The values as a NumPy array; the host waits unless `blocking` is False (then `out` is page-locked memory and
        the copy is on `stream`)."""
        if out is not None:
            if not isinstance(out, np.ndarray):
                raise TypeError("Only numpy.ndarray can be obtained from cupy.ndarray")
            if self.dtype != out.dtype:
                raise TypeError(f"{out.dtype} array cannot be obtained from {self.dtype} array")
            if self.shape != out.shape:
                raise ValueError(f"Shape mismatch. Expected shape: {self.shape}, actual shape: {out.shape}")
            if not (out.flags.c_contiguous or out.flags.f_contiguous):
                raise RuntimeError("`out` cannot be specified when copying to non-contiguous ndarray")
            target = out
        else:
            target = np.empty(self.shape, self.dtype, "F" if order == "F" else "C")
            if order == "A" and self.flags.fnc:
                target = np.empty(self.shape, self.dtype, "F")
        if self.size == 0:
            return target
        handle = (handles.get_current_stream() if stream is None else stream).ptr
        with self.device:
            queue = streams.queue_of(handle)
            source = self
            same = (target.flags.c_contiguous and self.flags.c_contiguous) or (
                target.flags.f_contiguous and self.flags.f_contiguous
            )
            if not same:
                with handles.ExternalStream(handle):
                    source = calls.copy(self, "C" if target.flags.c_contiguous else "F")
            waited = execution.copy_bytes(target.ctypes.data, source.data.ptr, self.nbytes, queue, "get")
            if blocking and not waited:
                streams.synchronize_queue(queue, "get")
        return target

    def set(self, arr: Any, stream: Any = None) -> None:
        """Copies a NumPy array of the same shape and dtype to the device."""
        if not isinstance(arr, np.ndarray):
            raise TypeError("Only numpy.ndarray can be set to cupy.ndarray")
        if self.dtype != arr.dtype:
            raise TypeError(f"{arr.dtype} array cannot be set to {self.dtype} array")
        if self.shape != arr.shape:
            raise ValueError(f"Shape mismatch. Old shape: {self.shape}, new shape: {arr.shape}")
        flags = self.flags
        if flags.c_contiguous:
            arr = np.ascontiguousarray(arr)
        elif flags.f_contiguous:
            arr = np.asfortranarray(arr)
        else:
            raise RuntimeError("Cannot set to non-contiguous array")
        queue = streams.current_queue() if stream is None else stream._queue()
        execution.copy_bytes(self.data.ptr, arr.ctypes.data, self.nbytes, queue, "set")

    def item(self, *args: Any) -> Any:
        return self.get().item(*args)

    def tolist(self) -> Any:
        return self.get().tolist()

    def tobytes(self, order: str = "C") -> bytes:
        return self.get().tobytes(order)

    def tofile(self, fid: Any, sep: str = "", format: str = "%s") -> None:
        self.get().tofile(fid, sep, format)

    def dump(self, file: Any) -> None:
        self.get().dump(file)

    def dumps(self) -> bytes:
        return self.get().dumps()

    def __bool__(self) -> bool:
        return bool(self.get())

    def __int__(self) -> int:
        return int(self.get())

    def __float__(self) -> float:
        return float(self.get())

    def __complex__(self) -> complex:
        return complex(self.get())

    def __index__(self) -> int:
        return self.get().__index__()

    def __repr__(self) -> str:
        return repr(self.get())

    def __str__(self) -> str:
        return str(self.get())

    def __format__(self, format_spec: str) -> str:
        return format(self.get(), format_spec)

    def __reduce__(self) -> Any:
        return _from_numpy, (self.get(),)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. "
            "Please use `.get()` to construct a NumPy array explicitly."
        )

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: Any = None
    ) -> "Exported":
        return Exported(self)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.data.device_id

    # Elements.

    def __len__(self) -> int:
        if not self._shape:
            raise TypeError("len() of unsized object")
        return self._shape[0]

    def __iter__(self) -> Iterator["ndarray"]:
        if not self._shape:
            raise TypeError("iteration over a 0-d array")
        return (self[index] for index in range(self._shape[0]))

    def __getitem__(self, key: Any) -> "ndarray":
        from tests.cuda_simulator import indexing

        return indexing.load(self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        store(self, key, value)

    def __delitem__(self, key: Any) -> None:
        raise TypeError("'cupy.ndarray' object does not support item deletion")

    def __copy__(self) -> "ndarray":
        return self.copy()

    def __deepcopy__(self, memo: Any) -> "ndarray":
        with self.device:
            return self.copy()

    # NumPy's functions called with device arrays are CuPy's.

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        from tests.cuda_simulator import module

        for each in inputs:
            if isinstance(each, np.ndarray) or not isinstance(each, (ndarray, np.generic, int, float, complex)):
                return NotImplemented
        out = kwargs.get("out")
        if out is not None:
            if len(out) != 1 or not isinstance(out[0], ndarray):
                return NotImplemented
            kwargs["out"] = out[0]
        mine = getattr(module.cupy(), ufunc.__name__, None)
        if mine is None:
            return NotImplemented
        return mine(*inputs, **kwargs) if method == "__call__" else getattr(mine, method)(*inputs, **kwargs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        from tests.cuda_simulator import module

        mine = module.cupy()
        for part in func.__module__.split(".")[1:]:
            mine = getattr(mine, part, mine)
        mine = getattr(mine, func.__name__, None)
        if mine is None or not all(issubclass(each, ndarray) for each in types):
            return NotImplemented
        return mine(*args, **kwargs)

    # Copies and views.

    def astype(
        self, dtype: Any, order: str = "K", casting: Any = None, subok: Any = None, copy: bool = True
    ) -> "ndarray":
        dtype = np.dtype(dtype)
        if casting is not None and not np.can_cast(self.dtype, dtype, casting):
            raise TypeError(f"Cannot cast array data from {self.dtype!r} to {dtype!r} by the rule {casting!r}")
        if order not in ("C", "F", "A", "K"):
            raise TypeError("order not understood")
        flags = self.flags
        if not copy and self.dtype == dtype:
            fits = {"C": flags.c_contiguous, "F": flags.f_contiguous, "A": flags.forc, "K": True}[order]
            if fits:
                return self
        if self.dtype.kind == "c" and dtype.kind not in "bc":
            warnings.warn(
                "Casting complex values to real discards the imaginary part", np.exceptions.ComplexWarning, stacklevel=2
            )
        return calls.convert(self, dtype, order)

    def copy(self, order: str = "C") -> "ndarray":
        return calls.copy(self, order)

    def view(self, dtype: Any = None) -> "ndarray":
        seen = host(self)
        seen = seen.view() if dtype is None else seen.view(dtype)
        return view_of(self, seen)

    def fill(self, value: Any) -> None:
        if isinstance(value, ndarray) and value.shape != ():
            raise ValueError("non-scalar cupy.ndarray cannot be used for fill")
        store(self, Ellipsis, value)

    def byteswap(self, inplace: bool = False) -> "ndarray":
        raise NotImplementedError("the simulated device has no byteswap")


def _from_numpy(values: Any) -> ndarray:
    from tests.cuda_simulator import creation

    return creation.array(values)


# Between device arrays and the host's view of their memory, which only the simulated device itself uses.


def host(array: ndarray) -> Any:
    """A NumPy array on the same bytes."""
    block = array.data.mem.block
    if block is None:
        if array.size == 0:
            return np.empty(array.shape, array.dtype)
        raw = execution.host_bytes(array.data.ptr, array.data.mem.size)  # memory that is not a simulated device's
        return np.ndarray(array.shape, array.dtype, raw, 0, array.strides)
    space = block.space
    return np.ndarray(array.shape, array.dtype, space.bytes.data, array.data.ptr - space.base, array.strides)


def reach(array: ndarray) -> Any:
    """The bytes an array may touch, for the race detector."""
    return execution.extent(array.data.mem.block, array.data.ptr, array.shape, array.strides, array.dtype.itemsize)


def view_of(array: ndarray, seen: Any) -> ndarray:
    """The device array for `seen`, a host's view of the memory of `array`."""
    address = seen.__array_interface__["data"][0] if seen.size else array.data.ptr
    result = ndarray.__new__(ndarray)
    result._shape = seen.shape
    result._strides = seen.strides
    result.dtype = seen.dtype
    result.data = memory.MemoryPointer(array.data.mem, address - array.data.mem.ptr)
    result.base = array if array.base is None else array.base
    return result


def store(array: ndarray, key: Any, value: Any) -> None:
    from tests.cuda_simulator import indexing

    indexing.store(array, key, value)


from tests.cuda_simulator import calls  # noqa: E402 - needs ndarray
