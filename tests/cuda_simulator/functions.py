"""CuPy's functions: NumPy's of the same name, run as kernels, with CuPy's parameters and its refusals."""

import inspect
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from tests.cuda_simulator import api, arrays, calls, counters, creation, cublas, streams
from tests.cuda_simulator.arrays import ndarray
from tests.cuda_simulator.ufuncs import BFLOAT16, check_operand, ufunc

# The host waits in these: the size of the result, or a warning, depends on values.
WAIT = {
    *("nonzero", "argwhere", "flatnonzero", "unique", "unique_all", "unique_counts", "unique_inverse", "unique_values"),
    *("compress", "extract", "bincount", "setdiff1d", "union1d", "intersect1d", "setxor1d", "trim_zeros", "histogram"),
    *("histogram2d", "histogramdd", "delete", "nanmin", "nanmax"),
}
RETURNS_NO_ARRAY = {
    *("ndim", "size", "shape", "result_type", "promote_types", "can_cast", "min_scalar_type", "iscomplexobj"),
    *("isrealobj", "isscalar", "broadcast_shapes", "may_share_memory", "shares_memory", "issubdtype", "isdtype"),
    *("finfo", "iinfo", "isfortran", "common_type", "binary_repr", "base_repr", "array_repr", "array_str"),
    *("array2string", "get_array_module"),
    *("get_printoptions", "set_printoptions", "printoptions", "format_float_positional", "format_float_scientific"),
    *("typename", "mintypecode", "ix_", "ndindex", "dtype"),
}
# Host scalars in, device array out.
FROM_HOST = {
    *("arange", "linspace", "logspace", "geomspace", "eye", "identity", "tri", "indices", "hanning", "hamming"),
    *("blackman", "bartlett", "kaiser", "tril_indices", "triu_indices", "mask_indices", "diag_indices", "tri"),
}
# Parameters that hold an array, which must be a device array.
ARRAYS = ("a", "x", "ar", "arr", "array", "m", "x1", "x2", "b", "y", "element", "ary", "v")

# What sorts, or counts on an order, takes no bfloat16.
UNSORTED = {"sort", "argsort", "partition", "argpartition", "unique", "median", "percentile", "quantile", "lexsort"}
_SCANS = {"cumsum", "cumprod"}  # CuPy's kernel for them does not compile for bfloat16
_ACCUMULATED = {"sum", "prod", "mean", "var", "std", "cumsum", "cumprod", "trace", "average", "nansum", "nanmean"}
_PRODUCTS = {"matmul", "dot", "vdot", "inner", "outer", "tensordot", "einsum", "kron"}


def function(owner: str, name: str, numpy_function: Callable[..., Any]) -> Callable[..., Any]:
    """A CuPy function that does what NumPy's does, on device arrays, with CuPy's parameters."""
    signature = api.signature(owner, name)
    theirs = _parameters(numpy_function)

    def run(*args: Any, **kwargs: Any) -> Any:
        api.check_call(owner, name, args, kwargs)
        if name in RETURNS_NO_ARRAY:
            sources: list[ndarray] = []
            return numpy_function(*calls.unwrap(args, sources, name), **calls.unwrap(kwargs, sources, name))
        if name not in FROM_HOST:
            _check_arrays(signature, name, args, kwargs)
        if name in WAIT:
            wait(name)
        if name in UNSORTED and any(each.dtype == BFLOAT16 for each in args if isinstance(each, ndarray)):
            raise NotImplementedError(f"cupy.{name}: dtype bfloat16 is not supported")
        args, kwargs = _translate(signature, theirs, args, kwargs)
        if name in _SCANS and _kind_of_scan(args, kwargs) == BFLOAT16:
            raise TypeError(f'cupy.{name}: NVRTC: no operator "*=" or "+=" matches these operands: bfloat16')
        _refuse_in_capture(name, args)
        return calls.call(_half(name, numpy_function), name, args, kwargs)

    run.__name__ = run.__qualname__ = name
    return run


