"""Compile a kernel on its first call: one machine function per kernel and dtype, kept on disk.

A kernel is a plain Python function under :func:`kernel`; its annotations (``Read2``, ``Write1``, ``float``, ...) are
its signature. Importing it costs nothing: Numba is imported, and the function compiled or read back from the disk
cache, when ``name[dtype.char]`` is first looked up. Afterwards that look-up is one dictionary access and gives the
compiled function itself, so nothing of ours stands between a caller and Numba's dispatcher.

Inside a kernel ``real`` is the constructor of the dtype being compiled (literals must go through it: a bare ``0.5`` is
float64 and would make float32 loops run in float64), ``fma(a, b, c)`` is ``a * b + c`` rounded once, ``min`` and
``max`` are of two numbers, and every :func:`helper` is inlined. With scratch that the caller brings a kernel compiles
0.1 s sooner than with ``np.empty``.

Numbers: no fast-math flag is set unless a helper asks for ``reassociate``. An elementwise result then depends on its
inputs alone, not on vector width, alignment, position in the array or CPU. ``reassociate`` lets a sum use vector lanes:
the result still does not depend on alignment, but it does on the CPU's vector width, so it is not used where ranks must
agree bit for bit.
"""

import contextlib
import dis
import functools
import gc
import importlib
import threading
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, overload

import numpy as np

from engine.kernels import ahead, files, store, waiting

DTYPES = {"f": "float32", "d": "float64"}

# Parameters of kernels: C-contiguous arrays of the dtype being compiled (T) or of a fixed one, never written (may be
# read-only) or written. Plain float, int, bool and Pair stand for float64, int64, boolean and two int64.
Read1 = Annotated[np.ndarray, "T", 1, "read"]
Read2 = Annotated[np.ndarray, "T", 2, "read"]
Read3 = Annotated[np.ndarray, "T", 3, "read"]
Read4 = Annotated[np.ndarray, "T", 4, "read"]
Write1 = Annotated[np.ndarray, "T", 1, "write"]
Write2 = Annotated[np.ndarray, "T", 2, "write"]
Write3 = Annotated[np.ndarray, "T", 3, "write"]
Write4 = Annotated[np.ndarray, "T", 4, "write"]
ReadFloat64 = Annotated[np.ndarray, "float64", 1, "read"]
ReadInt64 = Annotated[np.ndarray, "int64", 1, "read"]
ReadInt32 = Annotated[np.ndarray, "int32", 1, "read"]
WriteInt32 = Annotated[np.ndarray, "int32", 1, "write"]
WriteFloat64 = Annotated[np.ndarray, "float64", 2, "write"]

Pair = tuple[int, int]

_SCALARS = {float: "float64", int: "int64", bool: "boolean"}
_lock = threading.RLock()
_kernels: list["Kernel"] = []
_under_way: set[str] = set()  # kernels that this process compiles: one, and those it has come to while it waited


def real(value: Any) -> Any:
    """Round to the dtype being compiled. Only inside kernels and helpers."""
    raise RuntimeError(f"real({value}) exists only inside compiled kernels")


def fma(a: Any, b: Any, c: Any) -> Any:
    """``a * b + c`` with one rounding, the same on every CPU. Only inside kernels and helpers."""
    raise RuntimeError(f"fma({a}, {b}, {c}) exists only inside compiled kernels")


def array_at(address: int, start: int, size: int, like: np.ndarray) -> Any:
    """Flat array of ``size`` elements, ``start`` elements after an address, dtype of ``like``. Only inside kernels."""
    raise RuntimeError(f"array_at({address}, {start}, {size}, {like.dtype}) exists only inside compiled kernels")


def array_of(address: int, size: int, kind: Any) -> Any:
    """The same at an address, of a constructor's dtype: ``real``, ``np.int64``, ... Only inside kernels."""
    raise RuntimeError(f"array_of({address}, {size}, {kind}) exists only inside compiled kernels")


