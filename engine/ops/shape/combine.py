"""Several tensors into one, and rearrangements that copy: cat, stack, flip, roll, repeat, tril, triu."""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from engine.calls.dispatch import apply
from engine.calls.listening import heard
from engine.calls.operator import define
from engine.memory import backend
from engine.ops.index.along_axis import index_select
from engine.ops.index.operator import wrap_device_array
from engine.ops.shared.operands import common_dtype, in_single_precision, with_common_dtype
from engine.ops.views.operator import unsqueeze
from engine.ops.writing.out import deliver
from engine.rules import layout
from engine.rules.dims import wrap_dim, wrap_dims
from engine.rules.spec import Spec
from engine.tensor import Tensor


def _cat_rule(specs: tuple[Spec, ...], dim: int) -> Spec:
    first = specs[0]
    for position, spec in enumerate(specs):
        if spec is first:
            continue
        if spec.ndim != first.ndim:
            raise RuntimeError(
                f"cat: Tensors must have same number of dimensions: got {first.ndim} and {spec.ndim} (tensor "
                f"{position})"
            )
        for axis in range(first.ndim):
            if axis != dim and spec.shape[axis] != first.shape[axis]:
                raise RuntimeError(
                    f"cat: Sizes of tensors must match except in dimension {dim}. Expected size {first.shape[axis]} "
                    f"but got size {spec.shape[axis]} for tensor number {position} in the list: {list(first.shape)} "
                    f"and {list(spec.shape)}"
                )
    total = sum(spec.shape[dim] for spec in specs)
    shape = (*first.shape[:dim], total, *first.shape[dim + 1 :])
    different = tuple(dict.fromkeys(specs))
    formats = {layout.suggest_memory_format(spec.shape, spec.stride) for spec in different}
    memory_format = formats.pop() if len(formats) == 1 else layout.contiguous_format
    return first.like(
        shape=shape, stride=layout.strides_for_format(shape, memory_format), dtype=common_dtype(*different)
    )


def _cat(xp: ModuleType, arrays: tuple[Any, ...], dim: int) -> Any:
    return xp.concatenate(with_common_dtype(arrays), axis=dim)


def _cat_slopes(g: Any, needs: Any, tensors_spec: tuple[Spec, ...], dim: int) -> list[Any]:
    pieces, start, before = [], 0, (slice(None),) * dim
    for spec, needed in zip(tensors_spec, needs, strict=True):
        end = start + spec.shape[dim]
        pieces.append(g[(*before, slice(start, end))] if needed else None)
        start = end
    return pieces


CAT = define("cat", rule=_cat_rule, forward=_cat, backward=_cat_slopes, inputs="tensors*", attributes="dim")


@heard
def cat(tensors: Sequence[Tensor], dim: int = 0, *, out: Tensor | None = None) -> Tensor:
    """Joins tensors along an axis; channels-last inputs give a channels-last result. One-dimensional empty tensors are
    skipped, as in PyTorch.

    Raises: RuntimeError for no tensors, and sizes that differ on another axis; TypeError for what is no Tensor.
    """
    if out is not None:
        return deliver(out, cat, tensors, dim, same_dtype=False, overlap="any", cast_error=TypeError)
    given = _tensor_list("cat", tensors)
    for position, tensor in enumerate(given):
        if not tensor.ndim:
            raise RuntimeError(f"zero-dimensional tensor (at position {position}) cannot be concatenated")
    kept = tuple(tensor for tensor in given if tensor.shape != (0,)) or given[:1]
    return apply(CAT, kept, (wrap_dim(dim, kept[0].ndim, "cat"),))


concat = concatenate = cat


def _tensor_list(name: str, tensors: Any) -> tuple[Tensor, ...]:
    if isinstance(tensors, Tensor):
        raise TypeError(f"{name}(): argument 'tensors' (position 1) must be tuple of Tensors, not Tensor; use [tensor]")
    given = tuple(tensors)
    if not given:
        error = ValueError if name == "cat" else RuntimeError
        raise error(f"{name}(): expected a non-empty list of Tensors")
    for position, tensor in enumerate(given):
        if not isinstance(tensor, Tensor):
            raise TypeError(
                f"{name}(): expected Tensor as element {position} in argument 0, but got {type(tensor).__name__}"
            )
    return given