def _kind_of_scan(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    dtype = args[2] if len(args) > 2 else kwargs.get("dtype")
    return args[0].dtype if dtype is None else np.dtype(dtype)


def _refuse_in_capture(name: str, args: Any) -> None:
    """Products of floating point arrays go to cuBLAS."""
    floating = any(each.dtype.kind in "fcV" for each in args if isinstance(each, ndarray))
    if floating and name in _PRODUCTS - {"outer", "kron"}:
        cublas.refuse_in_capture()


def wait(what: str) -> None:
    """The host waits for the current stream to learn a size.

    Raises: CUDARuntimeError while the stream is captured.
    """
    streams.forbid_in_capture()
    counters.waited(what)
    streams.host_waits(streams.current_queue().clock)


def signature_of(numpy_function: Callable[..., Any]) -> inspect.Signature | None:
    """NumPy's parameters, where it says them."""
    try:
        return inspect.signature(numpy_function)
    except (TypeError, ValueError):
        return None


def _parameters(numpy_function: Callable[..., Any]) -> list[str] | None:
    found = signature_of(numpy_function)
    return None if found is None else list(found.parameters)


def _check_arrays(signature: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if signature is None:
        return
    for parameter, value in [*zip(signature.parameters, args, strict=False), *kwargs.items()]:
        if parameter in ARRAYS and isinstance(value, (list, tuple, np.ndarray)):
            raise TypeError(f"{name}: Unsupported type {type(value)} for {parameter!r}: CuPy takes device arrays")


def _translate(
    signature: Any, theirs: list[str] | None, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Keywords that NumPy calls otherwise, under NumPy's name: the one at the same place."""
    if signature is None or theirs is None:
        return args, kwargs
    mine = list(signature.parameters)
    positional = []
    found = {}
    for number, (name, value) in enumerate([*zip(mine, args, strict=False), *kwargs.items()]):
        place = mine.index(name) if name in mine else -1
        across = theirs[place] if 0 <= place < len(theirs) else None  # what NumPy has at the same place
        if number < len(args) and (name == across or across not in mine):
            positional.append(value)
        elif name in theirs:
            found[name] = value
        elif across is not None and across not in mine:
            found[across] = value
        elif value is not signature.parameters[name].default:
            raise NotImplementedError(f"the simulated device does not know the parameter {name!r} here")
    return (*positional, *args[len(mine) :]), found


def _half(name: str, numpy_function: Callable[..., Any]) -> Callable[..., Any]:
    """Sums and products of half precision are accumulated in float32, as on a device, and rounded once."""
    if name not in _ACCUMULATED and name not in _PRODUCTS:
        return numpy_function

    def run(*args: Any, out: Any = None, **kwargs: Any) -> Any:
        halves = {BFLOAT16, np.dtype(np.float16)}
        found = [each for each in _flat(args) if isinstance(each, np.ndarray)]
        kinds = {each.dtype for each in found}
        wanted = kwargs.get("dtype")
        extra = {} if out is None else {"out": out}
        if not kinds & halves or not (kinds <= halves):
            return numpy_function(*args, **kwargs, **extra)
        target = np.result_type(*kinds) if wanted is None else np.dtype(wanted)
        if name in ("var", "std") and target == BFLOAT16:  # CuPy has kernels for half, single and, for the rest, double
            target = np.dtype(np.float64)
        wide = _map(args, lambda each: each.astype(np.float32) if each.dtype in halves else each)
        if wanted is not None:
            kwargs = {**kwargs, "dtype": np.float32 if target in halves else target}
        result = np.asarray(numpy_function(*wide, **kwargs)).astype(target, copy=False)
        if out is not None:
            np.copyto(out, result, casting="same_kind")
            return out
        return result

    return run


def _flat(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [leaf for each in value for leaf in _flat(each)]
    return [value]


def _map(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_map(each, change) for each in value)
    return change(value) if isinstance(value, np.ndarray) else value


# Functions that differ from NumPy's in more than parameters.


def where(condition: Any, x: Any = None, y: Any = None) -> Any:
    """`cupy.where`."""
    if (x is None) != (y is None):
        raise ValueError("Must provide both 'x' and 'y' or neither.")
    if x is None:
        from tests.cuda_simulator import module

        return module.cupy().nonzero(condition)
    return _inside("where", 3)(condition, x, y)


def take(a: Any, indices: Any, axis: Any = None, out: Any = None) -> Any:
    """`cupy.take`: indices wrap around."""
    if not isinstance(a, ndarray):
        raise TypeError(f"take: Unsupported type {type(a)}")
    if isinstance(indices, (list, tuple, np.ndarray)):
        indices = creation.array(indices)
    return calls.call(
        lambda values, places, **more: np.take(values, places, axis, mode="wrap", **more),
        "take",
        (a, indices),
        {} if out is None else {"out": out},
    )


def take_along_axis(a: Any, indices: Any, axis: Any) -> Any:
    """`cupy.take_along_axis`: indices wrap around."""

    def compute(values: Any, places: Any) -> Any:
        length = values.size if axis is None else values.shape[axis]
        return np.take_along_axis(values, places.astype(np.int64) % max(length, 1), axis)

    if not isinstance(a, ndarray) or not isinstance(indices, ndarray):
        raise TypeError(f"take_along_axis: Unsupported type {type(a)}, {type(indices)}")
    return calls.call(compute, "take_along_axis", (a, indices), {})


def put_along_axis(arr: Any, indices: Any, values: Any, axis: Any) -> None:
    """`cupy.put_along_axis`."""
    if not isinstance(arr, ndarray) or not isinstance(indices, ndarray) or isinstance(values, (np.ndarray, list)):
        raise TypeError(f"put_along_axis: Unsupported type {type(arr)}, {type(indices)}, {type(values)}")
    target, places = arrays.host(arr), arrays.host(indices)
    given = arrays.host(values) if isinstance(values, ndarray) else values
    reads = [each for each in (indices, values) if isinstance(each, ndarray)]
    calls.launch("put_along_axis", lambda: np.put_along_axis(target, places, given, axis), reads, [arr])


def putmask(a: Any, mask: Any, values: Any) -> None:
    """`cupy.putmask`."""
    for each in (a, mask):
        if not isinstance(each, ndarray):
            raise TypeError(f"putmask: Unsupported type {type(each)}")
    target, places = arrays.host(a), arrays.host(mask)
    given = arrays.host(values) if isinstance(values, ndarray) else values
    reads = [mask, *([values] if isinstance(values, ndarray) else [])]
    calls.launch("putmask", lambda: np.putmask(target, places, given), reads, [a])


def put(a: Any, ind: Any, v: Any, mode: str = "wrap") -> None:
    """`cupy.put`."""
    target = arrays.host(a)
    sources: list[ndarray] = []
    places, given = calls.unwrap((ind, v), sources, "put")
    calls.launch("put", lambda: np.put(target, places, given, mode), sources, [a])


def place(arr: Any, mask: Any, vals: Any) -> None:
    """`cupy.place`."""
    target = arrays.host(arr)
    sources: list[ndarray] = []
    places, given = calls.unwrap((mask, vals), sources, "place")
    calls.launch("place", lambda: np.place(target, places, given), sources, [arr])


def fill_diagonal(a: Any, val: Any, wrap: bool = False) -> None:
    """`cupy.fill_diagonal`."""
    target = arrays.host(a)
    sources: list[ndarray] = []
    (given,) = calls.unwrap((val,), sources, "fill_diagonal")
    calls.launch("fill_diagonal", lambda: np.fill_diagonal(target, given, wrap), sources, [a])


def shuffle(generator: Any, a: Any) -> None:
    """In place along the first axis."""
    target = arrays.host(a)
    calls.launch("shuffle", lambda: generator.shuffle(target), [a], [a])


def broadcast_to(array: Any, shape: Any) -> ndarray:
    """`cupy.broadcast_to`: a view, which one may write, unlike NumPy's."""
    if not isinstance(array, ndarray):
        array = creation.array(array)
    result = arrays.view_of(array, np.broadcast_to(arrays.host(array), shape))
    kept = zip(array.shape, array.strides, result.shape[result.ndim - array.ndim :], strict=True)
    steps = [step if length == after else 0 for length, step, after in kept]
    result._strides = (0,) * (result.ndim - array.ndim) + tuple(steps)
    return result


def expand_dims(a: Any, axis: Any) -> ndarray:
    """`cupy.expand_dims`: a reshape."""
    if not isinstance(a, ndarray):
        raise TypeError(f"expand_dims: Unsupported type {type(a)}")
    return a.reshape(np.expand_dims(arrays.host(a), axis).shape)


def squeeze(a: Any, axis: Any = None) -> ndarray:
    """`cupy.squeeze`: the array itself where there is nothing to remove."""
    seen = np.squeeze(arrays.host(a), axis)
    return a if seen.shape == a.shape else arrays.view_of(a, seen)


def diagonal(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> ndarray:
    """`cupy.diagonal`: a view."""
    return arrays.view_of(a, np.diagonal(arrays.host(a), offset, axis1, axis2))


def array_equal(a1: Any, a2: Any, equal_nan: bool = False) -> ndarray:
    """`cupy.array_equal`: a 0-dim device array."""
    for each in (a1, a2):
        check_operand(each)
    return calls.call(lambda x, y: np.asarray(np.array_equal(x, y, equal_nan)), "array_equal", (a1, a2), {})


def allclose(a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> ndarray:
    """`cupy.allclose`: a 0-dim device array."""
    for each in (a, b):
        check_operand(each)
    return calls.call(lambda x, y: np.asarray(np.allclose(x, y, rtol, atol, equal_nan)), "allclose", (a, b), {})


def clip(a: Any, a_min: Any = None, a_max: Any = None, out: Any = None) -> Any:
    """`cupy.clip`."""
    if not isinstance(a, ndarray):
        raise TypeError(f"clip: Unsupported type {type(a)}")
    if a_min is None and a_max is None:
        raise ValueError("array_clip: must set either max or min")
    limits = np.iinfo(a.dtype) if a.dtype.kind in "iu" else None
    low = a_min if a_min is not None else limits.min if limits else -math.inf
    high = a_max if a_max is not None else limits.max if limits else math.inf
    return _inside("clip", 3)(a, low, high, **({} if out is None else {"out": out}))


def round(a: Any, decimals: int = 0, out: Any = None) -> Any:
    """`cupy.round`."""
    if not isinstance(a, ndarray):
        raise TypeError(f"round: Unsupported type {type(a)}")
    found = _inside("round", 2)
    if decimals == 0 and a.dtype.kind in "biu" and a.dtype.kind != "b" and out is None:
        return a.copy()
    return found(a, decimals, **({} if out is None else {"out": out}))


@cache
def _inside(name: str, operands: int) -> ufunc:
    """The ufunc inside a function."""
    return ufunc(name, api.snapshot()["loops"][name], operands)


def matmul(*args: Any, **kwargs: Any) -> Any:
    """`cupy.matmul`."""
    api.check_call("cupy", "matmul", args, kwargs)
    for each in args:
        if not isinstance(each, ndarray):
            raise TypeError(f"matmul: Unsupported type {type(each)}")
    if len(args) == 3:
        *args, kwargs["out"] = args  # type: ignore[assignment]
    if np.result_type(*(each.dtype for each in args)) == BFLOAT16:
        raise TypeError("cupy.matmul takes bfloat16 for an integer type; call cuBLAS")
    _refuse_in_capture("matmul", args)
    return calls.call(_half("matmul", np.matmul), "matmul", tuple(args), kwargs)


def repeat(a: Any, repeats: Any, axis: Any = None) -> Any:
    """`cupy.repeat`: an array of counts is read by the host."""
    if isinstance(repeats, (ndarray, np.ndarray)):
        raise TypeError("repeat: CuPy takes an integer or a sequence of them, not an array")
    return calls.call(np.repeat, "repeat", (a, repeats), {"axis": axis})


def rsqrt(x: Any, /, out: Any = None, **kwargs: Any) -> Any:
    """`cupyx.rsqrt`."""
    check_operand(x)
    return calls.call(
        lambda values, **more: np.divide(values.dtype.type(1), np.sqrt(values), **more),
        "rsqrt",
        (x,),
        {} if out is None else {"out": out},
    )


def as_strided(x: Any, shape: Any = None, strides: Any = None) -> ndarray:
    """`cupy.lib.stride_tricks.as_strided`."""
    shape = x.shape if shape is None else tuple(shape)
    strides = x.strides if strides is None else tuple(strides)
    result = arrays.view_of(x, arrays.host(x))
    result._shape, result._strides = tuple(map(int, shape)), tuple(map(int, strides))
    reached = arrays.reach(result)
    if reached is not None:
        block, start, stop = reached
        if start < block.start or stop > block.start + block.size:
            raise ValueError(f"as_strided: shape {shape} and strides {strides} leave the memory of the array")
    return result


class Grid:
    """`cupy.mgrid` and `cupy.ogrid`."""

    def __init__(self, numpy_grid: Any, name: str) -> None:
        self._grid = numpy_grid
        self._name = name

    def __getitem__(self, key: Any) -> Any:
        return calls.call(lambda: self._grid[key], self._name, (), {})


class Joined:
    """`cupy.r_` and `cupy.c_` for arrays."""

    def __init__(self, numpy_joined: Any, name: str) -> None:
        self._joined = numpy_joined
        self._name = name

    def __getitem__(self, key: Any) -> Any:
        parts = key if isinstance(key, tuple) else (key,)
        return calls.call(lambda *values: self._joined[values], self._name, parts, {})


def get_array_module(*args: Any) -> Any:
    """`cupy.get_array_module`."""
    from tests.cuda_simulator import module

    return module.cupy() if any(isinstance(each, ndarray) for each in args) else np
