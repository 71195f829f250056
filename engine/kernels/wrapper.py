"""What Python calls of a kernel: a function that takes NumPy's arrays and Python's numbers apart, in LLVM's terms.

Numba would make one, too, but it calls functions of Numba's: every process that only reads kernels from the disk cache
would import Numba, in 0.2 s. This one calls Python alone (`engine.kernels.machine` links it), and a call takes 0.15 us
instead of 0.28. It reads objects as their headers lay them out: CPython's ``PyObject`` and ``PyTupleObject``, NumPy's
``PyArrayObject_fields`` and the beginning of ``PyArray_Descr``, which NumPy keeps for what was compiled before.

Like `engine.kernels.compiler` this imports Numba at its top.
"""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.np import arrayobj

from engine.kernels import lock
from engine.kernels.intrinsics import pause

_BYTE, _INT, _WORD, _DOUBLE = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.DoubleType()
_POINTER = _BYTE.as_pointer()

# Where the fields are, in bytes. The head of an object ends with its type.
_HEAD = object.__basicsize__
_TYPE = _HEAD - 8
_SIZE_OF_TUPLE, _ITEMS = _HEAD, tuple.__basicsize__
_DATA, _DIMENSIONS, _SHAPE, _STRIDES, _DESCRIPTOR, _FLAGS = (_HEAD + at for at in (0, 8, 16, 24, 40, 48))
_BYTE_ORDER, _NUMBER = _HEAD + 10, _HEAD + 12  # of a descriptor

# Flags of an array.
_CONTIGUOUS, _ALIGNED, _WRITEABLE = 0x1, 0x100, 0x400
_SWAPPED = ">" if sys.byteorder == "little" else "<"

# Of the block before memory that a kernel allocates: references, two words that only Numba's own blocks use, where the
# memory is, its size, and another such word.
_BLOCK_BYTES, _MEMORY, _MEMORY_SIZE = 48, 24, 32


def build(context: Any, descriptor: Any, release_lock: bool) -> ir.Module:
    """A module with the function ``descriptor.llvm_cpython_wrapper_name``, of METH_FASTCALL's signature.

    Its ``self`` is a tuple of NumPy's ndarray and of what is called with all arguments where one does not fit; that
    raises. Where an array has the dtype, the number of dimensions and the layout that the kernel was compiled for, and
    what is to be a number can be made one, the kernel runs, without the interpreter's lock if that is to be released.
    All that can go wrong there is that there is no memory: whatever else, as a wrong index under NUMBA_BOUNDSCHECK, is
    a MemoryError, too.
    """
    module = context.create_module("wrapper")
    result, arguments = descriptor.restype, descriptor.argtypes
    kernel = ir.Function(module, context.call_conv.get_function_type(result, arguments), name=descriptor.llvm_func_name)
    signature = ir.FunctionType(_POINTER, [_POINTER, _POINTER.as_pointer(), _WORD])
    wrapper = _Wrapper(context, ir.Function(module, signature, name=descriptor.llvm_cpython_wrapper_name))
    values = wrapper.values(arguments)
    wrapper.call(kernel, result, arguments, values, release_lock)
    _define_allocation(module)
    return module


