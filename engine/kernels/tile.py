"""The innermost steps of the direct convolution, in vector registers: a tile of products, a tile turned around.

Like `engine.kernels.compiler` this imports Numba at its top and is imported when the first kernel is compiled.
"""

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from engine.kernels.vectors import tile_prices, vector_bytes


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
    target are ``target_step`` apart. ``rows`` is one of `tile_prices`. Each sum is a chain of fused multiply-adds in
    the order of k, so its bits depend neither on the tile nor on the CPU.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        rows, wide, _, *others = arguments
        item = context.get_data_type(like.dtype)
        size = context.get_abi_sizeof(item)
        number = builder.add(builder.shl(rows, rows.type(1)), builder.zext(wide, rows.type))
        end = builder.append_basic_block("tile.end")
        choice = builder.switch(number, end)
        for height in tile_prices():
            for vectors in (1, 2):
                block = builder.append_basic_block(f"tile.{height}.{vectors}")
                choice.add_case(number.type(2 * height + vectors - 1), block)
                with builder.goto_block(block):
                    builder.call(_tile_function(builder.module, item, size, height, vectors, others), others)
                    builder.branch(end)
        builder.position_at_end(end)
        return context.get_dummy_value()

    three = types.UniTuple(types.int64, 3)
    one = types.int64
    return types.void(one, types.boolean, like, one, one, types.boolean, one, one, three, one, three, three), generate


def _tile_function(module: Any, item: Any, size: int, rows: int, vectors: int, arguments: Any) -> Any:
    """The function of one size of tile in a module, which is written when it is first asked for.

    A module's private one: kernels that inlined ten tiles through Numba took twice as long to compile.
    """
    name = f"multiply_tile.{rows}.{vectors}.{size}"
    if name in module.globals:
        return module.globals[name]
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [one.type for one in arguments]), name)
    function.linkage = "internal"
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    target, target_step, add, a, a_step, a_steps, b, b_steps, counts = function.args
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
    each = [(r, v) for r in range(rows) for v in range(vectors)]
    sums = {at: cgutils.alloca_once(builder, vector) for at in each}
    at_target = builder.inttoptr(target, item.as_pointer())
    goals = {(r, v): vector_at(at_target, builder.mul(target_step, ir.Constant(place, r)), v) for r, v in each}
    with builder.if_else(add) as (more, fresh):
        with more:
            for at in each:
                builder.store(builder.load(goals[at], align=size), sums[at])
        with fresh:
            for at in each:
                builder.store(ir.Constant(vector, None), sums[at])
    at_a, at_b = builder.inttoptr(a, item.as_pointer()), builder.inttoptr(b, item.as_pointer())

    def loops(level: int, at_a: Any, at_b: Any) -> None:
        if level < 3:
            with cgutils.for_range(builder, builder.extract_value(counts, level)) as loop:
                further_a = builder.mul(loop.index, builder.extract_value(a_steps, level))
                further_b = builder.mul(loop.index, builder.extract_value(b_steps, level))
                loops(level + 1, builder.gep(at_a, [further_a]), builder.gep(at_b, [further_b]))
            return
        factors = [builder.load(vector_at(at_b, none, v), align=size) for v in range(vectors)]
        for r in range(rows):
            left = builder.load(builder.gep(at_a, [builder.mul(a_step, ir.Constant(place, r))]))
            many = spread(left)
            for v, factor in enumerate(factors):
                builder.store(builder.call(fma, [many, factor, builder.load(sums[r, v])]), sums[r, v])

    loops(0, at_a, at_b)
    for at in each:
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
