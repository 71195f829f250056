"""The innermost steps of convolution, in vector registers: a tile of products, a tile turned around.

Like `engine.kernels.compiler` this imports Numba at its top and is imported when the first kernel is compiled.
"""

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from engine.kernels.vectors import each_prices, tile_prices, vector_bytes


@intrinsic
def multiply_tile(
    typing_context: Any,
    rows: Any,
    wide: Any,
    like: Any,
    target: Any,
    target_step: Any,
    add: Any,
    a: Any,
    a_step: Any,
    a_steps: Any,
    b: Any,
    b_steps: Any,
    counts: Any,
) -> Any:
    """``rows`` x (one vector of the CPU's width, or two if ``wide``) sums of products over three nested loops.

    ``target[r, v] = sum over k of a[r * a_step + k . a_steps] * b[k . b_steps + v]`` for k below ``counts``, beginning
    with what is there if ``add``; target, a and b are addresses, steps count elements of ``like``, and rows of the
    target are ``target_step`` apart. ``rows`` is one of `tile_prices` for as many vectors. Each sum is a chain of fused
    multiply-adds in the order of k, so its bits depend neither on the tile nor on the CPU.
    """

    return _multiplication(like, each=False)


@intrinsic
def multiply_each(
    typing_context: Any,
    rows: Any,
    wide: Any,
    like: Any,
    target: Any,
    target_step: Any,
    add: Any,
    a: Any,
    a_step: Any,
    b: Any,
    places: Any,
    count: Any,
) -> Any:
    """The same where both factors are vectors, and the steps are those of a list.

    ``target[r, v] = sum over k of a[r * a_step + places[k, 0] + v] * b[places[k, 1] + v]`` for k below ``count``, with
    the address of pairs of int64; ``rows`` is one of `each_prices`. Windows are small: three nested loops cost more
    than what is in them.
    """
    return _multiplication(like, each=True)


def _multiplication(like: Any, each: bool) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        rows, wide, _, *others = arguments
        item = context.get_data_type(like.dtype)
        size = context.get_abi_sizeof(item)
        number = builder.add(builder.shl(rows, rows.type(1)), builder.zext(wide, rows.type))
        end = builder.append_basic_block("tile.end")
        choice = builder.switch(number, end)
        for vectors in (1, 2):
            for height in each_prices() if each else tile_prices(vectors):
                block = builder.append_basic_block(f"tile.{height}.{vectors}")
                choice.add_case(number.type(2 * height + vectors - 1), block)
                with builder.goto_block(block):
                    tile = _tile_function(builder.module, item, size, height, vectors, each, others)
                    builder.call(tile, others)
                    builder.branch(end)
        builder.position_at_end(end)
        return context.get_dummy_value()

    one, three = types.int64, types.UniTuple(types.int64, 3)
    terms = (one, one, one) if each else (three, one, three, three)
    return types.void(one, types.boolean, like, one, one, types.boolean, one, one, *terms), generate


