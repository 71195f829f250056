"""Compilation of kernels, their disk cache, and the few intrinsics we need. It and `tile` import Numba at their top.

The cache is not Numba's own. Numba keeps one index file per function that lists all its dtypes and CPUs, and two
processes that add to it at once can leave an entry that points to the other one's machine code. Here every machine
function is one file, in a directory named after everything that decides its bytes (our source, versions, CPU). Files
are written aside and renamed into place, so ranks that compile at once write the same thing twice and a reader sees a
whole file or none; different CPUs never share a directory.
"""

import contextlib
import functools
import hashlib
import os
import pickle
import sys
import uuid
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding
import numba
import numpy
from llvmlite import ir
from numba.core import caching, cgutils, compiler, serialize, types
from numba.extending import intrinsic
from numba.np import arrayobj

from engine.kernels.jit import VECTOR

# LLVM gives up vectorising a loop that needs more than 8 overlap checks between arrays, such as AMSGrad's with its
# five: 16.8 M floats took 102 ms that way (an earlier form) and 17 ms with more checks, a few comparisons a loop.
_OVERLAP_CHECKS = 128
_LLVM_DEFAULTS = {"-runtime-memory-check-threshold": 8, "-force-vector-interleave": 0}


@intrinsic
def fma(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
    """LLVM's fused multiply-add: one instruction where the CPU has it, the C library's exact fma where it has not."""
    if not (a == b == c):
        return None

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fma(*arguments)

    return a(a, b, c), generate


@intrinsic
def array_at(typing_context: Any, address: Any, start: Any, size: Any, like: Any) -> Any:
    """Flat array of ``size`` elements, beginning ``start`` elements after an address, of the dtype of ``like``."""
    result = types.Array(like.dtype, 1, "C")

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address, start, size, _ = arguments
        item = context.get_data_type(like.dtype)
        bytes_each = context.get_constant(types.intp, context.get_abi_sizeof(item))
        data = builder.gep(builder.inttoptr(address, item.as_pointer()), [start])
        view = context.make_array(result)(context, builder)
        arrayobj.populate_array(view, data, [size], [bytes_each], bytes_each, None)
        return view._getvalue()

    return result(types.int64, types.int64, types.int64, like), generate


@intrinsic
def sum_vectors(
    typing_context: Any, sources: Any, weights: Any, destinations: Any, begin: Any, like: Any, divisor: Any
) -> Any:
    """``VECTOR`` elements, from ``begin`` on, of every destination become the weighted sum of the sources', divided.

    sources, destinations: tables of addresses. Every product, sum and quotient is rounded once, in the order of the
    table. As LLVM vectors instead of loops: the sum stays in registers, so a line that another core has written is
    read and written at once, and any number of arrays may be the same memory without a check for overlaps.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        sources, weights, destinations, begin, _, divisor = arguments
        item = context.get_data_type(like.dtype)
        vector = ir.VectorType(item, VECTOR)
        aligned = context.get_abi_sizeof(item)

        def table(position: int, value: Any) -> Any:
            made = context.make_array(signature.args[position])(context, builder, value)
            return made.data, cgutils.unpack_tuple(builder, made.shape)[0]

        def place(addresses: Any, rank: Any) -> Any:
            start = builder.inttoptr(builder.load(builder.gep(addresses, [rank])), item.as_pointer())
            return builder.bitcast(builder.gep(start, [begin]), vector.as_pointer())

        def spread(number: Any) -> Any:
            narrow = number if number.type == item else builder.fptrunc(number, item)
            nothing = ir.Constant(vector, ir.Undefined)
            first = builder.insert_element(nothing, narrow, ir.Constant(ir.IntType(32), 0))
            return builder.shuffle_vector(first, nothing, ir.Constant(ir.VectorType(ir.IntType(32), VECTOR), None))

        addresses, ranks = table(0, sources)
        factors, _ = table(1, weights)

        def part(rank: Any) -> Any:
            factor = builder.load(builder.gep(factors, [rank]))
            return builder.fmul(builder.load(place(addresses, rank), align=aligned), spread(factor))

        zero, one = ranks.type(0), ranks.type(1)
        total = cgutils.alloca_once(builder, vector)
        builder.store(part(zero), total)
        with cgutils.for_range_slice(builder, one, ranks, one) as (rank, _):
            builder.store(builder.fadd(builder.load(total), part(rank)), total)
        result = builder.fdiv(builder.load(total), spread(divisor))
        addresses, ranks = table(2, destinations)
        with cgutils.for_range(builder, ranks) as loop:
            builder.store(result, place(addresses, loop.index), align=aligned)
        return context.get_dummy_value()

    return types.void(sources, weights, destinations, begin, like, divisor), generate


def compile_kernel(name: str, function: Callable[..., Any], argument_types: tuple[Any, ...], interleave: int) -> Any:
    """The machine function of ``function`` for exactly these argument types, from the disk cache where it is there."""
    if vars(numba.config)["DISABLE_JIT"]:
        raise RuntimeError(f"kernel {name} needs Numba's compiler, but NUMBA_DISABLE_JIT is set; unset it")
    dispatcher: Any = numba.njit(nogil=True, error_model="numpy")(function)
    dispatcher._cache = _DiskCache(name)
    with _llvm_options(interleave):
        dispatcher.compile(argument_types)
    dispatcher.disable_compile()
    return dispatcher


@contextlib.contextmanager
def _llvm_options(interleave: int) -> Iterator[None]:
    """Options of the whole process, given back to the user's own Numba code afterwards."""
    ours = {"-runtime-memory-check-threshold": _OVERLAP_CHECKS, "-force-vector-interleave": interleave}
    try:
        for option, value in ours.items():
            llvmlite.binding.set_option("", f"{option}={value}")
        yield
    finally:
        for option, value in _LLVM_DEFAULTS.items():
            llvmlite.binding.set_option("", f"{option}={value}")


def cache_directory() -> Path:
    """Where machine functions are kept: a name for this build and CPU under the user's cache directory.

    That is ``$NUMBA_CACHE_DIR``, else ``$XDG_CACHE_HOME``, else ``~/.cache``.

    Raises RuntimeError if none of the variables is set and there is no home directory.
    """
    chosen = os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME")
    return Path(chosen or Path.home() / ".cache") / "allstride" / _fingerprint()


@functools.cache
def _fingerprint() -> str:
    """Hash of all that decides the machine code besides function and argument types."""
    digest = hashlib.sha256()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    target = numba.core.registry.cpu_target.target_context.codegen().magic_tuple()
    versions = (numba.__version__, llvmlite.__version__, numpy.__version__, sys.implementation.cache_tag, sys.abiflags)
    digest.update(repr((target, versions)).encode())
    return digest.hexdigest()[:24]


class _DiskCache(caching._Cache):
    """One kernel's place in the cache, in the form that Numba's dispatcher asks for."""

    def __init__(self, name: str):
        self._name = name
        self._directory: Path | None = None
        try:
            self._directory = cache_directory()
        except RuntimeError as why:
            _warn_once(f"there is no place for compiled kernels ({why})")

    @property
    def cache_path(self) -> str:
        return str(self._directory)

    def enable(self) -> None:
        raise NotImplementedError("the kernel cache is always on")

    def disable(self) -> None:
        raise NotImplementedError("the kernel cache is always on")

    def flush(self) -> None:
        raise NotImplementedError("delete the cache directory instead")

    def load_overload(self, argument_types: Any, target_context: Any) -> Any:
        """The stored compile result, or None."""
        target_context.refresh()
        if self._directory is None:
            return None
        path = self._path(self._directory, argument_types)
        try:
            stored = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as why:
            _warn_once(f"cannot read compiled kernels in {self._directory} ({why.strerror})")
            return None
        digest, payload = stored[:32], stored[32:]
        if hashlib.sha256(payload).digest() != digest:
            warnings.warn(f"compiled kernel {path} is damaged and is compiled again", RuntimeWarning, stacklevel=2)
            return None
        return compiler.CompileResult._rebuild(target_context, *pickle.loads(payload))

    def save_overload(self, argument_types: Any, result: Any) -> None:
        """Store a compile result; a directory that cannot be written is told once and changes nothing else."""
        if self._directory is None:
            return
        payload = serialize.dumps(result._reduce())
        path = self._path(self._directory, argument_types)
        part = path.with_name(f"{path.name}.{uuid.uuid4().hex}.part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            part.write_bytes(hashlib.sha256(payload).digest() + payload)
            part.replace(path)
        except OSError as why:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            _warn_once(f"cannot keep compiled kernels in {self._directory} ({why.strerror})")

    def _path(self, directory: Path, argument_types: Any) -> Path:
        types_digest = hashlib.sha256(repr(argument_types).encode()).hexdigest()[:16]
        return directory / f"{self._name}.{types_digest}"


@functools.cache
def _warn_once(problem: str) -> None:
    warnings.warn(
        f"{problem}; every start compiles them again, which takes seconds. "
        "Set NUMBA_CACHE_DIR to a directory that can be written.",
        RuntimeWarning,
        stacklevel=2,
    )
