"""CuPy's ufuncs: their loops, in the order in which CuPy tries them, are those of the snapshot."""

from typing import Any

import ml_dtypes
import numpy as np

from tests.cuda_simulator import arrays, calls
from tests.cuda_simulator.arrays import ndarray

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_WORDS = frozenset(("int32", "int64", "uint32", "uint64"))
ATOMIC = {  # types for which a scatter with integer indices has an atomic operation
    "add": _WORDS | {"float16", "float32", "float64"},
    "subtract": frozenset(("int32", "uint32")),
    "maximum": _WORDS | {"float32", "float64"},
    "minimum": _WORDS | {"float32", "float64"},
    "bitwise_and": _WORDS,
    "bitwise_or": _WORDS,
    "bitwise_xor": _WORDS,
}


def _floor_divide(x: Any, y: Any) -> Any:
    """As CuPy's carray.cuh has it: the quotient of floating point numbers is rounded before it is floored."""
    if x.dtype.kind in "iub":
        return np.floor_divide(x, y)
    return np.floor(np.true_divide(x, y))


def _remainder(x: Any, y: Any) -> Any:
    """What CuPy's quotient leaves."""
    return np.remainder(x, y) if x.dtype.kind in "iub" else x - _floor_divide(x, y) * y


_OTHERWISE = {"floor_divide": _floor_divide, "remainder": _remainder}
"""Ufuncs whose values are not NumPy's."""


