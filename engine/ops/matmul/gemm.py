"""The product of two matrices that every matrix product comes to. Operands and result may be row-major or column-major,
with gaps between rows or columns: transposes are flags and gaps are leading dimensions to BLAS, which copies nothing
that has neighbours along one axis.
"""

from math import prod
from typing import Any

import numpy as np

from engine.calls.straight import Layout
from engine.ops.matmul.kernels import product
from engine.rules.spec import Spec

Array = Any

_LOOKED_AT_FROM = 1 << 14  # multiplications, which take longer than a look at strides


def gemm(a: Array, b: Array) -> Array:
    """a @ b for matrices, by the compiled product where it is faster than BLAS."""
    work = a.size * b.shape[1]
    if work < _LOOKED_AT_FROM or a.__class__ is not np.ndarray:
        return a.dot(b)
    return product.dot(a, b)


def gemm_like(a: Array, b: Array, spec: Spec, into: Array | None) -> Array:
    """The same as the gradient of a matrix that `spec` describes: in memory of its order, in `into` where that fits."""
    if into is not None and into.dtype is a.dtype is b.dtype:
        if into.flags.c_contiguous:
            if a.size * b.shape[1] >= _LOOKED_AT_FROM and product.serves(a, b):
                return product.multiply(a, b, into)
            return a.dot(b, into)
        if into.flags.f_contiguous:
            b.T.dot(a.T, into.T)
            return into
    if not spec.contiguous and lies_by_columns(spec):
        return gemm(b.T, a.T).T
    return gemm(a, b)


def of_mat2(g: Any, input: Any, mat2_spec: Spec, turned: bool, into: Any) -> Any:
    """The gradient of the second of two matrices, see `engine.ops.matmul.operator.of_mat2_composed`."""
    if not turned:
        return gemm_like(input.T, g, mat2_spec, into)
    if g.ndim != 2:
        columns, width = mat2_spec.shape
        g, input = rows_of(g, columns), rows_of(input, width)
    return gemm_like(g.T, input, mat2_spec, into)


def lies_by_columns(spec: Spec) -> bool:
    """Whether a matrix lies as a transposed one does."""
    return not spec.contiguous and spec.stride == (1, spec.shape[0])


def rows_of(value: Any, width: int) -> Any:
    """(..., width) as the rows of one matrix; arrays and Tensors."""
    return value if value.ndim == 2 else value.reshape((prod(value.shape[:-1]), width))


def few(a: Any, b: Any, made: Layout, turned: bool = False) -> bool:
    """Whether `gemm` of two matrices (or rows of any number of axes) that lie like this is BLAS's, for a replay
    (`engine.calls.straight`). turned: the second is its right factor transposed.
    """
    return (
        isinstance(a, Layout)
        and isinstance(b, Layout)
        and min(len(a.shape), len(b.shape), len(made.shape)) > 1
        and a.contiguous
        and b.contiguous
        and a.size * b.size * made.size < product.least(turned, made.size) ** 2
    )


def dot_lines(a: str, b: str, made: Layout) -> tuple[str, ...]:
    """Lines of the product of two matrices of these expressions, as a matrix or as rows of any number of axes."""
    if len(made.shape) == 2:
        return (f"{{out}} = {a}.dot({b}{{into}})",)
    return "{out} = {memory}", f"{a}.dot({b}, {made.as_rows('{out}')})"
