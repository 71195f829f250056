"""Compilation of kernels and helpers. It, `intrinsics`, `run`, `tile` and `wrapper` import Numba at their top."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import llvmlite.binding
import numba
from numba.core import codegen, compiler, compiler_machinery, lowering, typed_passes, types, untyped_passes
from numba.core.compiler_lock import global_compiler_lock
from numba.core.runtime.nrt import rtsys
from numba.cpython import slicing

from engine.kernels import wrapper

# LLVM gives up vectorising a loop that needs more than 8 overlap checks between arrays, such as AMSGrad's with its
# five: 16.8 M floats took 102 ms that way (an earlier form) and 17 ms with more checks, a few comparisons a loop.
_OVERLAP_CHECKS = 128
_LLVM_DEFAULTS = {"-runtime-memory-check-threshold": 8, "-force-vector-interleave": 0}


def compile_kernel(
    name: str, function: Callable[..., Any], argument_types: Sequence[Any], interleave: int, release_lock: bool
) -> tuple[str, bytes]:
    """Machine code of ``function`` for exactly these argument types: its symbol, and the object file it is in."""
    if vars(numba.config)["DISABLE_JIT"]:
        raise RuntimeError(f"kernel {name} needs Numba's compiler, but NUMBA_DISABLE_JIT is set; unset it")
    dispatcher = numba.njit(**_OPTIONS, nogil=release_lock)(function)
    context = dispatcher.targetdescr.target_context
    rtsys.initialize(context)  # declares what allocates; `wrapper` defines it
    with contextlib.ExitStack() as stack:
        stack.enter_context(global_compiler_lock)  # no other thread's Numba code meets what follows
        stack.enter_context(_options_of_the_process(interleave))
        stack.enter_context(_few_definitions(context))
        stack.enter_context(_indices_from_the_start())
        dispatcher.compile(tuple(map(_numba_type, argument_types)))
        (result,) = dispatcher.overloads.values()
        return result.fndesc.llvm_cpython_wrapper_name, result.library.machine_code()


def _numba_type(kind: Any) -> Any:
    """Of an argument as `engine.kernels.jit` describes it."""
    if kind == "pair":
        return types.UniTuple(types.int64, 2)
    if isinstance(kind, str):
        return getattr(types, kind)
    dtype, dimensions, access = kind
    layout: Any = "A" if access.endswith("strided") else "C"
    return types.Array(getattr(types, dtype), dimensions, layout, readonly=access.startswith("read"))


def compile_helper(function: Callable[..., Any], reassociate: bool) -> Any:
    """What Numba makes of a function that kernels inline, for whatever argument types they call it with."""
    options = _OPTIONS | {"fastmath": {"reassoc"} if reassociate else False, "no_cpython_wrapper": True}
    return numba.njit(**options)(function)


class _Library(codegen.JITCodeLibrary):
    """LLVM's form of a kernel or a helper, without the work that Numba does for callers which ours do not have.

    A helper is linked into kernels, so no machine code is made of it, and that of a kernel is linked by
    `engine.kernels.machine`. Together with the wrappers that are left out this saves a quarter of the time; the
    kernel's own code is the same.
    """

    @property
    def codegen(self) -> Any:
        return _NowhereToSetEnvironments()

    def get_pointer_to_function(self, name: str) -> int:
        self._ensure_finalized()
        return 0

    def machine_code(self) -> bytes:
        """An object file."""
        return bytes(self._codegen._tm.emit_object(self._final_module))

    def _optimize_functions(self, module: Any) -> None:
        module.data_layout = self._codegen._data_layout
        for function in module.functions:
            if not function.is_declaration:
                passes, builder = self._codegen._function_pass_manager()
                passes.run(function, builder)

    def _optimize_final_module(self) -> None:
        # Once: Numba's cheaper first time brings counts of references together, to drop them. Kernels count few, those
        # of arrays that they allocate, and their code is the same.
        passes, builder = self._codegen._module_pass_manager()
        passes.run(self._final_module, builder)

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


class _NowhereToSetEnvironments:
    """Stands for the machine code that Numba has not got."""

    def set_env(self, name: str, environment: Any) -> None:
        """Nothing: an environment holds constants of Python's, which no kernel has."""


