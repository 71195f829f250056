"""Index tensors along one axis: index_select, gather, scatter, scatter_add, take."""

from types import ModuleType
from typing import Any

from engine.calls.dispatch import apply
from engine.calls.listening import heard
from engine.calls.namespaces import tensor_namespace
from engine.calls.operands import Scalar
from engine.calls.operator import define
from engine.ops.creation.factories import full
from engine.ops.index.operator import getitem
from engine.ops.index.scattering import combine_at
from engine.ops.shared.scalars import checked
from engine.ops.writing.out import deliver
from engine.rules import layout
from engine.rules.dims import wrap_dim
from engine.rules.dtypes import int64
from engine.rules.spec import Spec
from engine.tensor import Tensor


@heard
def check_index(name: str, index: Tensor, size: int, error: type[Exception] = RuntimeError) -> None:
    """Raises for an index tensor that is no integer (RuntimeError) or out of range (`error`)."""
    if index.dtype is not int64 and index.dtype.name != "int32":
        raise RuntimeError(f"{name}(): Expected dtype int32/int64 for index, got {index.dtype}")
    if index.is_cpu and index._array.size:  # a GPU's are not waited for: there an index is taken modulo the size
        low, high = int(index._array.min()), int(index._array.max())
        if low < 0 or high >= size:
            raise error(
                f"{name}: index {high if high >= size else low} is out of bounds for dimension with size {size}"
            )


def rows_at(
    name: str, input: Tensor, dim: int, index: Tensor, source: Tensor, error: type[Exception] = RuntimeError
) -> tuple[Tensor, Tensor, Tensor]:
    """What index_add_ and index_copy_ write: a view of `input` with the axis first, the index as a vector, the slices
    of `source` for it; a 0-dim tensor is one of one element.

    Raises: RuntimeError for shapes or dtypes that do not fit; `error` for an index out of range.
    """
    dim = wrap_dim(dim, input.ndim, name)
    if index.ndim > 1:
        raise IndexError(f"{name}: Index is supposed to be a vector, but got dim: {index.ndim}")
    if source.dtype is not input.dtype:
        raise RuntimeError(
            f"{name}: self ({input.dtype}) and source ({source.dtype}) must have the same dtype; convert one with .to()"
        )
    wanted = list(input.shape)
    wanted[dim : dim + 1] = [index.numel()] * min(input.ndim, 1)
    if list(source.shape) != wanted:
        counted = source.ndim == input.ndim and (*source.shape[:dim], index.numel(), *source.shape[dim + 1 :])
        raise (error if counted == tuple(wanted) else RuntimeError)(
            f"{name}: source tensor shape must match self tensor shape, excluding the specified dimension, where it "
            f"has the size of the index. Got self.shape = {list(input.shape)} source.shape = {list(source.shape)} "
            f"dim = {dim} index.shape = {list(index.shape)}"
        )
    check_index(name, index, input.shape[dim] if input.ndim else 1, error)
    index = index if index.ndim else index.reshape(1)
    if not input.ndim:
        return input.view(1), index, source.reshape(1)
    return (input.movedim(dim, 0), index, source.movedim(dim, 0)) if dim else (input, index, source)


INDEX_SELECT = define(
    "index_select",
    rule=lambda input, index, dim: input.like(shape=(*input.shape[:dim], index.numel, *input.shape[dim + 1 :])),
    forward=lambda xp, input, index, dim: input.take(index, dim),
    backward=(
        lambda g, nd, index, input_spec, dim: nd.index_backward(g, (index,), (dim,), tuple(input_spec.shape)),
        None,
    ),
    inputs="input index",
    attributes="dim",
)


def index_select(input: Tensor, dim: int, index: Tensor, *, out: Tensor | None = None) -> Tensor:
    """The elements at `index` along an axis."""
    if out is not None:
        return deliver(out, index_select, input, dim, index, overlap="any")
    dim = wrap_dim(dim, input.ndim, "index_select")
    if index.ndim > 1:
        raise IndexError(f"index_select(): Index is supposed to be a vector, got shape {list(index.shape)}")
    size = input.shape[dim] if input.ndim else 1
    check_index("index_select", index, size, IndexError)
    picked = apply(INDEX_SELECT, (input if input.ndim else input.unsqueeze(0), index.reshape(-1)), (dim,))
    return picked if input.ndim else picked.reshape(())