def _tile_function(module: Any, item: Any, size: int, rows: int, vectors: int, each: bool, arguments: Any) -> Any:
    """The function of one size of tile in a module, which is written when it is first asked for.

    A module's private one: kernels that inlined ten tiles through Numba took twice as long to compile.
    """
    name = f"multiply_{'each' if each else 'tile'}.{rows}.{vectors}.{size}"
    if name in module.globals:
        return module.globals[name]
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [one.type for one in arguments]), name)
    function.linkage = "internal"
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    target, target_step, add, a, a_step, *terms = function.args
    lanes = vector_bytes() // size
    vector = ir.VectorType(item, lanes)
    place = ir.IntType(64)
    fma = cgutils.get_or_insert_function(module, ir.FunctionType(vector, [vector] * 3), f"llvm.fma.v{lanes}f{size * 8}")

    def spread(number: Any) -> Any:
        nothing = ir.Constant(vector, ir.Undefined)
        first = builder.insert_element(nothing, number, ir.Constant(ir.IntType(32), 0))
        return builder.shuffle_vector(first, nothing, ir.Constant(ir.VectorType(ir.IntType(32), lanes), None))

    def vector_at(base: Any, offset: Any, number: int) -> Any:
        start = builder.gep(builder.gep(base, [offset]), [ir.Constant(place, number * lanes)])
        return builder.bitcast(start, vector.as_pointer())

    none = ir.Constant(place, 0)
    places = [(r, v) for r in range(rows) for v in range(vectors)]
    sums = {at: cgutils.alloca_once(builder, vector) for at in places}
    at_target = builder.inttoptr(target, item.as_pointer())
    goals = {(r, v): vector_at(at_target, builder.mul(target_step, ir.Constant(place, r)), v) for r, v in places}
    with builder.if_else(add) as (more, fresh):
        with more:
            for at in places:
                builder.store(builder.load(goals[at], align=size), sums[at])
        with fresh:
            for at in places:
                builder.store(ir.Constant(vector, None), sums[at])

    def multiply(at_a: Any, at_b: Any) -> None:
        factors = [builder.load(vector_at(at_b, none, v), align=size) for v in range(vectors)]
        for r in range(rows):
            left = builder.gep(at_a, [builder.mul(a_step, ir.Constant(place, r))])
            number = None if each else spread(builder.load(left))
            for v, factor in enumerate(factors):
                many = builder.load(vector_at(left, none, v), align=size) if each else number
                builder.store(builder.call(fma, [many, factor, builder.load(sums[r, v])]), sums[r, v])

    at_a = builder.inttoptr(a, item.as_pointer())
    if each:
        b, pairs, count = terms
        at_b, at_pairs = builder.inttoptr(b, item.as_pointer()), builder.inttoptr(pairs, place.as_pointer())
        with cgutils.for_range(builder, count) as loop:
            pair = builder.gep(at_pairs, [builder.shl(loop.index, ir.Constant(place, 1))])
            further = [builder.load(builder.gep(pair, [ir.Constant(place, which)])) for which in (0, 1)]
            multiply(builder.gep(at_a, [further[0]]), builder.gep(at_b, [further[1]]))
    else:
        a_steps, b, b_steps, counts = terms

        def loops(level: int, at_a: Any, at_b: Any) -> None:
            if level == 3:
                multiply(at_a, at_b)
                return
            with cgutils.for_range(builder, builder.extract_value(counts, level)) as loop:
                further_a = builder.mul(loop.index, builder.extract_value(a_steps, level))
                further_b = builder.mul(loop.index, builder.extract_value(b_steps, level))
                loops(level + 1, builder.gep(at_a, [further_a]), builder.gep(at_b, [further_b]))

        loops(0, at_a, builder.inttoptr(b, item.as_pointer()))
    for at in places:
        builder.store(builder.load(sums[at]), goals[at], align=size)
    builder.ret_void()
    return function


@intrinsic(prefer_literal=True)
def transpose_tile(
    typing_context: Any, side: Any, like: Any, source: Any, source_step: Any, target: Any, target_step: Any
) -> Any:
    """``target[j, i] = source[i, j]`` for i and j below ``side``, a power of two.

    source and target are addresses, their rows so many elements of ``like`` apart. In each of log2(side) rounds, pairs
    of rows exchange the blocks that lie on the wrong side of their diagonal.
    """
    count = side.literal_value

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, _, source, source_step, target, target_step = arguments
        item = context.get_data_type(like.dtype)
        size = context.get_abi_sizeof(item)
        vector, place = ir.VectorType(item, count), ir.IntType(64)

        def row(base: Any, step: Any, number: int) -> Any:
            start = builder.gep(base, [builder.mul(step, ir.Constant(place, number))])
            return builder.bitcast(start, vector.as_pointer())

        at_source = builder.inttoptr(source, item.as_pointer())
        at_target = builder.inttoptr(target, item.as_pointer())
        rows = [builder.load(row(at_source, source_step, number), align=size) for number in range(count)]
        half = 1
        while half < count:
            # lane j of the pair's second row is count + j
            upper = [j if not j & half else count + j - half for j in range(count)]
            lower = [j + half if not j & half else count + j for j in range(count)]
            masks = [ir.Constant(ir.VectorType(ir.IntType(32), count), lanes) for lanes in (upper, lower)]
            for number in range(count):
                if not number & half:
                    pair = rows[number], rows[number + half]
                    rows[number], rows[number + half] = (builder.shuffle_vector(*pair, mask) for mask in masks)
            half *= 2
        for number in range(count):
            builder.store(rows[number], row(at_target, target_step, number), align=size)
        return context.get_dummy_value()

    one = types.int64
    return types.void(side, like, one, one, one, one), generate