def _stack_rule(specs: tuple[Spec, ...], dim: int) -> Spec:
    joined = _cat_rule(specs, dim)
    shape = (*joined.shape[:dim], len(specs), specs[0].shape[dim], *joined.shape[dim + 1 :])
    stride = layout.view_strides(tuple(joined.shape), joined.stride, shape)
    assert stride is not None, "an axis can always be split"
    return joined.like(shape=shape, stride=stride)


def _stack(xp: ModuleType, arrays: tuple[Any, ...], dim: int) -> Any:
    joined = xp.concatenate(with_common_dtype(arrays), axis=dim)
    return joined.reshape((*joined.shape[:dim], len(arrays), arrays[0].shape[dim], *joined.shape[dim + 1 :]))


def _stack_slopes(g: Any, needs: Any, dim: int) -> list[Any]:
    before = (slice(None),) * dim
    return [g[(*before, place)] if needed else None for place, needed in enumerate(needs)]


# Along a new axis before an old one: their cat along that, split (as in PyTorch).
STACK = define("stack", rule=_stack_rule, forward=_stack, backward=_stack_slopes, inputs="tensors*", attributes="dim")


@heard
def stack(tensors: Sequence[Tensor], dim: int = 0, *, out: Tensor | None = None) -> Tensor:
    """Joins tensors of one shape along a new axis.

    Raises: RuntimeError for no tensors, and shapes that differ; TypeError for what is no Tensor.
    """
    if out is not None:
        return deliver(out, stack, tensors, dim, same_dtype=False, overlap="any", cast_error=TypeError)
    given = _tensor_list("stack", tensors)
    dim = wrap_dim(dim, given[0].ndim + 1, "stack")
    for position, tensor in enumerate(given):
        if tensor.shape != given[0].shape:
            raise RuntimeError(
                f"stack expects each tensor to be equal size, but got {list(given[0].shape)} at entry 0 and "
                f"{list(tensor.shape)} at entry {position}"
            )
    if dim == given[0].ndim:
        return cat([unsqueeze(tensor, dim) for tensor in given], dim)
    return apply(STACK, given, (dim,))


@heard
def hstack(tensors: Sequence[Tensor], *, out: Tensor | None = None) -> Tensor:
    """Joins along the second axis (vectors: the first)."""
    given = [tensor if tensor.ndim else tensor.reshape(1) for tensor in _tensor_list("hstack", tensors)]
    return cat(given, 0 if given[0].ndim == 1 else 1, out=out)


@heard
def vstack(tensors: Sequence[Tensor], *, out: Tensor | None = None) -> Tensor:
    """Joins along the first axis; vectors become rows."""
    given = _tensor_list("vstack", tensors)
    return cat([tensor.reshape(1, -1) if tensor.ndim < 2 else tensor for tensor in given], 0, out=out)


FLIP = define(
    "flip",
    rule=lambda input, dims: input.like(stride=layout.preserve_strides(input.shape, input.stride)),
    forward=lambda xp, input, dims: xp.flip(input, dims),
    backward=(lambda g, nd, dims: nd.flip(g, dims),),
    attributes="dims",
)


def flip(input: Tensor, *axes: Any, dims: Sequence[int] | None = None) -> Tensor:
    """A copy with axes reversed: `flip(x, 0, 1)`, `flip(x, (0, 1))` or `flip(x, dims=(0, 1))`."""
    if dims is not None:
        if axes:
            raise TypeError("flip() got multiple values for argument 'dims'")
        axes = (dims,)
    named = axes[0] if len(axes) == 1 and isinstance(axes[0], Sequence) else axes
    return apply(FLIP, (input,), (wrap_dims(tuple(named), input.ndim, "flip") if named else (),))


@heard
def roll(input: Tensor, shifts: int | Sequence[int], dims: int | Sequence[int] | None = None) -> Tensor:
    """A copy with elements shifted cyclically along axes (over the flattened tensor without `dims`).

    Raises: RuntimeError for no shifts, and for another number of them than of axes.
    """
    distances = [shifts] if isinstance(shifts, int) else list(shifts)
    axes = [] if dims is None else [dims] if isinstance(dims, int) else list(dims)
    if not distances:
        raise RuntimeError("`shifts` required: roll() got none")
    if len(distances) != len(axes) and (axes or len(distances) > 1):
        raise RuntimeError(f"shifts and dimensions must align. shifts: {len(distances)}, dims: {len(axes)}")
    if not input.numel():
        return input.clone()
    if not axes:
        return roll(input.reshape(-1), distances, 0).reshape(input.shape)
    result = input
    for shift, axis in zip(distances, axes, strict=True):
        axis = wrap_dim(axis, input.ndim, "roll")
        size = input.shape[axis]
        cut = (size - shift) % size if size else 0
        result = cat([result.narrow(axis, cut, size - cut), result.narrow(axis, 0, cut)], axis)
    return result if result is not input else input.clone()


