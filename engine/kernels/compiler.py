"""Compilation of kernels, their disk cache, and the few intrinsics we need. It and `tile` import Numba at their top.

The cache is not Numba's own. Numba keeps one index file per function that lists all its dtypes and CPUs, and two
processes that add to it at once can leave an entry that points to the other one's machine code. Here every machine
function is one file, in a directory named after everything that decides its bytes (our source, versions, CPU). Files
are written aside and renamed into place, so ranks that compile at once write the same thing twice and a reader sees a
whole file or none; different CPUs never share a directory.
"""

import contextlib
import functools
import gc
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
from numba.core import caching, codegen, compiler, compiler_machinery, serialize, typed_passes

# LLVM gives up vectorising a loop that needs more than 8 overlap checks between arrays, such as AMSGrad's with its
# five: 16.8 M floats took 102 ms that way (an earlier form) and 17 ms with more checks, a few comparisons a loop.
_OVERLAP_CHECKS = 128
_LLVM_DEFAULTS = {"-runtime-memory-check-threshold": 8, "-force-vector-interleave": 0}


def compile_kernel(name: str, function: Callable[..., Any], argument_types: tuple[Any, ...], interleave: int) -> Any:
    """The machine function of ``function`` for exactly these argument types, from the disk cache where it is there."""
    if vars(numba.config)["DISABLE_JIT"]:
        raise RuntimeError(f"kernel {name} needs Numba's compiler, but NUMBA_DISABLE_JIT is set; unset it")
    dispatcher: Any = numba.njit(nogil=True, error_model="numpy", no_cfunc_wrapper=True, pipeline_class=_Compiler)(
        function
    )
    dispatcher._cache = _DiskCache(name)
    with _options_of_the_process(interleave):
        dispatcher.compile(argument_types)
    dispatcher.disable_compile()
    return dispatcher


def compile_helper(function: Callable[..., Any], reassociate: bool) -> Any:
    """What Numba makes of a function that kernels inline, for whatever argument types they call it with."""
    return numba.njit(
        error_model="numpy",
        fastmath={"reassoc"} if reassociate else False,
        no_cpython_wrapper=True,
        no_cfunc_wrapper=True,
        pipeline_class=_Compiler,
    )(function)


class _Library(codegen.JITCodeLibrary):
    """LLVM's form of a kernel or a helper, without the work that Numba does for callers which ours do not have.

    A helper is linked into kernels and never called from Python, so no machine code is made of it. Together with the
    wrappers that are left out this saves a quarter of the time; the kernel's own code is the same.
    """

    def __init__(self, owner: Any, name: str):
        super().__init__(owner, name)
        self._called_from_python = False

    @property
    def codegen(self) -> Any:
        return super().codegen if self._called_from_python else _NowhereToSetEnvironments()

    def add_ir_module(self, module: Any) -> None:
        self._called_from_python |= module.name == "wrapper"
        super().add_ir_module(module)

    def get_pointer_to_function(self, name: str) -> int:
        self._ensure_finalized()
        return int(super().get_pointer_to_function(name)) if self._called_from_python else 0

    def _optimize_functions(self, module: Any) -> None:
        module.data_layout = self._codegen._data_layout
        for function in module.functions:
            if not function.is_declaration:
                passes, builder = self._codegen._function_pass_manager()
                passes.run(function, builder)

    def _finalize_final_module(self) -> None:
        if self._called_from_python:
            super()._finalize_final_module()
        else:
            self._finalize_dynamic_globals()
            self._finalized = True


class _NowhereToSetEnvironments:
    """Stands for the machine code that a helper has not."""

    def set_env(self, name: str, environment: Any) -> None:
        """Nothing: `compile_kernel` sets the environments of what a kernel has inlined."""


@compiler_machinery.register_pass(mutates_CFG=True, analysis_only=False)
class _Lowering(typed_passes.NativeLowering):
    _name = "allstride_lowering"

    def run_pass(self, state: Any) -> bool:
        state.library = _Library(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        return bool(super().run_pass(state))


class _Compiler(compiler.CompilerBase):
    """Numba's way from Python to machine code, with `_Library` at its end."""

    def define_pipelines(self) -> list[Any]:
        passes = compiler.DefaultPassBuilder.define_nopython_pipeline(self.state)
        position = next(at for at, (one, _) in enumerate(passes.passes) if one is typed_passes.NativeLowering)
        passes.passes[position] = (_Lowering, "native lowering")
        passes.finalize()
        return [passes]


@contextlib.contextmanager
def _options_of_the_process(interleave: int) -> Iterator[None]:
    """Options of the whole process, given back to the user's own Numba code afterwards."""
    ours = {"-runtime-memory-check-threshold": _OVERLAP_CHECKS, "-force-vector-interleave": interleave}
    collecting = gc.isenabled()
    gc.disable()  # looking for garbage among the compiler's objects is a tenth of the time, and there is none
    try:
        for option, value in ours.items():
            llvmlite.binding.set_option("", f"{option}={value}")
        yield
    finally:
        if collecting:
            gc.enable()
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
        for environment in result._find_referenced_environments():  # those of helpers too
            result.library.codegen.set_env(environment.env_name, environment)
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