class _Wrapper:
    """The function under construction."""

    def __init__(self, context: Any, function: ir.Function):
        self._context = context
        self._function = function
        self._bound, self._given, self._count = function.args
        self._builder = ir.IRBuilder(function.append_basic_block("entry"))
        self._refused = function.append_basic_block("refused")
        with self._builder.goto_block(self._refused):
            refuse = self._field(self._bound, _ITEMS + 8, _POINTER)
            nothing = ir.Constant(_POINTER, None)
            self._builder.ret(self._python("PyObject_Vectorcall", _POINTER, refuse, self._given, self._count, nothing))
        self._raised = function.append_basic_block("raised")
        with self._builder.goto_block(self._raised):
            self._builder.ret(ir.Constant(_POINTER, None))
        self._ndarray = self._field(self._bound, _ITEMS, _POINTER)

    def values(self, kinds: Sequence[Any]) -> list[Any]:
        """The arguments as the kernel takes them."""
        self._require(self._builder.icmp_signed("==", self._count, _WORD(len(kinds))))
        found = []
        for position, kind in enumerate(kinds):
            given = self._builder.load(self._builder.gep(self._given, [_WORD(position)]))
            found.append(self._value(given, kind))
        return found

    def call(
        self, kernel: ir.Function, result: Any, kinds: Sequence[Any], values: Sequence[Any], release_lock: bool
    ) -> None:
        """The kernel's call, and what is returned."""
        builder = self._builder
        thread = self._let_go() if release_lock else None
        status, value = self._context.call_conv.call_function(builder, kernel, result, kinds, values)
        if thread is not None:
            self._take(thread)
        with builder.if_then(status.is_error, likely=False):
            builder.ret(self._python("PyErr_NoMemory", _POINTER))
        if result == types.none:
            none = self._symbol("_Py_NoneStruct")
            self._python("Py_IncRef", ir.VoidType(), none)
            builder.ret(none)
        else:
            builder.ret(self._context.get_python_api(builder).from_native_return(result, value, None))

    def _let_go(self) -> Any:
        """Lets go of the interpreter's lock; returns what it is taken with."""
        thread = self._python("PyEval_SaveThread", _POINTER)
        self._builder.store_atomic(_WORD(0), self._lock_word(0), "release", 8)
        return thread

    def _take(self, thread: Any) -> None:
        """Takes the interpreter's lock. It looks before, so many times, whether another thread lets go of it that has
        come out of a kernel: that has it for some microseconds, and who asks for a lock that is taken sleeps for more.
        """
        builder, held = self._builder, self._lock_word(0)
        left = builder.alloca(_WORD)
        builder.store(builder.load(self._lock_word(lock.LOOKS)), left)
        looking, waiting, taking = (builder.append_basic_block(name) for name in ("looking", "waiting", "taking"))
        builder.branch(looking)
        builder.position_at_end(looking)
        others = builder.icmp_signed("!=", builder.load_atomic(held, "acquire", 8), _WORD(0))
        looks = builder.load(left)
        more = builder.icmp_signed(">", looks, _WORD(0))
        builder.cbranch(builder.and_(others, more), waiting, taking)
        builder.position_at_end(waiting)
        builder.store(builder.sub(looks, _WORD(1)), left)
        pause(builder)
        builder.branch(looking)
        builder.position_at_end(taking)
        builder.store_atomic(_WORD(1), held, "release", 8)  # so that others look from now on
        self._python("PyEval_RestoreThread", ir.VoidType(), thread)
        builder.store_atomic(_WORD(1), held, "release", 8)  # while this one waited another may have let go

    def _lock_word(self, offset: int) -> Any:
        place = self._builder.gep(self._symbol(lock.SYMBOL), [_WORD(offset)])
        return self._builder.bitcast(place, _WORD.as_pointer())

    def _value(self, given: Any, kind: Any) -> Any:
        if isinstance(kind, types.Array):
            return self._array(given, kind)
        if isinstance(kind, types.UniTuple):
            self._require_instance(given, self._symbol("PyTuple_Type"))
            length = kind.count
            self._require(self._builder.icmp_signed("==", self._field(given, _SIZE_OF_TUPLE, _WORD), _WORD(length)))
            items = [self._field(given, _ITEMS + 8 * place, _POINTER) for place in range(length)]
            return self._context.make_tuple(self._builder, kind, [self._value(one, kind.dtype) for one in items])
        if kind == types.int64:
            return self._number("PyLong_AsLongLong", given, _WORD, _WORD(-1))
        if kind == types.float64:
            return self._number("PyFloat_AsDouble", given, _DOUBLE, _DOUBLE(-1.0))
        assert kind == types.boolean, kind
        truth = self._number("PyObject_IsTrue", given, _INT, _INT(-1))
        return self._builder.icmp_signed("!=", truth, _INT(0))

    def _array(self, given: Any, kind: Any) -> Any:
        builder = self._builder
        self._require_instance(given, self._ndarray)
        self._require(builder.icmp_signed("==", self._field(given, _DIMENSIONS, _INT), _INT(kind.ndim)))
        wanted = _INT((_CONTIGUOUS if kind.layout == "C" else 0) | _ALIGNED | (_WRITEABLE if kind.mutable else 0))
        self._require(builder.icmp_signed("==", builder.and_(self._field(given, _FLAGS, _INT), wanted), wanted))
        dtype = self._field(given, _DESCRIPTOR, _POINTER)
        self._require(builder.icmp_signed("!=", self._field(dtype, _BYTE_ORDER, _BYTE), _BYTE(ord(_SWAPPED))))
        number, alike = self._field(dtype, _NUMBER, _INT), ir.Constant(ir.IntType(1), 0)
        for one in _numbers(str(kind.dtype)):
            alike = builder.or_(alike, builder.icmp_signed("==", number, _INT(one)))
        self._require(alike)
        made = self._context.make_array(kind)(self._context, builder)
        item = self._context.get_data_type(kind.dtype)
        shape, strides = (
            [self._field(self._field(given, where, _POINTER), 8 * axis, _WORD) for axis in range(kind.ndim)]
            for where in (_SHAPE, _STRIDES)
        )
        data = self._field(given, _DATA, item.as_pointer())
        arrayobj.populate_array(made, data, shape, strides, _WORD(self._context.get_abi_sizeof(item)), None)
        return made._getvalue()

    def _number(self, convert: str, given: Any, kind: Any, failure: Any) -> Any:
        builder = self._builder
        number = self._python(convert, kind, given)
        compare = builder.fcmp_ordered if kind is _DOUBLE else builder.icmp_signed
        with builder.if_then(compare("==", number, failure), likely=False):
            error = self._python("PyErr_Occurred", _POINTER)
            self._unless(builder.icmp_unsigned("!=", error, ir.Constant(_POINTER, None)), self._raised)
        return number

    def _require_instance(self, given: Any, kind: Any) -> None:
        builder = self._builder
        found = self._field(given, _TYPE, _POINTER)
        with builder.if_then(builder.icmp_unsigned("!=", found, kind), likely=False):
            inherits = self._python("PyType_IsSubtype", _INT, found, kind)
            self._require(builder.icmp_signed("!=", inherits, _INT(0)))

    def _require(self, condition: Any) -> None:
        self._unless(self._builder.not_(condition), self._refused)

    def _unless(self, condition: Any, elsewhere: Any) -> None:
        """Goes on, or elsewhere where the condition is met."""
        going_on = self._builder.append_basic_block()
        self._builder.cbranch(condition, elsewhere, going_on)
        self._builder.position_at_end(going_on)

    def _field(self, start: Any, offset: int, kind: Any) -> Any:
        place = self._builder.gep(start, [_WORD(offset)])
        return self._builder.load(self._builder.bitcast(place, kind.as_pointer()))

    def _python(self, name: str, result: Any, *arguments: Any) -> Any:
        """A call of Python's C functions."""
        kind = ir.FunctionType(result, [argument.type for argument in arguments])
        return self._builder.call(_declared(self._function.module, name, kind), arguments)

    def _symbol(self, name: str) -> Any:
        module = self._function.module
        return module.globals.get(name) or ir.GlobalVariable(module, _BYTE, name)