class _Lower(lowering.Lower):
    """Numba's way from typed Python to LLVM's terms, with our own function for Python's calls."""

    def create_cpython_wrapper(self, release_gil: bool = False) -> None:
        self.library.add_ir_module(wrapper.build(self.context, self.fndesc, release_gil))


@compiler_machinery.register_pass(mutates_CFG=True, analysis_only=False)
class _Lowering(typed_passes.NativeLowering):
    _name = "allstride_lowering"

    @property
    def lowering_class(self) -> Any:
        return _Lower

    def run_pass(self, state: Any) -> bool:
        state.library = _Library(state.targetctx.codegen(), state.func_id.func_qualname)
        return bool(super().run_pass(state))


# Passes for what no kernel has: functions within functions, `with`, inlining before types are known, and NumPy's
# expressions of whole arrays. After each of them Numba analyses the function anew.
_NEEDLESS = (
    untyped_passes.WithLifting,
    untyped_passes.InlineClosureLikes,
    untyped_passes.MakeFunctionToJitFunction,
    untyped_passes.InlineInlinables,
    untyped_passes.LiteralUnroll,
    typed_passes.NopythonRewrites,
    typed_passes.AnnotateTypes,
    typed_passes.DumpParforDiagnostics,
)


class _Compiler(compiler.CompilerBase):
    """Numba's way from Python to machine code, with `_Library` at its end."""

    def define_pipelines(self) -> list[Any]:
        passes = compiler.DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.passes = [
            (_Lowering, "native lowering") if one is typed_passes.NativeLowering else (one, what)
            for one, what in passes.passes
            if one not in _NEEDLESS
        ]
        passes.finalize()
        return [passes]


_OPTIONS: dict[str, Any] = {"error_model": "numpy", "no_cfunc_wrapper": True, "pipeline_class": _Compiler}


@contextlib.contextmanager
def _few_definitions(context: Any) -> Iterator[None]:
    """Gives Numba those definitions that kernels are made of. By itself it imports all that it could compile, with
    SciPy where that is installed, which takes 0.15 to 0.3 s, and looks for more wherever it does not find one at once:
    30 times a kernel, 6 % of the time. The first registry is where intrinsics are put once their types are known.
    """

    def refresh() -> None:
        # They enter their definitions as they are imported.
        from numba.core import imputils, optional  # noqa: F401
        from numba.cpython import builtins, cmathimpl, iterators, mathimpl, numbers, rangeobj, slicing, tupleobj  # noqa: F401
        from numba.np import arrayobj, npyimpl  # noqa: F401

        for registry in (cmathimpl.registry, mathimpl.registry, npyimpl.registry, imputils.builtin_registry):
            context.install_registry(registry)
        context.refresh = functools.partial(context.install_registry, next(iter(context._registries)))

    context.refresh = refresh
    try:
        yield
    finally:
        del context.refresh


@contextlib.contextmanager
def _indices_from_the_start() -> Iterator[None]:
    """No index of a kernel, and no bound of a slice, counts from an array's end. Numba tests each one and adds the size
    to negative ones; where LLVM cannot see that an index is not negative it does not vectorise the loop.
    """
    meant = slicing.fix_index
    slicing.fix_index = lambda builder, index, size: index
    try:
        yield
    finally:
        slicing.fix_index = meant


@contextlib.contextmanager
def _options_of_the_process(interleave: int) -> Iterator[None]:
    """Options of the whole process, given back to the user's own Numba code afterwards."""
    ours = {"-runtime-memory-check-threshold": _OVERLAP_CHECKS, "-force-vector-interleave": interleave}
    try:
        for option, value in ours.items():
            llvmlite.binding.set_option("", f"{option}={value}")
        yield
    finally:
        for option, value in _LLVM_DEFAULTS.items():
            llvmlite.binding.set_option("", f"{option}={value}")