class ufunc:
    """`cupy.ufunc`: `out`, `dtype` and `casting` only, and only for the types CuPy has a loop for."""

    def __init__(self, name: str, types: list[str], nin: int) -> None:
        self.name = f"cupy_{name}"
        self.__name__ = name
        self.types = types
        self.nin = nin
        self.nout = len(types[0].partition("->")[2]) if types else 1
        self.nargs = self.nin + self.nout
        self._numpy = _OTHERWISE.get(name, getattr(np, name))
        self._loops: dict[Any, str] = {}  # found before, by types of operands

    def __repr__(self) -> str:
        return f"<ufunc '{self.name}'>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        unknown = set(kwargs) - {"out", "dtype", "casting"}
        if unknown:
            raise TypeError(f"Wrong arguments { ({key: kwargs[key] for key in sorted(unknown)}) } for {self.name}")
        if not self.nin <= len(args) <= self.nargs:
            raise TypeError(f"Wrong number of arguments for {self.name!r}")
        args, outs = args[: self.nin], args[self.nin :]
        for each in args:
            check_operand(each)
        out = kwargs.get("out")
        if outs:
            if out is not None:
                raise ValueError("Cannot specify 'out' as both a positional and keyword argument")
            out = outs[0] if self.nout == 1 else tuple(outs)
        if isinstance(out, tuple) and self.nout == 1:
            (out,) = out
        dtype = kwargs.get("dtype")
        casting = kwargs.get("casting", "same_kind")
        loop = self._loop(args, dtype)
        kinds = [_dtype(letter) for letter in loop.partition("->")[2]]
        if out is not None:
            for each, kind in zip(out if isinstance(out, tuple) else (out,), kinds, strict=False):
                if not isinstance(each, ndarray):
                    raise TypeError("Output arguments type must be cupy.ndarray")
                if not np.can_cast(kind, each.dtype, casting):
                    raise TypeError(
                        f"output (typecode {kind.char!r}) could not be coerced to provided output parameter "
                        f"(typecode {each.dtype.char!r}) according to the casting rule {casting!r}"
                    )
            self._check_shape(args, out if isinstance(out, tuple) else (out,))
        inputs = loop.partition("->")[0]

        def compute(*values: Any, out: Any = None) -> Any:
            found = self._compute(inputs, values)
            results = found if isinstance(found, tuple) else (found,)
            pairs = zip(results, kinds, strict=True)
            results = tuple(np.asarray(each).astype(kind, copy=False) for each, kind in pairs)
            if out is not None:
                for target, each in zip(out if isinstance(out, tuple) else (out,), results, strict=False):
                    np.copyto(target, each, casting="unsafe")
            return results if self.nout > 1 else results[0]

        return calls.call(compute, self.name, args, {} if out is None else {"out": out})

    def _compute(self, inputs: str, values: tuple[Any, ...]) -> Any:
        """The values in the loop's input types; half precision is computed in float32, as CuPy's kernels do."""
        cast = []
        for letter, value in zip(inputs, values, strict=True):
            kind = _dtype(letter)
            value = np.asarray(value)
            if value.dtype != kind:
                value = value.astype(kind)
            if letter in "eE":
                value = value.astype(np.float32)
            cast.append(value)
        return self._numpy(*cast)

    def _loop(self, args: tuple[Any, ...], dtype: Any) -> str:
        """The first loop that takes the operands, in CuPy's order; with `dtype`, the first that returns it."""
        if dtype is not None:
            wanted = np.dtype(dtype)
            for loop in self.types:
                if all(_dtype(letter) == wanted for letter in loop.partition("->")[2]):
                    return loop
            raise TypeError(f"Wrong type ({wanted}) of arguments for {self.name}")
        kinds, weaks = zip(*map(_kind, args), strict=True)
        if (kinds, weaks) not in self._loops:
            self._loops[kinds, weaks] = self._find(kinds, weaks)
        return self._loops[kinds, weaks]

    def _find(self, kinds: tuple[Any, ...], weaks: tuple[Any, ...]) -> str:
        strongest = max((_score(kind) for kind, weak in zip(kinds, weaks, strict=True) if weak is None), default=-1)
        weakest = max((_score(kind) for kind, weak in zip(kinds, weaks, strict=True) if weak is not None), default=-1)
        if strongest < weakest:  # a number of a higher kind than all arrays counts as an array would
            weaks = (None,) * len(kinds)
        for loop in self.types:
            inputs = [_dtype(letter) for letter in loop.partition("->")[0]]
            if all(map(_takes, kinds, weaks, inputs)):
                return loop
        raise TypeError(f"Wrong type ({kinds}) of arguments for {self.name}")

    def _check_shape(self, args: tuple[Any, ...], outs: tuple[Any, ...]) -> None:
        shapes = [each.shape for each in (*args, *outs) if isinstance(each, ndarray)]
        shape = np.broadcast_shapes(*shapes)
        if any(each.shape != shape for each in outs):
            raise ValueError("Out shape is mismatched")

    def _method(self, name: str, *args: Any, **kwargs: Any) -> Any:
        for each in args[:1]:
            check_operand(each)
        return calls.call(getattr(self._numpy, name), f"{self.name}.{name}", args, kwargs)

    def reduce(self, array: Any, axis: Any = 0, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        return self._method("reduce", array, axis=axis, dtype=dtype, out=out, keepdims=keepdims)

    def accumulate(self, array: Any, axis: int = 0, dtype: Any = None, out: Any = None) -> Any:
        return self._method("accumulate", array, axis=axis, dtype=dtype, out=out)

    def reduceat(self, array: Any, indices: Any, axis: int = 0, dtype: Any = None, out: Any = None) -> Any:
        return self._method("reduceat", array, indices, axis=axis, dtype=dtype, out=out)

    def outer(self, A: Any, B: Any, **kwargs: Any) -> Any:
        check_operand(A)
        check_operand(B)
        return self(A.reshape(A.shape + (1,) * B.ndim), B, **kwargs)

    def at(self, a: Any, indices: Any, b: Any = None) -> None:
        """In place, duplicates of an index counted each."""
        if self.__name__ not in ATOMIC:
            raise NotImplementedError(f"`{self.name}.at` is not supported yet")
        scatter(self._numpy, f"{self.name}.at", a, indices, b)


def scatter(function: Any, name: str, a: Any, indices: Any, b: Any) -> None:
    """`function.at(a, indices, b)` on the device."""
    from tests.cuda_simulator import functions, indexing

    if not isinstance(a, ndarray):
        raise TypeError(f"{name}: expected cupy.ndarray, got {type(a)}")
    if isinstance(b, (np.ndarray, list)):
        raise TypeError(f"Unsupported type {type(b)}")
    parts, sources, advanced, mask = indexing._key(a, indices)
    if mask:
        functions.wait(name)
    elif advanced and a.dtype.name not in ATOMIC[function.__name__]:
        raise TypeError(f"cupy.{function.__name__}.at: there is no atomic operation for {a.dtype}")
    if isinstance(b, ndarray) and not np.can_cast(b.dtype, a.dtype, "same_kind"):
        raise TypeError(f"{name}: cannot cast {b.dtype} to {a.dtype}")
    target = arrays.host(a)
    given = arrays.host(b) if isinstance(b, ndarray) else b
    reads = [*sources, *([b] if isinstance(b, ndarray) else [])]

    index = indexing.on_host(parts)

    def run() -> None:
        function.at(target, indexing.wrapped(target.shape, index), np.asarray(given).astype(a.dtype))

    calls.launch(name, run, reads, [a])


def check_operand(value: Any) -> None:
    """Raises: TypeError for what CuPy's kernels do not take: NumPy arrays, lists, None."""
    if isinstance(value, (ndarray, bool, int, float, complex, np.generic)):
        return
    if hasattr(value, "__cupy_get_ndarray__"):
        return
    raise TypeError(f"Unsupported type {type(value)}")


def _dtype(letter: str) -> Any:
    return BFLOAT16 if letter == "E" else np.dtype(letter)


def _kind(value: Any) -> tuple[Any, Any]:
    """The dtype of an operand, and its class where it is a Python number, which adapts to the arrays."""
    if isinstance(value, (ndarray, np.generic)) and not isinstance(value, (float, complex)):
        return value.dtype, None
    if isinstance(value, np.generic):
        return value.dtype, None
    weak = bool if isinstance(value, bool) else int if isinstance(value, int) else type(value)
    return np.dtype(weak), None if weak is bool else weak


def _score(kind: Any) -> int:
    return {"b": 0, "i": 1, "u": 1}.get(kind.kind, 2)


def _takes(kind: Any, weak: Any, letter: Any) -> bool:
    """Whether a loop with this input type takes an operand."""
    if np.can_cast(kind, letter, "safe"):
        return True
    if weak is None:
        return False
    try:
        return bool(np.result_type(weak(0), letter) == letter)
    except TypeError:
        return False
