"""Sources of CUDA kernels: found by file name, compiled once a device and set of macros, launched on its stream.

CuPy keeps what NVRTC made on disk (CUPY_CACHE_DIR, ~/.cupy/kernel_cache), so a second process compiles nothing. The
registry `SOURCES` lets tests compile every variant of every file without a GPU.

CuPy compiles with `-ftz=true`, whatever is asked: on a GPU, float32 subnormals count as zeros, in these kernels and in
CuPy's own. What else is said here of equal bits holds for all other numbers.
"""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from engine.memory import backend

Launch = Callable[..., None]  # launch(grid, block, arguments, shared_mem=0): block and grid are tuples of up to three
Prepared = Callable[..., None]  # prepared(*arrays) queues a launch on the current stream

OPTIONS = ("--std=c++17",)
_ENGINE = Path(__file__).parents[2]

# What a kernel's element type is called in CUDA C++; half precision types are structs of common.cuh.
CUDA_TYPES = {
    "float32": "float",
    "float64": "double",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "int8": "signed char",
    "int16": "short",
    "int32": "int",
    "int64": "long long",
    "uint8": "unsigned char",
    "bool": "bool",
    "complex64": "complex64",
    "complex128": "complex128",
}

SOURCES: "list[Source]" = []


class Source:
    """One `.cu` file, named by its path inside `engine`.

    kernels: the names of its `extern "C"` functions. variants: every set of macros it may be compiled with, name to
    text (NVRTC's own header uses short names such as T: write ELEMENT); a call with another set raises AssertionError,
    so that what tests compile is what users run. headers: further files, put before it; without a
    folder they are of this one. contract: whether the compiler
    may fuse a product and a sum into one rounding.
    """

    def __init__(
        self,
        file: str,
        kernels: Sequence[str],
        variants: Sequence[dict[str, str]],
        headers: Sequence[str] = (),
        contract: bool = True,
    ) -> None:
        self.file = file
        self.contract = contract
        self.headers = ("common.cuh", *headers)
        self.kernels = tuple(kernels)
        self.variants = [dict(macros) for macros in variants]
        self._functions: dict[tuple[Any, ...], Launch] = {}
        SOURCES.append(self)

    def code(self) -> str:
        """The text that is compiled: common.cuh, further headers and the file."""
        return "\n".join(map(_text, (*self.headers, self.file)))

    def options(self, macros: dict[str, str]) -> tuple[str, ...]:
        """NVRTC's options for a set of macros."""
        options = OPTIONS if self.contract else (*OPTIONS, "--fmad=false")
        return (*options, *(f"-D{name}={text}" for name, text in sorted(macros.items())))

    def prepare(
        self,
        kernel: str,
        macros: dict[str, str],
        grid: tuple[int, ...],
        block: tuple[int, ...],
        constants: Sequence[Any] = (),
        shared_mem: int = 0,
    ) -> Prepared:
        """The kernel with a grid and its last arguments, `constants`: NumPy scalars and structs."""
        return prepared(self.get(kernel, **macros), grid, block, constants, shared_mem)

    def get(self, kernel: str, **macros: str) -> Launch:
        """The kernel, compiled for the current device; `launch(grid, block, arguments, shared_mem=0)` queues it on the
        current stream.

        Arguments are device arrays and NumPy scalars of exactly the parameter's type: nothing is converted.
        """
        cupy = backend.require_cupy()
        key = (cupy.cuda.runtime.getDevice(), kernel, *sorted(macros.items()))
        found = self._functions.get(key)
        if found is None:
            assert kernel in self.kernels, f"{self.file} has no kernel {kernel!r}"
            assert macros in self.variants, f"{self.file}: variant {macros} is not among those that tests compile"
            module = cupy.RawModule(code=self.code(), options=self.options(macros))
            # CuPy's function for this device and not its RawKernel, which looks for that at each launch: 0.3 µs
            found = self._functions[key] = module.get_function(kernel).kernel
        return found


def prepared(
    launch: Launch, grid: tuple[int, ...], block: tuple[int, ...], constants: Sequence[Any], shared_mem: int
) -> Prepared:
    """A launch of which only the arrays are open.

    What depends on shapes, strides and dtypes alone is decided once, with it, and remembered by these. A function and
    not an object that is called: 1.3 µs with two arrays, of which CuPy's own part is 1.2, where that takes 1.6.
    """
    kept = tuple(map(backend.constant, constants))

    def queue(*arrays: Any) -> None:
        launch(grid, block, arrays + kept, shared_mem)

    return queue


def gpu_in_use() -> int:
    """The index of the GPU for which kernels are compiled and launched now: a part of what plans are remembered by."""
    return backend.require_cupy().cuda.runtime.getDevice() if backend.several_gpus else 0


def cuda_type(dtype: Any) -> str:
    """What the element type of an array is called in the sources; KeyError for one they do not have."""
    return _cuda_type(np.dtype(dtype))


@cache
def _cuda_type(dtype: np.dtype) -> str:
    return CUDA_TYPES[dtype.name]  # NumPy makes the name anew each time: 1 to 6 µs, a look-up 0.04


@cache
def _text(file: str) -> str:
    return (_ENGINE / file if "/" in file else Path(__file__).with_name(file)).read_text(encoding="utf-8")
