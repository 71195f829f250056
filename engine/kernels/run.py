"""The innermost steps of convolution and pooling on planes, in vector registers: a run of pixels, its products with
others, and the largest of it.

Like `engine.kernels.tile`, whose factors are rows of pixels and channels, this imports Numba at its top and is imported
when the first kernel is compiled. A vector is a register of the CPU for sums that are elements of the result, and
`LINE` bytes on every CPU for sums that are added up afterwards: no bit depends on the CPU.
"""

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from engine.kernels.vectors import LINE, MAXIMA, RUNS, product_outputs, product_prices, run_prices, vector_bytes

_PLACE = ir.IntType(64)
_BITS = 8  # for each number of a size


@intrinsic
def correlate_run(
    typing_context: Any,
    vectors: Any,
    outputs: Any,
    like: Any,
    target: Any,
    target_step: Any,
    a: Any,
    b: Any,
    b_step: Any,
    places: Any,
    count: Any,
) -> Any:
    """``target[o, i] = sum over k of a[places[k] + i] * b[o, k]``, k below ``count``, i below the elements of so many
    vectors.

    target, a, b and places are addresses, places are int64; rows of target and b are so many elements apart;
    ``vectors`` is one of `run_prices` for as many outputs. Each sum is a chain of fused multiply-adds in the order of
    k.
    """

    def body(builder: Any, item: Any, vector: Any, size: tuple[int, ...], arguments: Any) -> None:
        (number, outputs), (target, target_step, a, b, b_step, places, count) = size, arguments
        at_target, at_a, at_b = (builder.inttoptr(one, item.as_pointer()) for one in (target, a, b))
        at_places = builder.inttoptr(places, _PLACE.as_pointer())
        sums = [_sums(builder, vector, number) for _ in range(outputs)]
        filters = _rows(builder, at_b, b_step, outputs)
        with cgutils.for_range(builder, count) as loop:
            start = builder.gep(at_a, [builder.load(builder.gep(at_places, [loop.index]))])
            factors = [_spread(builder, vector, builder.load(builder.gep(one, [loop.index]))) for one in filters]
            for r in range(number):
                pixels = _load(builder, vector, start, r * vector.count)
                for factor, totals in zip(factors, sums, strict=True):
                    _add_product(builder, totals[r], pixels, factor)
        for goal, totals in zip(_rows(builder, at_target, target_step, outputs), sums, strict=True):
            for r, total in enumerate(totals):
                _store(builder, vector, builder.load(total), goal, r * vector.count)

    one = types.int64
    sizes = [(vectors, outputs) for outputs in (1, RUNS) for vectors in run_prices(outputs)]
    generate = _chosen("correlate_run", like, vector_bytes(), sizes, body)
    return types.void(one, one, like, one, one, one, one, one, one, one), generate


@intrinsic
def add_products(
    typing_context: Any,
    rows: Any,
    outputs: Any,
    like: Any,
    target: Any,
    target_step: Any,
    a: Any,
    places: Any,
    b: Any,
    b_step: Any,
    count: Any,
) -> Any:
    """``target[o, r, v] += sum over k of a[places[r] + k * n + v] * b[o, k * n + v]``, k below ``count``, v below the n
    elements of `LINE` bytes.

    target, a, places and b are addresses, places are int64; what is of an output is so many elements from that of the
    next; ``rows`` is one of `product_prices` for as many outputs. Each sum is a chain of fused multiply-adds in the
    order of k.
    """

    def body(builder: Any, item: Any, vector: Any, size: tuple[int, ...], arguments: Any) -> None:
        (number, outputs), (target, target_step, a, places, b, b_step, count) = size, arguments
        at_target, at_a, at_b = (builder.inttoptr(one, item.as_pointer()) for one in (target, a, b))
        at_places = builder.inttoptr(places, _PLACE.as_pointer())
        starts = []
        for r in range(number):
            starts.append(builder.gep(at_a, [builder.load(builder.gep(at_places, [ir.Constant(_PLACE, r)]))]))
        goals, sums = _rows(builder, at_target, target_step, outputs), []
        for goal in goals:
            sums.append(_sums(builder, vector, number))
            for r, total in enumerate(sums[-1]):
                builder.store(_load(builder, vector, goal, r * vector.count), total)
        slopes = _rows(builder, at_b, b_step, outputs)
        with cgutils.for_range(builder, count) as loop:
            offset = builder.mul(loop.index, ir.Constant(_PLACE, vector.count))
            factors = [_load(builder, vector, builder.gep(one, [offset]), 0) for one in slopes]
            for r, start in enumerate(starts):
                pixels = _load(builder, vector, builder.gep(start, [offset]), 0)
                for factor, totals in zip(factors, sums, strict=True):
                    _add_product(builder, totals[r], pixels, factor)
        for goal, totals in zip(goals, sums, strict=True):
            for r, total in enumerate(totals):
                _store(builder, vector, builder.load(total), goal, r * vector.count)

    one = types.int64
    sizes = [(rows, outputs) for outputs in (1, product_outputs()) for rows in product_prices(outputs)]
    generate = _chosen("add_products", like, LINE, sizes, body)
    return types.void(one, one, like, one, one, one, one, one, one, one), generate


