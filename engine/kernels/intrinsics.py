"""The few operations of kernels that Numba has not, written in LLVM's terms.

Like `engine.kernels.compiler` this imports Numba at its top and is imported when the first kernel is compiled.
"""

import operator
import platform
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.cpython import builtins
from numba.extending import intrinsic
from numba.np import arrayobj

from engine.kernels.vectors import VECTOR


@intrinsic
def fma(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
    """LLVM's fused multiply-add: one instruction where the CPU has it, the C library's exact fma where it has not."""
    if not (a == b == c):
        return None

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fma(*arguments)

    return a(a, b, c), generate


def _extreme(operation: Any) -> Any:
    @intrinsic
    def extreme(typing_context: Any, a: Any, b: Any) -> Any:
        a, b = types.unliteral(a), types.unliteral(b)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builtins.do_minmax(context, builder, signature.args, arguments, operation)

        return typing_context.unify_types(a, b)(a, b), generate

    return extreme


# Python's of two numbers. Numba compiles a function of its own for each kind of them, in 0.02 s.
least, greatest = _extreme(operator.lt), _extreme(operator.gt)


@intrinsic
def array_at(typing_context: Any, address: Any, start: Any, size: Any, like: Any) -> Any:
    """Flat array of ``size`` elements, beginning ``start`` elements after an address, of the dtype of ``like``."""
    result = types.Array(like.dtype, 1, "C")

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _view(context, builder, result, *arguments[:3])

    return result(types.int64, types.int64, types.int64, like), generate


@intrinsic
def array_of(typing_context: Any, address: Any, size: Any, kind: Any) -> Any:
    """Flat array of ``size`` elements at an address, of the dtype that ``kind`` makes."""
    result = types.Array(kind.instance_type, 1, "C")

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address, size, _ = arguments
        return _view(context, builder, result, address, size.type(0), size)

    return result(types.int64, types.int64, kind), generate


def _view(context: Any, builder: Any, kind: Any, address: Any, start: Any, size: Any) -> Any:
    item = context.get_data_type(kind.dtype)
    bytes_each = context.get_constant(types.intp, context.get_abi_sizeof(item))
    data = builder.gep(builder.inttoptr(address, item.as_pointer()), [start])
    view = context.make_array(kind)(context, builder)
    arrayobj.populate_array(view, data, [size], [bytes_each], bytes_each, None)
    return view._getvalue()


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


@intrinsic
def number_at(typing_context: Any, address: Any) -> Any:
    """The int64 at an address, read anew each time, and before anything that is read after it ("acquire")."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        return builder.load_atomic(place, "acquire", 8)

    return types.int64(types.int64), generate


def pause(builder: Any) -> None:
    """The processor's word for a loop that waits, where it has one."""
    machine = platform.machine()
    if machine == "x86_64":
        kind = ir.FunctionType(ir.VoidType(), [])
        builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse2.pause"), [])
    elif machine == "aarch64":
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(32)])
        hint = cgutils.get_or_insert_function(builder.module, kind, "llvm.aarch64.hint")
        builder.call(hint, [ir.Constant(ir.IntType(32), 1)])  # yield


@intrinsic
def relax(typing_context: Any) -> Any:
    """For a loop that waits: what shares a core with this thread gets the core meanwhile, some 50 to 150 cycles."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pause(builder)
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def announce(typing_context: Any, address: Any, number: Any) -> Any:
    """Writes an int64 to an address, after everything that was written before it ("release")."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        builder.store_atomic(arguments[1], place, "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def add_at(typing_context: Any, address: Any, number: Any) -> Any:
    """Adds to the int64 at an address, in one go and in one order for all threads; returns what is there then."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        return builder.add(builder.atomic_rmw("add", place, arguments[1], "seq_cst"), arguments[1])

    return types.int64(types.int64, types.int64), generate


@intrinsic
def read_byte(typing_context: Any, descriptor: Any) -> Any:
    """Reads a byte from a file by the system's ``read``, which sleeps until there is one: how many came, or -1."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte, word = ir.IntType(8), ir.IntType(64)
        kind = ir.FunctionType(word, [ir.IntType(32), byte.as_pointer(), word])
        read = cgutils.get_or_insert_function(builder.module, kind, "read")
        place = cgutils.alloca_once(builder, byte)
        return builder.call(read, [builder.trunc(arguments[0], ir.IntType(32)), place, word(1)])

    return types.int64(types.int64), generate


