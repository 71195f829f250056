"""Composed rearrangements: diagonals, triangles, stacks and splits by axis name, rotations, out-of-place forms of
indexed writes.
"""

from collections.abc import Sequence
from itertools import combinations as index_combinations
from itertools import combinations_with_replacement
from typing import Any

import numpy as np

from engine.calls.listening import heard
from engine.ops.creation.from_data import tensor, wrap_array
from engine.ops.index.masked import nonzero
from engine.ops.shape.combine import cat, flip, stack
from engine.ops.views.as_strided import as_strided
from engine.ops.views.parts import diagonal, select, slice_along, split, tensor_split
from engine.rules import layout
from engine.rules.dims import wrap_dim
from engine.rules.dtypes import int64
from engine.rules.spec import Size
from engine.tensor import Tensor

# --- axes -------------------------------------------------------------------------------------------------------------


def _each(tensors: tuple[Any, ...], function: Any) -> Any:
    given = tuple(tensors[0]) if len(tensors) == 1 and isinstance(tensors[0], Sequence) else tensors
    made = tuple(function(each) for each in given)
    return made[0] if len(tensors) == 1 and isinstance(tensors[0], Tensor) else made


@heard
def atleast_1d(*tensors: Any) -> Any:
    """The tensor, or each of several, with at least one axis."""
    return _each(tensors, lambda each: each.reshape(1) if not each.ndim else each)


@heard
def atleast_2d(*tensors: Any) -> Any:
    """The tensor, or each of several, with at least two axes; vectors become rows."""
    return _each(
        tensors, lambda each: each.reshape(1, 1) if not each.ndim else each.unsqueeze(0) if each.ndim == 1 else each
    )


def _three(each: Tensor) -> Tensor:
    if each.ndim >= 3:
        return each
    return each.reshape(1, 1, 1) if not each.ndim else each[None, :, None] if each.ndim == 1 else each.unsqueeze(-1)


@heard
def atleast_3d(*tensors: Any) -> Any:
    """The tensor, or each of several, with at least three axes."""
    return _each(tensors, _three)


@heard
def ravel(input: Tensor) -> Tensor:
    """The elements in row-major order, as a vector; a view of a contiguous tensor."""
    return input.contiguous().view(-1)


@heard
def dstack(tensors: Sequence[Tensor]) -> Tensor:
    """Joins along the third axis."""
    if not len(tensors):
        raise RuntimeError("dstack expects a non-empty TensorList")
    return cat(atleast_3d(list(tensors)), 2)


@heard
def column_stack(tensors: Sequence[Tensor]) -> Tensor:
    """Joins along the second axis; vectors become columns."""
    return cat([each.reshape(-1, 1) if each.ndim <= 1 else each for each in tensors], 1)


@heard
def row_stack(tensors: Sequence[Tensor]) -> Tensor:
    """`vstack`."""
    return cat(atleast_2d(list(tensors)), 0)


def _split_named(name: str, input: Tensor, parts: Any, dim: int, least: int) -> tuple[Tensor, ...]:
    if input.ndim < least:
        raise RuntimeError(
            f"torch.{name} requires a tensor with at least {least} dimension, but got a tensor with {input.ndim} "
            "dimensions!"
        )
    if isinstance(parts, int) and (parts <= 0 or input.shape[dim] % parts):
        raise RuntimeError(
            f"torch.{name} attempted to split along dimension {dim}, but the size of the dimension {input.shape[dim]} "
            f"is not divisible by the split_size {parts}!"
        )
    return tensor_split(input, parts, dim)