@intrinsic
def largest_run(
    typing_context: Any,
    vectors: Any,
    like: Any,
    target: Any,
    chosen: Any,
    a: Any,
    places: Any,
    marks: Any,
    count: Any,
    start: Any,
) -> Any:
    """``target[i]`` is the largest ``a[places[k] + i]``, k below ``count``, and ``chosen[i] = marks[k]`` of the first
    such k, for i below so many vectors' elements.

    A NaN is larger than all that comes before it. Where nothing is larger than minus infinity that is the largest, and
    ``start`` is chosen. target, chosen, a, places and marks are addresses; places are int64, marks and chosen int32;
    ``vectors`` is one of `MAXIMA`.
    """

    def body(builder: Any, item: Any, vector: Any, size: tuple[int, ...], arguments: Any) -> None:
        (number,), (target, chosen, a, places, marks, count, start) = size, arguments
        mark = ir.IntType(32)
        chosen_vector = ir.VectorType(mark, vector.count)
        at_target, at_a = (builder.inttoptr(one, item.as_pointer()) for one in (target, a))
        at_chosen, at_marks = (builder.inttoptr(one, mark.as_pointer()) for one in (chosen, marks))
        at_places = builder.inttoptr(places, _PLACE.as_pointer())
        best = [cgutils.alloca_once(builder, vector) for _ in range(number)]
        found = [cgutils.alloca_once(builder, chosen_vector) for _ in range(number)]
        nothing, first = ir.Constant(vector, [float("-inf")] * vector.count), builder.trunc(start, mark)
        for one, place in zip(best, found, strict=True):
            builder.store(nothing, one)
            builder.store(_spread(builder, chosen_vector, first), place)
        with cgutils.for_range(builder, count) as loop:
            begin = builder.gep(at_a, [builder.load(builder.gep(at_places, [loop.index]))])
            here = _spread(builder, chosen_vector, builder.load(builder.gep(at_marks, [loop.index])))
            for r, (one, place) in enumerate(zip(best, found, strict=True)):
                value = _load(builder, vector, begin, r * vector.count)
                greater = builder.fcmp_ordered(">", value, builder.load(one))
                better = builder.or_(greater, builder.fcmp_unordered("uno", value, value))
                builder.store(builder.select(better, value, builder.load(one)), one)
                builder.store(builder.select(better, here, builder.load(place)), place)
        for r, (one, place) in enumerate(zip(best, found, strict=True)):
            _store(builder, vector, builder.load(one), at_target, r * vector.count)
            _store(builder, chosen_vector, builder.load(place), at_chosen, r * vector.count)

    one = types.int64
    generate = _chosen("largest_run", like, vector_bytes(), [(number,) for number in MAXIMA], body)
    return types.void(one, like, one, one, one, one, one, one, one), generate


