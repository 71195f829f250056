"""Small squares of vectors in registers, taken to another basis: Winograd's convolution around its products.

Like `engine.kernels.compiler` this imports Numba at its top and is imported when the first kernel is compiled.
"""

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from engine.kernels.bases import MATRICES
from engine.kernels.vectors import vector_bytes


@intrinsic(prefer_literal=True)
def change_basis(
    typing_context: Any,
    which: Any,
    like: Any,
    source: Any,
    source_row: Any,
    source_step: Any,
    target: Any,
    target_row: Any,
    target_step: Any,
) -> Any:
    """``target[i, j] = sum over a and b of m[i, a] * m[j, b] * source[a, b]``, all of them vectors of the CPU's width.

    ``which`` is the number of a matrix m of `engine.kernels.bases`; source and target are addresses, whose rows and
    columns are so many elements of ``like`` apart. Sums over a come first, and each is taken in one order, so that bits
    depend on no CPU.
    """
    matrix = MATRICES[which.literal_value]
    inner = len(matrix[0])

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, _, source, source_row, source_step, target, target_row, target_step = arguments
        item = context.get_data_type(like.dtype)
        size = context.get_abi_sizeof(item)
        lanes = vector_bytes() // size
        vector, place = ir.VectorType(item, lanes), ir.IntType(64)

        def at(base: Any, row: Any, step: Any, i: int, j: int) -> Any:
            offset = builder.add(builder.mul(row, ir.Constant(place, i)), builder.mul(step, ir.Constant(place, j)))
            return builder.bitcast(builder.gep(base, [offset]), vector.as_pointer())

        def combined(numbers: Any, values: Any) -> Any:
            """The sum of values times numbers, those with positive ones first."""
            terms = [(number, value) for number, value in zip(numbers, values, strict=True) if number]
            total = None
            for number, value in sorted(terms, key=lambda term: term[0] < 0):
                if abs(number) != 1:
                    value = builder.fmul(value, ir.Constant(vector, [abs(number)] * lanes))
                if total is None:
                    assert number > 0
                    total = value
                else:
                    total = (builder.fadd if number > 0 else builder.fsub)(total, value)
            return total

        base = builder.inttoptr(source, item.as_pointer())
        goal = builder.inttoptr(target, item.as_pointer())
        columns = [
            [builder.load(at(base, source_row, source_step, a, b), align=size) for a in range(inner)]
            for b in range(inner)
        ]
        half = [[combined(row, column) for column in columns] for row in matrix]
        for i, line in enumerate(half):
            for j, row in enumerate(matrix):
                builder.store(combined(row, line), at(goal, target_row, target_step, i, j), align=size)
        return context.get_dummy_value()

    one = types.int64
    return types.void(which, like, one, one, one, one, one, one), generate