@heard
def hsplit(input: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """Splits along the second axis (vectors: the first) into equal sections or at indices."""
    return _split_named("hsplit", input, indices_or_sections, 0 if input.ndim == 1 else 1, 1)


@heard
def vsplit(input: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """Splits along the first axis into equal sections or at indices."""
    return _split_named("vsplit", input, indices_or_sections, 0, 2)


@heard
def dsplit(input: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """Splits along the third axis into equal sections or at indices."""
    return _split_named("dsplit", input, indices_or_sections, 2, 3)


@heard
def split_with_sizes(input: Tensor, split_sizes: Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Splits into sections of the given sizes."""
    return split(input, list(split_sizes), dim)


@heard
def broadcast_shapes(*shapes: Any) -> Size:
    """The shape that shapes broadcast to."""
    return Size(layout.broadcast_shapes(*((shape,) if isinstance(shape, int) else tuple(shape) for shape in shapes)))


# --- rotations --------------------------------------------------------------------------------------------------------


@heard
def fliplr(input: Tensor) -> Tensor:
    """The second axis reversed."""
    if input.ndim < 2:
        raise RuntimeError("Input must be >= 2-d.")
    return flip(input, 1)


@heard
def flipud(input: Tensor) -> Tensor:
    """The first axis reversed."""
    if input.ndim < 1:
        raise RuntimeError("Input must be >= 1-d.")
    return flip(input, 0)


@heard
def rot90(input: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    """Turned by 90 degrees k times in the plane of two axes, from the first towards the second."""
    if len(dims) != 2:
        raise RuntimeError(f"expected total rotation dims == 2, but got dims = {len(dims)}")
    if input.ndim < 2:
        raise RuntimeError(f"rot90: expected total dims >= 2, but got total dims = {input.ndim}")
    first, second = (wrap_dim(dim, input.ndim, "rot90") for dim in dims)
    if first == second:
        raise RuntimeError(f"expected rotation dims to be different, but got dim0 = {dims[0]} and dim1 = {dims[1]}")
    turns = k % 4
    if turns == 1:
        return flip(input, second).transpose(first, second)
    if turns == 2:
        return flip(input, first, second)
    return flip(input, first).transpose(first, second) if turns == 3 else input.clone()


# --- diagonals and triangles ------------------------------------------------------------------------------------------


@heard
def diag_embed(input: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """Matrices in axes `dim1` and `dim2` with the last axis of `input` on a diagonal, 0 elsewhere."""
    size = input.shape[-1] + abs(offset)
    first, second = wrap_dim(dim1, input.ndim + 1, "diag_embed"), wrap_dim(dim2, input.ndim + 1, "diag_embed")
    if first == second:
        raise RuntimeError(f"diagonal dimensions cannot be identical {dim1}, {dim2}")
    rows = diagonal_scatter(input.new_zeros((*input.shape[:-1], size, size)), input, offset, -2, -1)
    if (first, second) == (input.ndim - 1, input.ndim):
        return rows
    return rows.movedim((-2, -1), (first, second)).contiguous()


@heard
def diag(input: Tensor, diagonal: int = 0) -> Tensor:
    """A diagonal matrix of a vector, or a copy of the diagonal of a matrix."""
    if input.ndim not in (1, 2):
        raise RuntimeError(f"diag(): Supports 1D or 2D tensors. Got {input.ndim}D")
    return diag_embed(input, diagonal) if input.ndim == 1 else _diagonal(input, diagonal).clone()


_diagonal = diagonal


@heard
def diagflat(input: Tensor, offset: int = 0) -> Tensor:
    """A diagonal matrix of the flattened elements."""
    return diag_embed(input.reshape(-1), offset)


@heard
def block_diag(*tensors: Tensor) -> Tensor:
    """Matrices along the diagonal of one matrix, 0 elsewhere; vectors are rows."""
    blocks = [each if each.ndim == 2 else each.reshape(1, -1) for each in tensors]
    for position, block in enumerate(tensors):
        if block.ndim > 2:
            raise RuntimeError(
                f"torch.block_diag: Input tensors must have 2 or fewer dimensions. Input {position} has {block.ndim} "
                "dimensions"
            )
    width = sum(block.shape[1] for block in blocks)
    rows, start = [], 0
    for block in blocks:
        left = block.new_zeros(block.shape[0], start)
        right = block.new_zeros(block.shape[0], width - start - block.shape[1])
        rows.append(cat([left, block, right], 1))
        start += block.shape[1]
    return cat(rows, 0)


def _triangle(keep: Any, row: int, col: int, offset: int, dtype: Any, device: Any) -> Tensor:
    rows, columns = np.indices((row, col)).reshape(2, -1)
    kept = keep(columns - rows, offset)
    return wrap_array(np.stack([rows[kept], columns[kept]]).astype((dtype or int64).numpy), device)


@heard
def tril_indices(row: int, col: int, offset: int = 0, *, dtype: Any = None, device: Any = None) -> Tensor:
    """(2, n) indices of the lower triangle of a matrix."""
    return _triangle(lambda right, limit: right <= limit, row, col, offset, dtype, device)


@heard
def triu_indices(row: int, col: int, offset: int = 0, *, dtype: Any = None, device: Any = None) -> Tensor:
    """(2, n) indices of the upper triangle of a matrix."""
    return _triangle(lambda right, limit: right >= limit, row, col, offset, dtype, device)


@heard
def vander(x: Tensor, N: int | None = None, increasing: bool = False) -> Tensor:
    """The Vandermonde matrix of a vector: its powers as columns, falling unless `increasing`."""
    if x.ndim != 1:
        raise RuntimeError("x must be a one-dimensional tensor.")
    powers = range(len(x) if N is None else N)
    columns = [x**power for power in (powers if increasing else reversed(powers))]
    return stack(columns, 1) if columns else x.new_empty(len(x), 0)


@heard
def cartesian_prod(*tensors: Tensor) -> Tensor:
    """All combinations of elements of vectors, as rows."""
    for each in tensors:
        if each.ndim != 1:
            raise RuntimeError(f"Expect a 1D vector, but got shape {list(each.shape)}")
    if len(tensors) == 1:
        return tensors[0]
    shape = tuple(len(each) for each in tensors)
    grids = [
        each.reshape(tuple(n if i == axis else 1 for i, n in enumerate(shape))).expand(shape).reshape(-1)
        for axis, each in enumerate(tensors)
    ]
    return stack(grids, 1)


@heard
def combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """All choices of r elements of a vector, as rows."""
    if input.ndim != 1:
        raise RuntimeError("Expect a 1D vector, but got shape " + str(list(input.shape)))
    choose = combinations_with_replacement if with_replacement else index_combinations
    picked = list(choose(range(len(input)), r))
    return input[tensor(picked, dtype=int64).reshape(len(picked), r)]


@heard
def argwhere(input: Tensor) -> Tensor:
    """Indices of the non-zero elements, (N, ndim)."""
    return nonzero(input.detach())


@heard
def unravel_index(indices: Tensor, shape: Any) -> tuple[Tensor, ...]:
    """Flat indices as one index an axis of `shape`, in int64."""
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    result: list[Tensor] = []
    rest = indices.to(int64)
    for size in reversed(sizes):
        result.append(rest % size)
        rest = rest // size
    return stack(result[::-1], -1).unbind(-1) if result else ()


# --- out-of-place forms of writes -------------------------------------------------------------------------------------


def _written(input: Tensor, place: Any, src: Tensor, name: str) -> Tensor:
    spec = input._spec  # gaps stay gaps, as in PyTorch
    spread = not spec.dense and layout.internal_overlap(spec.shape, spec.stride) != "yes"
    copy = input.new_empty_strided(spec.shape, spec.stride).copy_(input) if spread else input.clone()
    view = place(copy)
    if view.shape != src.shape:
        raise RuntimeError(
            f"{name}: expected src to have a size equal to the slice of self, {list(view.shape)}, got {list(src.shape)}"
        )
    view.copy_(src)
    return copy


@heard
def diagonal_scatter(input: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """`input` with `src` written on a diagonal."""
    return _written(input, lambda copy: _diagonal(copy, offset, dim1, dim2), src, "diagonal_scatter")


@heard
def as_strided_scatter(
    input: Tensor, src: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Tensor:
    """`input` with `src` written where `as_strided` looks."""
    return _written(input, lambda copy: as_strided(copy, size, stride, storage_offset), src, "as_strided_scatter")


@heard
def select_scatter(input: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """`input` with `src` written at an index of an axis."""
    return _written(input, lambda copy: select(copy, dim, index), src, "select_scatter")


@heard
def slice_scatter(
    input: Tensor, src: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    """`input` with `src` written at a slice of an axis."""
    return _written(
        input, lambda copy: slice_along(copy, wrap_dim(dim, copy.ndim), start, end, step), src, "slice_scatter"
    )


@heard
def index_add(input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    """`input` with the slices of `source` added at `index` along an axis, repeated indices included."""
    return input.clone(memory_format=layout.contiguous_format).index_add_(dim, index, source, alpha=alpha)


@heard
def index_copy(input: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """`input` with the slices of `source` written at `index` along an axis."""
    return input.clone(memory_format=layout.contiguous_format).index_copy_(dim, index, source)


@heard
def index_fill(input: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    """`input` with `value` at `index` along an axis."""
    copy = input.clone()
    if input.ndim:
        copy.movedim(dim, 0)[index] = value
    else:
        copy.reshape(1)[index] = value
    return copy


@heard
def index_put(input: Tensor, indices: tuple[Tensor, ...], values: Tensor, accumulate: bool = False) -> Tensor:
    """`input` with `values` written (or added) at index tensors, one an axis."""
    return input.clone().index_put_(indices, values, accumulate)
