"""Compile a kernel on its first call: one machine function per kernel and dtype, kept on disk.

A kernel is a plain Python function under :func:`kernel`; its annotations (``Read2``, ``Write1``, ``float``, ...) are
its signature. Importing it costs nothing: when ``name[dtype.char]`` is first looked up, machine code is read from the
disk cache and linked, or Numba is imported and compiles it. Afterwards that look-up is one dictionary access and gives
the function itself, so nothing of ours stands between a caller and machine code.

Inside a kernel ``real`` is the constructor of the dtype being compiled (literals must go through it: a bare ``0.5`` is
float64 and would make float32 loops run in float64), ``min`` and ``max`` are of two numbers, every :func:`helper` is
inlined, and what `engine.kernels.language` names exists. With scratch that the caller brings a kernel compiles 0.1 s
sooner than with ``np.empty``.

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
from typing import Any, overload

import numpy as np

from engine.kernels import ahead, files, language, store, waiting

DTYPES = {"f": "float32", "d": "float64"}

_SCALARS = {float: "float64", int: "int64", bool: "boolean", language.Pair: "pair"}
_lock = threading.RLock()
_kernels: list["Kernel"] = []
compiled = 0
"""Kernels that this process has compiled, not read."""
_under_way: set[str] = set()  # kernels that this process compiles: one, and those it has come to while it waited


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
    dtype, number of dimensions, or is not C-contiguous where it should be; nothing is ever compiled for argument types
    nobody foresaw.
    """

    def __init__(self, function: Callable[..., Any], interleave: int, brief: bool):
        super().__init__()
        self.function = function
        self.interleave = interleave
        self.brief = brief
        self.name = f"{_idea(function.__module__)}.{function.__name__.strip('_')}"

    def __missing__(self, char: str) -> Any:
        if char not in DTYPES:
            known = ", ".join(f"{code!r} ({name})" for code, name in DTYPES.items())
            raise TypeError(
                f"kernel {self.name}: dtype code {char!r} is not supported, expected one of {known}; "
                "use the plain operators for other dtypes"
            )
        with _lock:
            if char not in self:
                self[char] = self._made(char)
        return self[char]

    def _made(self, char: str) -> Any:
        from engine.kernels import machine

        def linked(symbol: str, code: bytes) -> Any:
            return machine.link(self.name, symbol, code, functools.partial(self._refuse, char))

        cache = self.disk_cache(char)
        _under_way.add(self.name)
        try:
            with contextlib.ExitStack() as stack:
                if not cache.is_there():
                    self._tell_and_look_ahead(char, cache.path)
                    if cache.path is not None:
                        stack.enter_context(store.turn(cache.path, lambda: self._compile_another(char)))
                if (found := cache.load()) is not None:
                    with contextlib.suppress(machine.MissingError):  # compiled here it calls what is here
                        return linked(*found)
                return linked(*self._compile(char, cache))
        finally:
            _under_way.discard(self.name)

    def _compile(self, char: str, cache: Any) -> tuple[str, bytes]:
        with _garbage_left():
            from engine.kernels import compiler, machine

            body = _copy_of(self.function)
            _specialise(body, char)
            kinds = self.argument_types(char)
            made = compiler.compile_kernel(self.name, body, kinds, self.interleave, release_lock=not self.brief)
        of_numba = [one for one in machine.called(made[1]) if one.startswith("numba_")]
        assert not of_numba, f"{self.name} calls {of_numba}: it would be compiled again by every process"
        global compiled
        compiled += 1
        cache.save(*made)
        return made

    def _tell_and_look_ahead(self, char: str, place: Path | None) -> None:
        coming = [one for one in self._companions(char) if not one.disk_cache(char).is_there()]
        waiting.tell(1 + len(coming), place)

        def compile_the_others() -> None:
            while self._compile_another(char):
                pass

        if place is not None and coming:
            ahead.start(compile_the_others)

    def _compile_another(self, char: str) -> bool:
        """Compiles a kernel that will be needed after this one and that nobody compiles; whether there was one."""
        for one in self._companions(char):
            cache = one.disk_cache(char)
            if cache.path and not cache.is_there() and not store.is_claimed(cache.path):
                one.compiled(char)
                return True
        return False

    def _refuse(self, char: str, *arguments: Any) -> None:
        expected = [_in_words(kind) for kind in self.argument_types(char)]
        raise TypeError(
            f"kernel {self.name}: expected ({', '.join(expected)}), got ({', '.join(map(_as_given, arguments))})"
        )

    @functools.cached_property
    def _hints(self) -> dict[str, Any]:
        hints = typing.get_type_hints(self.function, include_extras=True)
        hints.pop("return", None)
        return hints

    def disk_cache(self, char: str) -> Any:
        """The place in the disk cache of the function for one dtype."""
        from engine.kernels.cache import DiskCache

        kinds = self.argument_types(char)
        return DiskCache(self.name, kinds if kinds != self.argument_types("fd".replace(char, "")) else (char, *kinds))

    def _companions(self, char: str) -> list["Kernel"]:
        """Kernels that will be needed after this one and that this process neither has nor compiles."""
        others = [_named(name) for name in waiting.next_after(self.name)]
        return [one for one in others if one is not None and char not in one and one.name not in _under_way]

    def compiled(self, char: str) -> Any:
        """The same as ``self[char]``, for callers that want the compiling and not the value."""
        return self[char]

    def argument_types(self, char: str) -> tuple[Any, ...]:
        """Of each parameter: the name of a scalar's type, "pair", or (dtype, dimensions, access)."""
        return tuple(_kind_of(hint, DTYPES[char]) for hint in self._hints.values())


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
def kernel(*, interleave: int = 0, brief: bool = False) -> Callable[[Callable[..., Any]], Kernel]: ...
def kernel(function: Callable[..., Any] | None = None, *, interleave: int = 0, brief: bool = False) -> Any:
    """Decorator: compile the function, by its annotations, for every dtype it is asked for.

    ``interleave`` is how many vectors each turn of a loop handles, where LLVM's own choice (0) measured worse.
    ``brief`` is for what takes no longer than a line of Python: other threads of this process wait for it, and it is
    spared the 0.05 us in which the interpreter's lock is released and taken again.
    """
    if function is None:
        return functools.partial(kernel, interleave=interleave, brief=brief)
    made = Kernel(function, interleave, brief)
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
    from engine.kernels import intrinsics, run, squares, tile

    namespace = copy.__globals__
    for name in {step.argval for step in dis.get_instructions(copy) if step.opname == "LOAD_GLOBAL"}:
        value = namespace.get(name)
        if value is None and name in ("min", "max"):
            namespace[name] = intrinsics.least if name == "min" else intrinsics.greatest
        elif isinstance(value, Helper):
            namespace[name] = value.compiled(char)
        elif value is language.real:
            namespace[name] = getattr(np, DTYPES[char])
        elif value in language.INTRINSICS:
            namespace[name] = getattr(intrinsics, value.__name__)
        elif value in language.ON_TILES:
            namespace[name] = getattr(tile, value.__name__)
        elif value in language.ON_RUNS:
            namespace[name] = getattr(run, value.__name__)
        elif value in language.ON_SQUARES:
            namespace[name] = getattr(squares, value.__name__)


def _kind_of(hint: Any, dtype: str) -> Any:
    if hint in _SCALARS:
        return _SCALARS[hint]
    name, dimensions, access = hint.__metadata__
    return dtype if name == "T" else name, dimensions, access


def _in_words(kind: Any) -> str:
    if isinstance(kind, str):
        return kind
    dtype, dimensions, access = kind
    layout = "" if access.endswith("strided") else "C-contiguous "
    return f"{layout}{dtype}[{dimensions}d]{' to be written' if access.startswith('write') else ''}"


def _as_given(value: Any) -> str:
    if not isinstance(value, np.ndarray):
        return type(value).__name__
    flags = [
        text
        for text, is_so in (("not contiguous", not value.flags.c_contiguous), ("read-only", not value.flags.writeable))
        if is_so
    ]
    return " ".join([f"{value.dtype}[{value.ndim}d]", *flags])