def sum_vectors(
    sources: np.ndarray, weights: np.ndarray, destinations: np.ndarray, begin: int, like: np.ndarray, divisor: float
) -> None:
    """The weighted sum of `VECTOR` elements of several arrays, see `engine.kernels.intrinsics`. Only inside kernels."""
    raise RuntimeError(f"sum_vectors({sources}, ..., {begin}, ..., {divisor}) exists only inside compiled kernels")


def number_at(address: int) -> int:
    """The int64 at an address that another process may be writing, with all that it wrote before. Only inside kernels
    and helpers.
    """
    raise RuntimeError(f"number_at({address}) exists only inside compiled kernels")


def relax() -> None:
    """Tell the processor that this thread only looks again, see `engine.kernels.intrinsics`. Only inside kernels."""
    raise RuntimeError("relax() exists only inside compiled kernels")


def announce(address: int, number: int) -> None:
    """Write an int64 to an address that another process reads, after all that was written before. Only inside kernels
    and helpers.
    """
    raise RuntimeError(f"announce({address}, {number}) exists only inside compiled kernels")


def stream(target: int, source: int, lines: int) -> None:
    """Copy memory past the caches, see `engine.kernels.intrinsics`. Only inside kernels."""
    raise RuntimeError(f"stream({target}, {source}, {lines}) exists only inside compiled kernels")


def flat(array: np.ndarray) -> Any:
    """The elements of a C-contiguous array along one axis, in the same memory. Only inside kernels and helpers."""
    raise RuntimeError(f"flat({array}) exists only inside compiled kernels")


def address(array: np.ndarray) -> Any:
    """Where an array's first element lies. Only inside kernels and helpers."""
    raise RuntimeError(f"address({array}) exists only inside compiled kernels")


def bits(number: Any) -> Any:
    """The integer of the same size with the bits of a float. Only inside kernels and helpers."""
    raise RuntimeError(f"bits({number}) exists only inside compiled kernels")


def from_bits(pattern: Any) -> Any:
    """The float of the same size with the bits of an integer. Only inside kernels and helpers."""
    raise RuntimeError(f"from_bits({pattern}) exists only inside compiled kernels")


def unsigned(index: Any) -> Any:
    """An index known not to be negative: Numba tests signed ones, and LLVM does not vectorise past that test.

    Only inside kernels and helpers.
    """
    raise RuntimeError(f"unsigned({index}) exists only inside compiled kernels")


_INTRINSICS = (
    *(fma, array_at, array_of, sum_vectors, number_at, announce, relax, stream, flat, address, bits, from_bits),
)


def multiply_tile(rows: int, wide: bool, like: np.ndarray, *places_steps_and_counts: Any) -> None:
    """Sums of products of a tile in registers, see `engine.kernels.tile`. Only inside kernels."""
    raise RuntimeError(f"multiply_tile({rows}, {wide}, ...) exists only inside compiled kernels")


def multiply_each(rows: int, wide: bool, like: np.ndarray, *places_steps_and_counts: Any) -> None:
    """The same of two vectors, see `engine.kernels.tile`. Only inside kernels."""
    raise RuntimeError(f"multiply_each({rows}, {wide}, ...) exists only inside compiled kernels")


def correlate_run(vectors: int, like: np.ndarray, *places_and_count: Any) -> None:
    """Sums of products along a run of pixels, see `engine.kernels.run`. Only inside kernels."""
    raise RuntimeError(f"correlate_run({vectors}, ...) exists only inside compiled kernels")


def add_products(rows: int, like: np.ndarray, *places_and_count: Any) -> None:
    """Sums of a run's products with others, see `engine.kernels.run`. Only inside kernels."""
    raise RuntimeError(f"add_products({rows}, ...) exists only inside compiled kernels")


def move(number: int, step: int, like: np.ndarray, target: int, source: int) -> None:
    """A few elements in one vector, see `engine.kernels.run`. Only inside kernels."""
    raise RuntimeError(f"move({number}, {step}, ..., {target}, {source}) exists only inside compiled kernels")


def transpose_tile(side: int, like: np.ndarray, *places_and_steps: Any) -> None:
    """A square block turned around in registers, see `engine.kernels.tile`. Only inside kernels."""
    raise RuntimeError(f"transpose_tile({side}, ...) exists only inside compiled kernels")