@heard
def repeat(input: Tensor, *sizes: Any) -> Tensor:
    """A copy tiled along axes; more sizes than axes add leading ones."""
    counts = tuple(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], Sequence) else sizes
    if len(counts) < input.ndim:
        raise RuntimeError(
            f"Number of dimensions of repeat dims can not be smaller than number of dimensions of tensor: "
            f"{list(counts)} and {list(input.shape)}"
        )
    shape = (1,) * (len(counts) - input.ndim) + tuple(input.shape)
    inner = [n for pair in zip((1,) * len(shape), shape, strict=True) for n in pair]
    outer = [n for pair in zip(counts, shape, strict=True) for n in pair]
    return _reshaped_copy(input.reshape(inner).expand(outer), tuple(c * n for c, n in zip(counts, shape, strict=True)))


def _reshaped_copy(expanded: Tensor, shape: tuple[int, ...]) -> Tensor:
    """An expanded tensor in another shape, always in memory of its own."""
    if layout.view_strides(expanded.shape, expanded._spec.stride, shape) is not None:
        expanded = expanded.clone(memory_format=layout.contiguous_format)
    return expanded.reshape(shape)


@heard
def tile(input: Tensor, *dims: Any) -> Tensor:
    """`repeat`, with missing counts taken as 1."""
    counts = tuple(dims[0]) if len(dims) == 1 and isinstance(dims[0], Sequence) else dims
    return repeat(input, (1,) * (input.ndim - len(counts)) + tuple(counts))


@heard
def repeat_interleave(input: Tensor, repeats: int | Tensor, dim: int | None = None) -> Tensor:
    """Each element (or slice along an axis) `repeats` times in a row."""
    if dim is None:
        input, dim = input.reshape(-1), 0
    dim = wrap_dim(dim, input.ndim, "repeat_interleave")
    if isinstance(repeats, Tensor):
        xp = backend.array_module(repeats.device)
        counts = xp.broadcast_to(repeats.detach()._array, (input.shape[dim],))
        ends = counts.cumsum()
        total = int(ends[-1]) if ends.size else 0  # the size of the result: a GPU is waited for
        index = xp.searchsorted(ends, xp.arange(total), side="right")
        return index_select(input, dim, wrap_device_array(index, repeats))
    grown = input.unsqueeze(dim + 1)
    expanded = grown.expand(tuple(repeats if axis == dim + 1 else n for axis, n in enumerate(grown.shape)))
    return _reshaped_copy(expanded, tuple(n * repeats if axis == dim else n for axis, n in enumerate(input.shape)))


def _triangle(name: str) -> Any:
    operator = define(
        name,
        rule=lambda input, diagonal: input.like(shape=input.shape),
        forward=lambda xp, input, diagonal: getattr(xp, name)(input, diagonal),
        backward=(lambda g, nd, diagonal: getattr(nd, name)(g, diagonal),),
        attributes="diagonal",
    )

    def function(input: Tensor, diagonal: int = 0, *, out: Tensor | None = None) -> Tensor:
        if out is not None:
            return deliver(out, function, input, diagonal)
        if input.ndim < 2:
            raise RuntimeError(
                f"{name}: input tensor must have at least 2 dimensions, got shape {list(input.shape)}; unsqueeze(0) "
                f"adds one"
            )
        return apply(operator, (input,), (int(diagonal),))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"The {'lower' if name == 'tril' else 'upper'} triangle of matrices, zero elsewhere."
    return heard(function)


tril = _triangle("tril")
triu = _triangle("triu")