@intrinsic(prefer_literal=True)
def move(typing_context: Any, number: Any, step: Any, like: Any, target: Any, source: Any) -> Any:
    """``target[i] = source[i * step]`` for i below ``number``, which is even; ``step`` is 1 or 2.

    target and source are addresses. Lines of images are too short for LLVM's own vectors: it would copy them one by
    one.
    """
    count, by = number.literal_value, step.literal_value

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        *_, target, source = arguments
        item = context.get_data_type(like.dtype)
        vector = ir.VectorType(item, count)
        at_target, at_source = (builder.inttoptr(one, item.as_pointer()) for one in (target, source))
        values = _load(builder, vector, at_source, 0)
        if by == 2:  # what lies behind the last one is not read
            lanes = [*range(0, count, 2), *range(count + 1, 2 * count, 2)]
            mask = ir.Constant(ir.VectorType(ir.IntType(32), count), lanes)
            values = builder.shuffle_vector(values, _load(builder, vector, at_source, count - 1), mask)
        _store(builder, vector, values, at_target, 0)
        return context.get_dummy_value()

    one = types.int64
    return types.void(number, step, like, one, one), generate


def _chosen(name: str, like: Any, width: int, sizes: Sequence[tuple[int, ...]], body: Callable[..., None]) -> Any:
    """Code that calls the function of the size that the first arguments name, a private one of the module; vectors are
    so many bytes.
    """
    names = len(sizes[0])

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number, others = arguments[0], arguments[names + 1 :]
        for further in arguments[1:names]:
            number = builder.add(builder.shl(number, number.type(_BITS)), further)
        item = context.get_data_type(like.dtype)
        vector = ir.VectorType(item, width // context.get_abi_sizeof(item))
        end = builder.append_basic_block("run.end")
        choice = builder.switch(number, end)
        for size in sizes:
            code = 0
            for one in size:
                code = (code << _BITS) + one
            block = builder.append_basic_block(f"run.{code}")
            choice.add_case(number.type(code), block)
            with builder.goto_block(block):
                builder.call(function_of(builder.module, item, vector, size, others), others)
                builder.branch(end)
        builder.position_at_end(end)
        return context.get_dummy_value()

    def function_of(module: Any, item: Any, vector: Any, size: tuple[int, ...], arguments: Any) -> Any:
        full = ".".join(map(str, (name, *size, vector.count)))
        if full in module.globals:
            return module.globals[full]
        function = ir.Function(module, ir.FunctionType(ir.VoidType(), [one.type for one in arguments]), full)
        function.linkage = "internal"
        inside = ir.IRBuilder(function.append_basic_block("entry"))
        body(inside, item, vector, size, function.args)
        inside.ret_void()
        return function

    return generate


def _rows(builder: Any, base: Any, step: Any, number: int) -> list[Any]:
    """The addresses of so many rows, ``step`` elements apart."""
    return [builder.gep(base, [builder.mul(step, ir.Constant(_PLACE, row))]) for row in range(number)]


def _sums(builder: Any, vector: Any, number: int) -> list[Any]:
    """So many sums, 0 at first."""
    sums = [cgutils.alloca_once(builder, vector) for _ in range(number)]
    for total in sums:
        builder.store(ir.Constant(vector, None), total)
    return sums


def _at(builder: Any, vector: Any, base: Any, offset: int) -> Any:
    return builder.bitcast(builder.gep(base, [ir.Constant(_PLACE, offset)]), vector.as_pointer())


def _bytes(vector: Any) -> int:
    return 8 if isinstance(vector.element, ir.DoubleType) else 4


def _load(builder: Any, vector: Any, base: Any, offset: int) -> Any:
    return builder.load(_at(builder, vector, base, offset), align=_bytes(vector))


def _store(builder: Any, vector: Any, value: Any, base: Any, offset: int) -> None:
    builder.store(value, _at(builder, vector, base, offset), align=_bytes(vector))


def _spread(builder: Any, vector: Any, number: Any) -> Any:
    """A number in every lane."""
    nothing = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(nothing, number, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(first, nothing, ir.Constant(ir.VectorType(ir.IntType(32), vector.count), None))


def _add_product(builder: Any, total: Any, one: Any, other: Any) -> None:
    vector = one.type
    kind = ir.FunctionType(vector, [vector] * 3)
    fma = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{vector.count}f{8 * _bytes(vector)}")
    builder.store(builder.call(fma, [one, other, builder.load(total)]), total)
