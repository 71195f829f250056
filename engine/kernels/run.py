"""The innermost steps of convolution and pooling on planes, in vector registers: a run of pixels, its products with
others, and the largest of it.

Like `engine.kernels.tile`, whose factors are rows of pixels and channels, this imports Numba at its top and is imported
when the first kernel is compiled. A vector is a register of the CPU for sums that are elements of the result, and
`LINE` bytes on every CPU for sums that are added up afterwards: no bit depends on the CPU.
"""

from collections.abc import Callable, Iterable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from engine.kernels.vectors import LINE, MAXIMA, product_prices, tile_prices, vector_bytes

_PLACE = ir.IntType(64)


@intrinsic
def correlate_run(
    typing_context: Any, vectors: Any, like: Any, target: Any, a: Any, b: Any, places: Any, count: Any
) -> Any:
    """``target[i] = sum over k of a[places[k] + i] * b[k]``, k below ``count``, i below so many vectors' elements.

    target, a, b and places are addresses, places are int64; ``vectors`` is one of ``tile_prices(1)``. Each sum is a
    chain of fused multiply-adds in the order of k.
    """

    def body(builder: Any, item: Any, vector: Any, number: int, arguments: Any) -> None:
        target, a, b, places, count = arguments
        at_target, at_a, at_b = (builder.inttoptr(one, item.as_pointer()) for one in (target, a, b))
        at_places = builder.inttoptr(places, _PLACE.as_pointer())
        sums = _sums(builder, vector, number)
        with cgutils.for_range(builder, count) as loop:
            start = builder.gep(at_a, [builder.load(builder.gep(at_places, [loop.index]))])
            factor = _spread(builder, vector, builder.load(builder.gep(at_b, [loop.index])))
            for r, total in enumerate(sums):
                _add_product(builder, total, _load(builder, vector, start, r * vector.count), factor)
        for r, total in enumerate(sums):
            _store(builder, vector, builder.load(total), at_target, r * vector.count)

    one = types.int64
    generate = _chosen("correlate_run", like, vector_bytes, lambda: tile_prices(1), body)
    return types.void(one, like, one, one, one, one, one), generate


@intrinsic
def add_products(
    typing_context: Any, rows: Any, like: Any, target: Any, a: Any, places: Any, b: Any, count: Any
) -> Any:
    """``target[r, v] += sum over k of a[places[r] + k * n + v] * b[k * n + v]``, k below ``count``, v below the n
    elements of `LINE` bytes.

    target, a, b and places are addresses, places are int64; ``rows`` is one of `product_prices`. Each sum is a chain of
    fused multiply-adds in the order of k.
    """

    def body(builder: Any, item: Any, vector: Any, number: int, arguments: Any) -> None:
        target, a, places, b, count = arguments
        at_target, at_a, at_b = (builder.inttoptr(one, item.as_pointer()) for one in (target, a, b))
        at_places = builder.inttoptr(places, _PLACE.as_pointer())
        sums = _sums(builder, vector, number)
        starts = []
        for r, total in enumerate(sums):
            builder.store(_load(builder, vector, at_target, r * vector.count), total)
            starts.append(builder.gep(at_a, [builder.load(builder.gep(at_places, [ir.Constant(_PLACE, r)]))]))
        with cgutils.for_range(builder, count) as loop:
            offset = builder.mul(loop.index, ir.Constant(_PLACE, vector.count))
            factor = _load(builder, vector, builder.gep(at_b, [offset]), 0)
            for start, total in zip(starts, sums, strict=True):
                _add_product(builder, total, _load(builder, vector, builder.gep(start, [offset]), 0), factor)
        for r, total in enumerate(sums):
            _store(builder, vector, builder.load(total), at_target, r * vector.count)

    one = types.int64
    generate = _chosen("add_products", like, lambda: LINE, product_prices, body)
    return types.void(one, like, one, one, one, one, one), generate


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

    def body(builder: Any, item: Any, vector: Any, number: int, arguments: Any) -> None:
        target, chosen, a, places, marks, count, start = arguments
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
    generate = _chosen("largest_run", like, vector_bytes, lambda: MAXIMA, body)
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


def _chosen(
    name: str, like: Any, width: Callable[[], int], sizes: Callable[[], Iterable[int]], body: Callable[..., None]
) -> Any:
    """Code that calls the function of the size that the first argument names, a private one of the module."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number, _, *others = arguments
        item = context.get_data_type(like.dtype)
        vector = ir.VectorType(item, width() // context.get_abi_sizeof(item))
        end = builder.append_basic_block("run.end")
        choice = builder.switch(number, end)
        for size in sizes():
            block = builder.append_basic_block(f"run.{size}")
            choice.add_case(number.type(size), block)
            with builder.goto_block(block):
                builder.call(function_of(builder.module, item, vector, size, others), others)
                builder.branch(end)
        builder.position_at_end(end)
        return context.get_dummy_value()

    def function_of(module: Any, item: Any, vector: Any, size: int, arguments: Any) -> Any:
        full = f"{name}.{size}.{vector.count}"
        if full in module.globals:
            return module.globals[full]
        function = ir.Function(module, ir.FunctionType(ir.VoidType(), [one.type for one in arguments]), full)
        function.linkage = "internal"
        inside = ir.IRBuilder(function.append_basic_block("entry"))
        body(inside, item, vector, size, function.args)
        inside.ret_void()
        return function

    return generate


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