def places_along(index: Any, dim: int, shape: tuple[int, ...], xp: ModuleType) -> tuple[Any, ...]:
    """A full index key for gather and scatter: every axis counts up, `dim` is indexed."""
    last = index.ndim - 1
    return tuple(
        index if axis == dim else xp.arange(size).reshape((-1,) + (1,) * (last - axis))
        for axis, size in enumerate(index.shape)
    )


GATHER = define(
    "gather",
    rule=lambda input, index, dim: input.like(shape=index.shape),
    forward=lambda xp, input, index, dim: input[places_along(index, dim, input.shape, xp)],
    backward=(lambda g, nd, index, input_spec, dim: nd.scatter_add_zeros(g, index, tuple(input_spec.shape), dim), None),
    inputs="input index",
    attributes="dim",
)


def _scatter_add_zeros(xp: ModuleType, source: Any, index: Any, size: tuple[int, ...], dim: int) -> Any:
    zeros = xp.zeros(size, source.dtype)
    rows = source[tuple(slice(0, n) for n in index.shape)]
    combine_at(xp, "add", zeros, places_along(index, dim, size, xp), rows)
    return zeros


def _gather_padded(g: Any, nd: Any, index: Any, spec: Spec, dim: int) -> Any:
    picked = nd.gather(g, dim, index)
    if tuple(spec.shape) == tuple(index.shape):
        return picked
    return nd.view_backward(picked, "window", (tuple(index.shape),), tuple(spec.shape), False)


SCATTER_ADD_ZEROS = define(
    "scatter_add_zeros",
    rule=lambda input, index, size, dim: input.like(shape=size),
    forward=_scatter_add_zeros,
    backward=(lambda g, nd, index, input_spec, dim: _gather_padded(g, nd, index, input_spec, dim), None),
    inputs="input index",
    attributes="size dim",
)
define(
    "window",
    rule=lambda input, size: input.like(shape=size, stride=input.stride),
    forward=lambda xp, input, size: input[tuple(slice(0, n) for n in size)],
    attributes="size",
    view=True,
)


def scatter_add_zeros(input: Tensor, index: Tensor, size: tuple[int, ...], dim: int) -> Tensor:
    """Zeros of `size` with `input` added at `index` along `dim`; the adjoint of gather."""
    return apply(SCATTER_ADD_ZEROS, (input, index), (tuple(size), dim))


def gather(input: Tensor, dim: int, index: Tensor, *, out: Tensor | None = None) -> Tensor:
    """out[i][j][k] = input[i][index[i][j][k]][k] (for dim 1)."""
    if out is not None:
        return deliver(out, gather, input, dim, index, overlap="any")
    dim = wrap_dim(dim, input.ndim, "gather")
    if not index.numel() and (
        index.ndim != input.ndim or index.dtype is not int64
    ):  # PyTorch looks at neither the dtype nor the rank of no indices
        return (input if input.ndim else input.reshape(1))[:0].reshape(index.shape)
    if not input.ndim or not index.ndim:
        return gather(
            input.reshape(-1) if not input.ndim else input, dim, index.reshape(-1) if not index.ndim else index
        ).reshape(index.shape)
    _check_scatter_shapes("gather", input, dim, index)
    check_index("gather", index, input.shape[dim])
    return apply(GATHER, (input, index), (dim,))


def _check_scatter_shapes(name: str, input: Tensor, dim: int, index: Tensor) -> None:
    if index.ndim != input.ndim:
        raise RuntimeError(
            f"{name}: Index tensor must have the same number of dimensions as input tensor, got {list(index.shape)} "
            f"and {list(input.shape)}"
        )
    for axis in range(input.ndim):
        if axis != dim and index.shape[axis] > input.shape[axis]:
            raise RuntimeError(
                f"{name}: Size does not match at dimension {axis} expected index {list(index.shape)} to be smaller "
                f"than self {list(input.shape)} apart from dimension {dim}"
            )


