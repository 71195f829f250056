"""Machine code of kernels as functions of Python: LLVM's linker, without Numba, whose import takes 0.2 s."""

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import binding

from engine.kernels import lock

_FASTCALL = 0x80  # METH_FASTCALL: the function takes an array of its arguments
_SYMBOL = np.dtype(
    [("name", "u4"), ("info", "u1"), ("other", "u1"), ("section", "u2"), ("value", "u8"), ("size", "u8")]
)


class _Method(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("documentation", ctypes.c_char_p),
    ]


_kept: list[_Method] = []  # Python's functions point to them


class MissingError(RuntimeError):
    """Machine code calls what this process has not."""


def link(name: str, symbol: str, code: bytes, refuse: Callable[..., Any]) -> Any:
    """The function ``symbol`` of an object file, as `engine.kernels.wrapper` has made it, under a name.

    ``refuse`` is called with arguments that do not fit, and raises. Raises MissingError.
    """
    if lacking := missing(code):
        raise MissingError(f"kernel {name} calls {', '.join(lacking)}, which is in no library of this process")
    linker = _linker()
    linker.add_object_file(binding.ObjectFileRef.from_data(code))
    linker.finalize_object()
    method = _Method(name.encode(), linker.get_function_address(symbol), _FASTCALL, None)
    _kept.append(method)
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype, make.argtypes = ctypes.py_object, [ctypes.POINTER(_Method), ctypes.py_object, ctypes.py_object]
    return make(method, (np.ndarray, refuse), __name__)


def missing(code: bytes) -> list[str]:
    """What an object file calls and this process has not, as the vector functions that Numba finds where Intel's
    library of them is installed. LLVM ends a process that links such a file.
    """
    _linker()  # makes LLVM look in the process, too
    return [name for name in called(code) if binding.address_of_symbol(name) is None]


def called(code: bytes) -> list[str]:
    """The symbols that an object file does not define; none of a format other than ELF, which is not read."""
    sections = {section.name(): section.data() for section in binding.ObjectFileRef.from_data(code).sections()}
    if b".symtab" not in sections:
        return []
    symbols, names = np.frombuffer(sections[b".symtab"], _SYMBOL), sections[b".strtab"]
    begins = symbols["name"][(symbols["section"] == 0) & (symbols["name"] > 0)].tolist()
    return [names[begin : names.index(b"\0", begin)].decode() for begin in begins]


@functools.cache
def _linker() -> Any:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    binding.add_symbol(lock.SYMBOL, lock.words.ctypes.data)
    machine = binding.Target.from_triple(binding.get_process_triple()).create_target_machine(jit=True)
    return binding.create_mcjit_compiler(binding.parse_assembly(""), machine)
