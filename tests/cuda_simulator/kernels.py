"""Runs the raw CUDA sources on the CPU: g++ compiles them with `host.h`, every thread of a block is a fiber.

    run(code, options, "scale", (4,), (256,), (array, np.int64(1000)), shared_mem=0)

Arguments are arrays with a CUDA or NumPy array interface (their memory is host memory) and NumPy scalars, whose types
must be the parameters': CUDA would read other bytes and say nothing, this raises TypeError. `settings` chooses the
order of the threads and whether every access to memory is checked (bounds, alignment, races); see `checked`.

Compiled libraries are kept in `ALLSTRIDE_KERNELS`, by default a folder of the user's among temporary files, under the
hash of what made them; several processes may compile the same source at once.
"""

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from tests import cuda_driver
from tests.cuda_driver import control

HOST = Path(__file__).with_name("host.h")
FLAGS = (
    *("-O1", "-shared", "-fPIC", "-std=c++17", "-w", "-DON_HOST", "-fno-strict-aliasing", "-ffp-contract=off"),
    # Fibers change static variables behind the compiler's back.
    *("-fno-ipa-reference", "-fno-ipa-pure-const", "-U_FORTIFY_SOURCE"),
)
LINKED = ("-shared", "-Wl,-Bsymbolic")  # glibc has functions of some kernels' names
CHECKED_FLAGS = ("-DCHECKED", "-fsanitize=thread,alignment,bounds", "--param=tsan-instrument-func-entry-exit=0")


class KernelError(RuntimeError):
    """A kernel did what a device would answer with an error, a hang or wrong numbers."""


class Settings:
    """seed: 0 for threads and blocks in their order, else the seed of a permutation. check: whether accesses are
    checked, from the start where ALLSTRIDE_CHECK_KERNELS is set. allocations: what device memory there is besides the
    arguments, as (address, bytes).
    """

    def __init__(self) -> None:
        self.seed = 0
        self.check = bool(os.environ.get("ALLSTRIDE_CHECK_KERNELS"))
        self.allocations: Callable[[], Sequence[tuple[int, int]]] = tuple


settings = Settings()


@contextmanager
def checked(seed: int = 0) -> Iterator[None]:
    """Every access of kernels launched inside is checked: outside of all allocations, misaligned, or in no order with
    another thread's access to the same byte, one of them a write, is a KernelError. Slow: for small arrays."""
    before = settings.seed, settings.check
    settings.seed, settings.check = seed, True
    try:
        with control.checked(seed) if cuda_driver.loaded() else ExitStack():
            yield
    finally:
        settings.seed, settings.check = before


@contextmanager
def order(seed: int) -> Iterator[None]:
    """Threads and blocks of kernels launched inside take turns in a permuted order."""
    before = settings.seed
    settings.seed = seed
    try:
        with control.order(seed) if cuda_driver.loaded() else ExitStack():
            yield
    finally:
        settings.seed = before


def compiler() -> str | None:
    """The C++ compiler, or None."""
    return shutil.which("g++")


def why_not() -> str | None:
    """The reason why kernels cannot run here, for `pytest.mark.skipif`; None where they can."""
    if compiler() is None:
        return "CUDA kernels run on the CPU where g++ is installed"
    return None


def kernel_names(code: str) -> list[str]:
    """The kernels of a source, in their order."""
    return [name for name, _ in _heads(code)]


def _heads(code: str) -> list[tuple[str, str]]:
    """Name and `__launch_bounds__` (or "") of each kernel."""
    bounds = r"(?:__launch_bounds__\s*\(([^)]*)\)\s+)?"
    found = re.findall(rf"__global__\s+{bounds}void\s+{bounds}(\w+)\s*\(", _without_comments(code))
    return [(name, before or after) for before, after, name in found]


# Threads of a block. A thread has 255 registers at most, and a block 65536: so many threads a device starts of any
# kernel. One that declares another number has as many registers as that leaves it.
UNDECLARED = 256
MOST_PARAMETERS = 4096  # bytes


@cache
def largest_blocks(code: str, options: tuple[str, ...]) -> dict[str, int]:
    """How many threads a block of each kernel may have: `__launch_bounds__`, a product of numbers, macros and
    constants, or UNDECLARED.
    """
    plain = _without_comments(code)
    values = dict(re.findall(r"#define\s+(\w+)\s+(\d+)\s*$", plain, flags=re.MULTILINE))
    values.update(re.findall(r"\bconst int (\w+) = ([^;,]+);", plain))
    values.update(each[2:].split("=", 1) for each in options if each.startswith("-D"))

    def product(text: str) -> int:
        factors = [each.strip() for each in text.split("*")]
        return prod(int(each) if each.isdecimal() else product(values[each]) for each in factors)

    return {name: product(bounds) if bounds else UNDECLARED for name, bounds in _heads(code)}