@intrinsic
def stream(typing_context: Any, target: Any, source: Any, lines: Any) -> Any:
    """Copies ``lines`` of 64 bytes to an address that is a multiple of 64, with stores that pass the caches by.

    In turns from several places: a core has more of the memory under way than when it reads on from one.
    What such stores wrote is there for other threads when this is done, as after any others.
    """
    places = 8  # 1 GB on a Xeon with AVX-512: 0.080 s; from 4 as fast, from 2 0.087, from one 0.103

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target, source, lines = arguments
        vector = ir.VectorType(ir.IntType(64), 4)
        past_caches = builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)])

        def place(start: Any, line: Any, half: int) -> Any:
            at = builder.add(builder.mul(line, line.type(64)), line.type(32 * half))
            return builder.inttoptr(builder.add(start, at), vector.as_pointer())

        def copy(line: Any) -> None:
            halves = [builder.load(place(source, line, half), align=1) for half in (0, 1)]
            for half, value in enumerate(halves):
                stored = builder.store(value, place(target, line, half), align=32)
                stored.set_metadata("nontemporal", past_caches)

        part = builder.udiv(lines, lines.type(places))
        with cgutils.for_range(builder, part) as loop:
            for number in range(places):
                copy(builder.add(loop.index, builder.mul(part, lines.type(number))))
        with cgutils.for_range_slice(builder, builder.mul(part, lines.type(places)), lines, lines.type(1)) as (line, _):
            copy(line)
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def flat(typing_context: Any, array: Any) -> Any:
    """The elements of a C-contiguous array along one axis, in the same memory.

    Numba's ``reshape`` takes 0.1 s longer to compile.
    """
    result = types.Array(array.dtype, 1, "C")

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        whole = context.make_array(array)(context, builder, arguments[0])
        size = context.get_constant(types.intp, 1)
        for length in cgutils.unpack_tuple(builder, whole.shape):
            size = builder.mul(size, length)
        view = context.make_array(result)(context, builder)
        arrayobj.populate_array(view, whole.data, [size], [whole.itemsize], whole.itemsize, None)
        return view._getvalue()

    return result(array), generate


@intrinsic
def lines(typing_context: Any, array: Any) -> Any:
    """A C-contiguous array of two dimensions or more as a matrix of what lies along its last one, in the same memory.

    Numba's ``reshape`` calls a function of Numba's, which kernels are not linked with.
    """
    result = types.Array(array.dtype, 2, "C", readonly=not array.mutable)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        whole = context.make_array(array)(context, builder, arguments[0])
        *outer, length = cgutils.unpack_tuple(builder, whole.shape)
        count = context.get_constant(types.intp, 1)
        for one in outer:
            count = builder.mul(count, one)
        view = context.make_array(result)(context, builder)
        steps = [builder.mul(length, whole.itemsize), whole.itemsize]
        arrayobj.populate_array(view, whole.data, [count, length], steps, whole.itemsize, None)
        return view._getvalue()

    return result(array), generate


@intrinsic
def address(typing_context: Any, array: Any) -> Any:
    """Where an array's first element lies."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        made = context.make_array(array)(context, builder, arguments[0])
        return builder.ptrtoint(made.data, context.get_value_type(types.int64))

    return types.int64(array), generate


@intrinsic
def bits(typing_context: Any, number: Any) -> Any:
    """The integer of the same size with the bits of a float."""
    result = types.int32 if number == types.float32 else types.int64

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], context.get_value_type(result))

    return result(number), generate


@intrinsic
def from_bits(typing_context: Any, pattern: Any) -> Any:
    """The float of the same size with the bits of an integer."""
    result = types.float32 if pattern == types.int32 else types.float64

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], context.get_value_type(result))

    return result(pattern), generate