def check_along_axis(name: str, input: Tensor, dim: int, index: Tensor, src: Any) -> None:
    _check_scatter_shapes(name, input, dim, index)
    check_index(name, index, input.shape[dim])
    if isinstance(src, Tensor):
        if src.dtype is not input.dtype:
            raise RuntimeError(
                f"{name}(): Expected self.dtype to be equal to src.dtype, got {input.dtype} and {src.dtype}; convert "
                "one with .to()"
            )
        if src.ndim != index.ndim or any(n > m for n, m in zip(index.shape, src.shape, strict=True)):
            raise RuntimeError(
                f"{name}(): Expected index {list(index.shape)} to be no larger than src {list(src.shape)} in any "
                "dimension"
            )


@heard
def scatter_add(input: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """`input` with `src` added at `index` along an axis.

    Raises: RuntimeError for shapes or dtypes that do not fit and an index out of range.
    """
    dim = wrap_dim(dim, input.ndim, "scatter_add")
    if not input.ndim:
        return scatter_add(input.reshape(1), 0, index.reshape(-1), src.reshape(-1)).reshape(())
    check_along_axis("scatter_add", input, dim, index, src)
    return input.contiguous() + scatter_add_zeros(src, index, tuple(input.shape), dim)


def _scatter(xp: ModuleType, input: Any, index: Any, source: Any, dim: int) -> Any:
    out = input.copy()
    if hasattr(source, "shape") and source.shape != index.shape:
        source = source[tuple(slice(0, n) for n in index.shape)]
    out[places_along(index, dim, input.shape, xp)] = source  # of values for one place the last stays, as in PyTorch
    return out


SCATTER = define(
    "scatter",
    rule=lambda input, index, source, dim: input.like(shape=input.shape),
    forward=_scatter,
    backward=(
        lambda g, nd, index, dim: nd.scatter(g, dim, index, 0.0),
        None,
        lambda g, nd, index, source_spec, dim: _gather_padded(g, nd, index, source_spec, dim),
    ),
    inputs="input index source",
    attributes="dim",
)


def scatter(
    input: Tensor, dim: int, index: Tensor, src: Any = None, *, value: Any = None, reduce: str | None = None
) -> Tensor:
    """`input` with `src` (a Tensor, or the number `value`) written at `index` along an axis, or with `reduce` "add" or
    "multiply" combined with what is there.

    Where an index repeats, the last value stays; the derivative is PyTorch's, which is right for distinct indices only.
    Raises: RuntimeError for shapes, dtypes or a number that do not fit and an index out of range.
    """
    src = value if src is None else src
    dim = wrap_dim(dim, input.ndim, "scatter")
    if reduce is not None:
        return _scatter_reduced(input, dim, index, src, reduce)
    if not input.ndim:
        flat = src.reshape(-1) if isinstance(src, Tensor) else src
        return scatter(input.reshape(1), 0, index.reshape(-1), flat).reshape(())
    check_along_axis("scatter", input, dim, index, src)
    source = src if isinstance(src, Tensor) else Scalar(checked("scatter", src, input.dtype))
    return apply(SCATTER, (input, index, source), (dim,))


def _scatter_reduced(input: Tensor, dim: int, index: Tensor, src: Any, reduce: str) -> Tensor:
    if reduce not in ("add", "multiply"):
        raise RuntimeError(f"reduce argument must be either add or multiply, got {reduce}")
    if not isinstance(src, Tensor):
        src = full(tuple(index.shape), checked("scatter", src, input.dtype), dtype=input.dtype, device=input.device)
    made: Tensor = tensor_namespace.scatter_reduce(input, dim, index, src, "sum" if reduce == "add" else "prod")
    return made


@heard
def take_along_dim(input: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """gather with broadcasting; over the flattened tensor without `dim`."""
    if dim is None:
        return gather(input.reshape(-1), 0, indices.reshape(-1))
    dim = wrap_dim(dim, input.ndim, "take_along_dim")
    shape = layout.broadcast_shapes(
        tuple(1 if axis == dim else n for axis, n in enumerate(input.shape)),
        tuple(1 if axis == dim else n for axis, n in enumerate(indices.shape)),
    )
    grown = input.expand(tuple(input.shape[axis] if axis == dim else n for axis, n in enumerate(shape)))
    return gather(
        grown, dim, indices.expand(tuple(indices.shape[axis] if axis == dim else n for axis, n in enumerate(shape)))
    )


@heard
def take(input: Tensor, index: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Elements of the flattened tensor."""
    if out is not None:
        return deliver(out, take, input, index, overlap="any")
    return getitem(input.reshape(-1), index)