def run(
    code: str,
    options: Sequence[str],
    name: str,
    grid: Sequence[int],
    block: Sequence[int],
    arguments: Sequence[Any],
    shared_mem: int = 0,
) -> None:
    """Runs the kernel `name` to its end.

    Raises: KernelError (the kernel's fault, or a launch that no device accepts), TypeError (arguments), RuntimeError
    (no compiler, or the source does not compile).
    """
    grid = (*map(int, grid), 1, 1)[:3]
    block = (*map(int, block), 1, 1)[:3]
    if min(grid) < 1 or min(block) < 1 or block[0] * block[1] * block[2] > 1024 or block[2] > 64:
        raise KernelError(f"{name}: invalid configuration argument: grid {grid}, block {block}")
    if grid[0] >= 1 << 31 or max(grid[1:]) > 65535:
        raise KernelError(f"{name}: invalid configuration argument: grid {grid}")
    if shared_mem > 227 * 1024:
        raise KernelError(f"{name}: {shared_mem} bytes of shared memory, a block has 232448 at most")
    library = _library(code, tuple(options), settings.check)
    if not hasattr(library, f"launch_{name}"):
        raise KernelError(f"named symbol not found: {name}")
    most = largest_blocks(code, tuple(options))[name]
    if prod(block) > most:
        raise KernelError(
            f"{name}: a block of {prod(block)} threads; __launch_bounds__, or their absence, allow {most}"
        )
    signature_of = getattr(library, f"signature_of_{name}")
    signature_of.restype = ctypes.c_char_p
    kinds = signature_of().decode().split()
    if len(kinds) != len(arguments):
        raise TypeError(f"{name}: {len(arguments)} arguments for {len(kinds)} parameters")
    values = [
        _value(name, number, kind, each) for number, (kind, each) in enumerate(zip(kinds, arguments, strict=True))
    ]
    size = sum(value.nbytes for value in values)
    if size > MOST_PARAMETERS:
        raise KernelError(f"{name}: {size} bytes of parameters, {MOST_PARAMETERS} are what every driver takes")
    pointers = (ctypes.c_void_p * len(values))(*(value.ctypes.data for value in values))
    regions: list[tuple[int, int]] = []
    if settings.check:
        regions = [
            _extent(each)
            for kind, each in zip(kinds, arguments, strict=True)
            if kind[0] == "P" and each is not None and not isinstance(each, np.generic)
        ]
        regions = sorted({*regions, *settings.allocations()})
    table = np.array(regions or [(0, 0)], np.int64)
    launch = getattr(library, f"launch_{name}")
    launch.restype = ctypes.c_char_p
    problem = launch(
        pointers,
        (ctypes.c_uint * 6)(*grid, *block),
        ctypes.c_size_t(int(shared_mem)),
        ctypes.c_ulonglong(settings.seed),
        ctypes.c_void_p(table.ctypes.data),
        ctypes.c_int(len(regions)),
    )
    if problem is not None:
        raise KernelError(f"{name}: {problem.decode()}")


def _interface(array: Any) -> dict[str, Any] | None:
    found = getattr(array, "__cuda_array_interface__", None)
    return found if found is not None else getattr(array, "__array_interface__", None)


def _address(array: Any) -> int:
    interface = _interface(array)
    assert interface is not None
    return int(interface["data"][0])


def _extent(array: Any) -> tuple[int, int]:
    """First address and bytes from the first to the last element of an array."""
    interface = _interface(array)
    assert interface is not None
    low = high = int(interface["data"][0])
    itemsize = np.dtype(interface["typestr"]).itemsize
    shape = interface["shape"]
    if 0 in shape:
        return low, 0
    strides = interface.get("strides")
    if strides is None:
        strides = np.cumprod([itemsize, *shape[:0:-1]], dtype=np.int64)[::-1].tolist() if shape else ()
    for size, stride in zip(shape, strides, strict=True):
        low, high = (low, high + (size - 1) * stride) if stride >= 0 else (low + (size - 1) * stride, high)
    return low, high - low + itemsize