def _numbers(dtype: str) -> set[int]:
    """NumPy's numbers of a dtype: of int64 there are two."""
    same = [kind for kind in (np.dtype(dtype), np.dtype("longlong")) if kind == np.dtype(dtype)]
    return {kind.num for kind in same}


def _declared(module: ir.Module, name: str, kind: ir.FunctionType) -> ir.Function:
    return module.globals.get(name) or ir.Function(module, kind, name=name)


def _define_allocation(module: ir.Module) -> None:
    """What ``np.empty`` in a kernel calls, and what lets go of that, by the C library: Numba's own are Numba's."""
    size_and_alignment = [_WORD, _INT]
    allocate = ir.Function(module, ir.FunctionType(_POINTER, size_and_alignment), name="NRT_MemInfo_alloc_aligned")
    allocate.linkage = "weak_odr"
    builder = ir.IRBuilder(allocate.append_basic_block())
    size, alignment = allocate.args[0], builder.zext(allocate.args[1], _WORD)
    malloc = _declared(module, "malloc", ir.FunctionType(_POINTER, [_WORD]))
    block = builder.call(malloc, [builder.add(builder.add(size, alignment), _WORD(_BLOCK_BYTES))])
    with builder.if_then(builder.icmp_unsigned("==", block, ir.Constant(_POINTER, None)), likely=False):
        builder.ret(block)
    begin = builder.add(builder.ptrtoint(block, _WORD), builder.add(alignment, _WORD(_BLOCK_BYTES - 1)))
    memory = builder.and_(begin, builder.neg(alignment))
    for offset, value in ((0, _WORD(1)), (_MEMORY, memory), (_MEMORY_SIZE, size)):
        builder.store(value, builder.bitcast(builder.gep(block, [_WORD(offset)]), _WORD.as_pointer()))
    builder.ret(block)
    release = ir.Function(module, ir.FunctionType(ir.VoidType(), [_POINTER]), name="NRT_MemInfo_call_dtor")
    release.linkage = "weak_odr"
    builder = ir.IRBuilder(release.append_basic_block())
    builder.call(_declared(module, "free", ir.FunctionType(ir.VoidType(), [_POINTER])), release.args)
    builder.ret_void()