def _cumulative(name: str) -> Any:
    def forward(xp: ModuleType, input: Any, dim: int, kind: Any) -> Any:
        if kind.itemsize == 2 and kind.is_floating_point:  # each partial result is rounded once, not carried on rounded
            return getattr(xp, name)(input, axis=dim, dtype=np.float32).astype(kind.numpy)
        return getattr(xp, name)(input, axis=dim, dtype=kind.numpy)

    operator = define(
        name,
        rule=lambda input, dim, kind: input.like(shape=input.shape, dtype=kind),
        forward=forward,
        backward=(
            (
                lambda g, nd, dim: nd.flip(
                    nd.cumsum(nd.flip(g, (dim,)), dim, g.dtype)
                    if nd.records
                    else nd.xp.cumsum(nd.xp.flip(in_single_precision(g), dim), axis=dim),
                    (dim,),
                ),
            )
            if name == "cumsum"
            else (lambda g, nd, input, out, dim: _cumprod_slope(g, nd, input, out, dim),)
        ),
        attributes="dim kind",
    )

    def function(input: Tensor, dim: int, dtype: Any = None, *, out: Tensor | None = None) -> Tensor:
        from engine.rules.dtypes import int64, require_dtype

        if out is not None:
            return deliver(out, function, input, dim, dtype=dtype or getattr(out, "dtype", None))
        kind = require_dtype(dtype) if dtype is not None else input.dtype if input.dtype.category >= 2 else int64
        dim = wrap_dim(dim, input.ndim, name)
        if not input.ndim:
            return input.to(kind, copy=True)
        return apply(operator, (input,), (dim, kind))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{name}: running {'sums' if name == 'cumsum' else 'products'} along an axis."
    return heard(function)


def _cumprod_slope(g: Any, nd: Any, input: Any, out: Any, dim: int) -> Any:
    """The sum of g[i] out[i] / x[k] over i >= k; with zeros among the elements, of products that leave x[k] out."""
    if not nd.records:
        g, input, out = map(in_single_precision, (g, input, out))
    if bool((input == 0).any()):
        return _cumprod_slope_at_zeros(g, nd, input, out, dim)
    total = g * out
    if nd.records:
        return nd.flip(nd.cumsum(nd.flip(total, (dim,)), dim), (dim,)) / input
    return nd.xp.flip(nd.xp.cumsum(nd.xp.flip(total, dim), axis=dim), dim) / input


def _cumprod_slope_at_zeros(g: Any, nd: Any, input: Any, out: Any, dim: int) -> Any:
    """Quadratic in the length of the axis."""
    g, input, out = (nd.movedim(each, dim, -1) for each in (g, input, out))
    columns = []
    for k in range(input.shape[-1]):
        rest = input[..., k + 1 :]
        following = nd.cumprod(rest, -1) if nd.records else nd.xp.cumprod(rest, -1, rest.dtype)
        column = g[..., k] + (g[..., k + 1 :] * following).sum(-1)
        columns.append(column if k == 0 else column * out[..., k - 1])
    return nd.movedim(nd.stack(columns, -1), -1, dim)


cumsum = _cumulative("cumsum")
cumprod = _cumulative("cumprod")


@heard
def meshgrid(*tensors: Any, indexing: str = "ij") -> tuple[Tensor, ...]:
    """Coordinate grids of vectors: "ij" has an axis a vector, in their order; "xy" the first two axes exchanged.

    Raises: RuntimeError for no vectors, for what is no vector, dtypes that differ, and other kinds of indexing.
    """
    given = tuple(tensors[0]) if len(tensors) == 1 and isinstance(tensors[0], Sequence) else tensors
    if not given:
        raise RuntimeError("meshgrid expects a non-empty TensorList")
    if indexing not in ("ij", "xy"):
        raise RuntimeError(f'meshgrid: indexing must be one of "xy" or "ij", but received: {indexing}')
    for tensor in given:
        if tensor.ndim > 1:
            raise RuntimeError(f"meshgrid: Expected 0D or 1D tensor in the tensor list but got: {tensor}")
        if tensor.dtype is not given[0].dtype:
            raise RuntimeError(
                f"meshgrid expects all tensors to have the same dtype, got {given[0].dtype} and {tensor.dtype}"
            )
    if indexing == "xy" and len(given) > 1:
        grids = meshgrid(given[1], given[0], *given[2:])
        return grids[1], grids[0], *grids[2:]
    shape = tuple(tensor.numel() for tensor in given)
    return tuple(
        tensor.reshape(tuple(n if i == axis else 1 for i, n in enumerate(shape))).expand(shape)
        for axis, tensor in enumerate(given)
    )


def unify(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Tensors expanded to their common shape (broadcast_tensors)."""
    shape = layout.broadcast_shapes(*(tuple(tensor.shape) for tensor in tensors))
    return tuple(tensor.expand(shape) for tensor in tensors)


@heard
def broadcast_tensors(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Tensors expanded to their common shape."""
    return unify(tensors)