class Helper:
    """A function that kernels inline; ``float64`` replaces it in float64 kernels where another formula is better."""

    def __init__(self, function: Callable[..., Any], float64: Callable[..., Any] | None, reassociate: bool):
        self.functions = {"f": function, "d": float64 or function}
        self.reassociate = reassociate
        self._compiled: dict[str, Any] = {}

    def __call__(self, *arguments: Any) -> Any:
        raise RuntimeError(f"{self.functions['f'].__name__} exists only inside compiled kernels")

    def compiled(self, char: str) -> Any:
        """Numba's dispatcher of this helper for kernels of one dtype."""
        if char not in self._compiled:
            from engine.kernels import compiler

            body = _copy_of(self.functions[char])
            _specialise(body, char)
            self._compiled[char] = compiler.compile_helper(body, self.reassociate)
        return self._compiled[char]


class Kernel(dict[str, Any]):
    """``kernel[array.dtype.char]`` is the compiled function for that dtype; it takes positional arguments only.

    Raises TypeError for a dtype that has no kernel. The compiled function raises TypeError when an argument has another
    dtype, number of dimensions, or is not C-contiguous; nothing is ever compiled for argument types nobody foresaw.
    """

    def __init__(self, function: Callable[..., Any], interleave: int):
        super().__init__()
        self.function = function
        self.interleave = interleave
        self.name = f"{_idea(function.__module__)}.{function.__name__.strip('_')}"

    def __missing__(self, char: str) -> Any:
        if char not in DTYPES:
            known = ", ".join(f"{code!r} ({name})" for code, name in DTYPES.items())
            raise TypeError(
                f"kernel {self.name}: dtype code {char!r} is not supported, expected one of {known}; "
                "use the plain operators for other dtypes"
            )
        with _lock, _garbage_left():
            if char not in self:
                self[char] = self._compile(char)
        return self[char]

    def _compile(self, char: str) -> Any:
        from engine.kernels import compiler

        def missing(place: Path | None) -> None:
            coming = [one for one in self._companions(char) if not one.disk_cache(char).is_there()]
            waiting.tell(1 + len(coming), place)
            if place is not None and coming:
                ahead.start(compile_the_others)

        def compile_another() -> bool:
            for one in self._companions(char):
                cache = one.disk_cache(char)
                if cache.path and not cache.is_there() and not store.is_claimed(cache.path):
                    one.compiled(char)
                    return True
            return False

        def compile_the_others() -> None:
            while compile_another():
                pass

        _under_way.add(self.name)
        try:
            body, types = _copy_of(self.function), self._argument_types(char)
            complete = functools.partial(_specialise, body, char)  # takes 0.1 s the first time
            return compiler.compile_kernel(
                self.name, self.disk_cache(char), body, complete, types, self.interleave, missing, compile_another
            )
        finally:
            _under_way.discard(self.name)

    def entry(self, char: str) -> Any:
        """The compiled function of a kernel that takes scalars only, without Numba's search for a signature that fits.

        Called with other arguments it may do anything. A call takes 0.1 us, and 0.3 with the search, in a process with
        a second thread, where either costs more.
        """
        assert all(hint in _SCALARS for hint in self._hints.values()), f"{self.name} takes more than scalars"
        (compiled,) = self[char].overloads.values()
        return compiled.entry_point

    @functools.cached_property
    def _hints(self) -> dict[str, Any]:
        hints = typing.get_type_hints(self.function, include_extras=True)
        hints.pop("return", None)
        return hints

    def disk_cache(self, char: str) -> Any:
        """The place in the disk cache of the function for one dtype."""
        from engine.kernels.cache import DiskCache

        types = self._argument_types(char)
        return DiskCache(self.name, types if types != self._argument_types("fd".replace(char, "")) else (char, *types))

    def _companions(self, char: str) -> list["Kernel"]:
        """Kernels that will be needed after this one and that this process neither has nor compiles."""
        others = [_named(name) for name in waiting.next_after(self.name)]
        return [one for one in others if one is not None and char not in one and one.name not in _under_way]

    def compiled(self, char: str) -> Any:
        """The same as ``self[char]``, for callers that want the compiling and not the value."""
        return self[char]

    def _argument_types(self, char: str) -> tuple[Any, ...]:
        return tuple(_numba_type(hint, DTYPES[char]) for hint in self._hints.values())