def _value(name: str, number: int, kind: str, argument: Any) -> np.ndarray:
    """The parameter's bytes."""
    where = f"{name}: argument {number}"
    if kind[0] == "P":
        if argument is None or (isinstance(argument, np.uint64) and not argument):  # CuPy has passed None wrongly
            return np.zeros(1, np.uintp)
        if isinstance(argument, np.generic) or _interface(argument) is None:
            raise TypeError(f"{where}: expected a device array, got {type(argument).__name__}")
        dtype = np.dtype(getattr(argument, "dtype", None) or _interface(argument)["typestr"])
        element, size = kind[1], int(kind[2:])
        alike = {"i": "iu", "u": "iub", "b": "bu", "f": "f"}.get(element)
        if size != 1 and alike is not None and (dtype.itemsize != size or dtype.kind not in alike):
            raise TypeError(f"{where}: the parameter points to {element}{size}, the array has {dtype}")
        if element == "V" and size % dtype.itemsize:
            raise TypeError(f"{where}: the parameter points to {size} bytes each, the array has {dtype}")
        return np.array([_address(argument)], np.uintp)
    if not isinstance(argument, np.generic) and not (isinstance(argument, np.ndarray) and argument.size == 1):
        raise TypeError(f"{where}: expected a NumPy scalar, got {type(argument).__name__}")
    own, size = argument.dtype.kind, int(kind[1:])
    if argument.dtype.itemsize != size or (kind[0] != "V" and own != kind[0]):
        raise TypeError(f"{where}: the parameter is {kind}, the scalar {argument.dtype}")
    return np.array(argument)


def _without_comments(code: str) -> str:
    return re.sub(r"//[^\n]*|/\*.*?\*/", lambda found: "\n" * found.group().count("\n"), code, flags=re.DOTALL)


_ALIGNED = r"(?:__align__\s*\(\s*\d+\s*\)\s*|alignas\s*\(\s*\d+\s*\)\s*)?"


def _for_host(code: str) -> str:
    """Shared arrays become references to memory that `host.h` keeps."""
    code = _without_comments(code)
    code = re.sub(
        rf"extern\s+__shared__\s+{_ALIGNED}([\w:<> ]+?)\s+(\w+)\s*\[\s*\]\s*;",
        r"\1* \2 = (\1*)simulated::dynamic_shared;",
        code,
    )

    def fixed(found: re.Match[str]) -> str:
        arrays = re.findall(r"(\w+)\s*((?:\[[^\]]*\]\s*)*)(?:,|$)", found.group(2))
        return " ".join(f"SHARED_ARRAY({found.group(1)}, {name}, {dims.strip()});" for name, dims in arrays)

    code = re.sub(rf"__shared__\s+{_ALIGNED}((?:typename\s+)?[\w:]+(?:<[^;>]*>(?:::\w+)?)?)\s+(\w[^;]*);", fixed, code)
    assert "__shared__" not in code, "a declaration of shared memory that tests/cuda_simulator/kernels.py does not know"
    return code


@cache
def _library(code: str, options: tuple[str, ...], check: bool) -> ctypes.PyDLL:
    path = _compiled(code, options, check)
    # PyDLL: the interpreter's lock is held, as a library runs one grid at a time.
    return ctypes.PyDLL(str(path), mode=os.RTLD_LOCAL | os.RTLD_NOW)


def syntax_error(code: str, options: Sequence[str]) -> str | None:
    """What g++ has to say against a source, templates instantiated; None where it compiles."""
    text = _text(code)
    flags = (*FLAGS, *(each for each in options if each.startswith("-D")))
    command = [compiler() or "g++", *flags, "-fsyntax-only", "-x", "c++", "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    return f"{' '.join(command)}\n{done.stderr[:8000]}" if done.returncode else None


def _text(code: str) -> str:
    entries = "".join(f"ENTRY({name})\n" for name in kernel_names(code))
    return f'#include "{HOST}"\n#line 1 "kernel.cu"\n{_for_host(code)}\n{entries}'


def _compiled(code: str, options: tuple[str, ...], check: bool) -> Path:
    found = compiler()
    if found is None:
        raise RuntimeError("running a CUDA kernel on the CPU needs g++")
    text = _text(code)
    flags = (*FLAGS, *(CHECKED_FLAGS if check else ()), *(each for each in options if each.startswith("-D")))
    made_of = (text, HOST.read_text(), _version(found), *flags, *LINKED)
    key = hashlib.sha256("\0".join(made_of).encode()).hexdigest()[:32]
    default = Path(tempfile.gettempdir(), f"allstride-kernels-{os.getuid()}")
    folder = Path(os.environ.get("ALLSTRIDE_KERNELS") or default)
    path = folder / f"{key}.so"
    if path.exists():
        return path
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        source, objects, made = Path(scratch, "kernel.cpp"), Path(scratch, "kernel.o"), Path(scratch, "kernel.so")
        source.write_text(text)
        # In two steps: the library of -fsanitize=thread is not wanted.
        _call(found, *flags, "-c", str(source), "-o", str(objects))
        _call(found, *LINKED, str(objects), "-o", str(made), "-lm")
        os.replace(made, path)
    return path


def _call(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr[:8000]}")


@cache
def _version(found: str) -> str:
    return subprocess.run([found, "-dumpfullversion"], capture_output=True, text=True, check=True).stdout