@contextlib.contextmanager
def _garbage_left() -> Iterator[None]:
    """Looking for garbage among Numba's objects is a tenth of the time, and there is none."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _named(name: str) -> Kernel | None:
    """The kernel of this name; its module may not be imported yet."""
    for module in files.modules():
        if _idea(module) == name.rpartition(".")[0]:
            importlib.import_module(module)
    return next((one for one in _kernels if one.name == name), None)


def _idea(module: str) -> str:
    """What a module's kernels are called by: "conv.correlate" for engine.ops.conv.kernels.correlate."""
    return ".".join(part for part in module.split(".") if part not in ("engine", "ops", "kernels"))


@overload
def kernel(function: Callable[..., Any]) -> Kernel: ...
@overload
def kernel(*, interleave: int) -> Callable[[Callable[..., Any]], Kernel]: ...
def kernel(function: Callable[..., Any] | None = None, *, interleave: int = 0) -> Any:
    """Decorator: compile the function, by its annotations, for every dtype it is asked for.

    ``interleave`` is how many vectors each turn of a loop handles, where LLVM's own choice (0) measured worse.
    """
    if function is None:
        return functools.partial(kernel, interleave=interleave)
    made = Kernel(function, interleave)
    _kernels.append(made)
    return made


def helper(
    function: Callable[..., Any] | None = None, *, float64: Callable[..., Any] | None = None, reassociate: bool = False
) -> Any:
    """Decorator: a function that kernels of any dtype inline."""
    if function is None:
        return lambda decorated: Helper(decorated, float64, reassociate)
    return Helper(function, float64, reassociate)


def registered() -> list[Kernel]:
    """Every kernel of the modules imported so far, in order of definition."""
    return list(_kernels)


def _copy_of(function: Callable[..., Any]) -> types.FunctionType:
    """The same function with globals of its own."""
    assert isinstance(function, types.FunctionType)
    namespace = dict(function.__globals__)
    copy = types.FunctionType(function.__code__, namespace, function.__name__, function.__defaults__)
    copy.__qualname__ = function.__qualname__
    copy.__module__ = function.__module__
    return copy


def _specialise(copy: types.FunctionType, char: str) -> None:
    """Puts this dtype's ``real``, the intrinsics and the compiled helpers into a copy's globals."""
    from engine.kernels import intrinsics, run, tile

    namespace = copy.__globals__
    for name in {step.argval for step in dis.get_instructions(copy) if step.opname == "LOAD_GLOBAL"}:
        value = namespace.get(name)
        if value is None and name in ("min", "max"):
            namespace[name] = intrinsics.least if name == "min" else intrinsics.greatest
        elif isinstance(value, Helper):
            namespace[name] = value.compiled(char)
        elif value is real:
            namespace[name] = getattr(np, DTYPES[char])
        elif value is unsigned:
            namespace[name] = np.uint64
        elif value in _INTRINSICS:
            namespace[name] = getattr(intrinsics, value.__name__)
        elif value in (multiply_tile, multiply_each, transpose_tile):
            namespace[name] = getattr(tile, value.__name__)
        elif value in (correlate_run, add_products, move):
            namespace[name] = getattr(run, value.__name__)


def _numba_type(hint: Any, dtype: str) -> Any:
    from numba import types as numba_types

    if hint in _SCALARS:
        return getattr(numba_types, _SCALARS[hint])
    if hint == Pair:
        return numba_types.UniTuple(numba_types.int64, 2)
    name, dimensions, access = hint.__metadata__
    scalar = getattr(numba_types, dtype if name == "T" else name)
    return numba_types.Array(scalar, dimensions, "C", readonly=access == "read")
