"""The largest and smallest elements: amax and amin over axes; max, min, argmax and argmin, which also say where."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from engine.calls.dispatch import apply
from engine.calls.listening import heard
from engine.calls.operator import define
from engine.ops.pointwise.row import FUNCTIONS
from engine.ops.reduce.operator import Dims, reduced, spread
from engine.ops.shared.operands import in_host_memory, in_single_precision, kept, refuse_complex, require_tensors
from engine.ops.writing.out import deliver
from engine.rules.dims import wrap_dim, wrap_dims
from engine.rules.dtypes import dtype, int64
from engine.rules.spec import Spec
from engine.tensor import Tensor


def _extremum(name: str, function: str) -> Callable[..., Tensor]:
    def rule(input: Spec, dims: tuple[int, ...], keepdim: bool, kind: dtype) -> Spec:
        refuse_complex(name, input)
        return reduced(input, dims, keepdim, kind)

    operator = define(
        name,
        rule=rule,
        forward=lambda xp, input, dims, keepdim, kind: getattr(xp, function)(input, axis=dims, keepdims=keepdim),
        backward=(
            lambda g, nd, input, out, input_spec, dims, keepdim: even_shares(
                g, nd, input, out, input_spec, dims, keepdim
            ),
        ),
        attributes="dims keepdim kind",
    )

    def reduce(input: Tensor, dim: Dims = (), keepdim: bool = False, *, out: Tensor | None = None) -> Tensor:
        if out is not None:
            return deliver(out, reduce, input, dim, keepdim)
        dims = wrap_dims(dim, input.ndim, name)
        if not input.numel():
            if dim is None or dim == ():
                raise RuntimeError(_unspecified(name, input))
            _refuse_empty(name, input._spec, dims)
        return apply(operator, (input,), (dims, keepdim, input.dtype))

    reduce.__name__ = reduce.__qualname__ = name
    reduce.__doc__ = f"{function.capitalize()} over axes; the gradient is shared evenly between equal elements."
    return heard(reduce)


def even_shares(g: Any, nd: Any, input: Any, out: Any, spec: Spec, dims: tuple[int, ...], keepdim: bool) -> Any:
    out = spread(nd, out, spec, dims, keepdim)
    hit = input == out
    undefined = out != out
    # A NaN is the extremum of what it is among. Whether there is any is asked only where nobody has to wait for it.
    if not in_host_memory(undefined) or bool(undefined.any()):
        hit = hit | undefined & (input != input)
    shares = nd.count(hit, dims)
    return kept(spread(nd, g, spec, dims, keepdim) / shares, nd, hit)


def _unspecified(name: str, input: Tensor) -> str:
    return (
        f"{name}(): Expected reduction dim to be specified for input.numel() == 0 (shape {list(input.shape)}). Specify "
        "the reduction dim with the 'dim' argument; its size must not be 0."
    )


def _refuse_empty(name: str, spec: Spec, dims: tuple[int, ...]) -> None:
    for dim in dims:
        if spec.shape[dim] == 0:
            raise IndexError(
                f"{name}(): Expected reduction dim {dim} to have non-zero size, got shape {list(spec.shape)}"
            )


amax = _extremum("amax", "max")
amin = _extremum("amin", "min")


class values_indices(tuple[Tensor, Tensor]):
    """What max(dim), min(dim), sort, topk ... return: unpacks as (values, indices) and has both names."""

    __slots__ = ()
    values = property(lambda self: self[0])
    indices = property(lambda self: self[1])

    def __repr__(self) -> str:
        return f"engine.return_types.{type(self).__name__}(\nvalues={self[0]},\nindices={self[1]})"


def _picked(name: str, pick: str) -> tuple[Callable[..., values_indices], Callable[..., Tensor]]:
    def forward(xp: ModuleType, input: Any, dim: int, keepdim: bool) -> tuple[Any, Any]:
        wide = input if xp is np else in_single_precision(input)  # CuPy picks no bfloat16
        indices = xp.expand_dims(getattr(xp, pick)(wide, axis=dim), dim)
        values = xp.take_along_axis(input, indices, dim)
        return (values, indices) if keepdim else (values.squeeze(dim), indices.squeeze(dim))

    def rule(input: Spec, dim: int, keepdim: bool) -> tuple[Spec, Spec]:
        refuse_complex(name, input)
        return reduced(input, (dim,), keepdim, input.dtype), reduced(input, (dim,), keepdim, int64)

    operator = define(
        f"{name}_dim",
        rule=rule,
        forward=forward,
        backward=lambda g, nd, out1, input_spec, dim, keepdim: (
            _scatter_picked(g[0], nd, out1, input_spec, dim, keepdim),
        ),
        attributes="dim keepdim",
        outputs=2,
    )

    def along(input: Tensor, dim: int, keepdim: bool) -> values_indices:
        dim = wrap_dim(dim, input.ndim, name)
        if not input.ndim:
            return values_indices((input.clone(), input.new_zeros((), dtype=int64)))
        _refuse_empty(name, input._spec, (dim,))
        return values_indices(apply(operator, (input,), (dim, keepdim)))

    def index_only(
        input: Tensor, dim: int | None = None, keepdim: bool = False, *, out: Tensor | None = None
    ) -> Tensor:
        if out is not None:
            return deliver(out, index_only, input, dim, keepdim)
        if dim is None:
            if not input.numel():
                raise IndexError(_unspecified(f"arg{name}", input))
            flat = along(input.detach().reshape(-1), 0, False)[1]
            return flat.reshape((1,) * input.ndim) if keepdim else flat
        return along(input.detach(), dim, keepdim)[1]

    index_only.__name__ = index_only.__qualname__ = f"arg{name}"
    index_only.__doc__ = (
        f"Where the {name}imum lies along an axis, or in the flattened tensor; the first of equal ones."
    )
    return along, heard(index_only)


def _scatter_picked(g: Any, nd: Any, indices: Any, spec: Spec, dim: int, keepdim: bool) -> Any:
    if g is None:
        return None
    if not keepdim:
        g, indices = nd.unsqueeze(g, dim), nd.unsqueeze(indices, dim)
    return nd.scatter_zeros(g, indices, tuple(spec.shape), dim)


SCATTER_ZEROS = define(
    "scatter_zeros",
    rule=lambda input, index, size, dim: input.like(shape=size),
    forward=lambda xp, input, index, size, dim: _put(xp, input, index, size, dim),
    backward=(
        lambda g, nd, index, dim: nd.gather(g, dim, index),
        None,
    ),
    inputs="input index",
    attributes="size dim",
)


def _put(xp: ModuleType, input: Any, index: Any, size: tuple[int, ...], dim: int) -> Any:
    zeros = xp.zeros(size, input.dtype)
    xp.put_along_axis(zeros, index, input, dim)
    return zeros


def scatter_zeros(input: Tensor, index: Tensor, size: tuple[int, ...], dim: int) -> Tensor:
    """Zeros of `size` with `input` written at `index` along `dim` (indices distinct along it); adjoint of gather."""
    return apply(SCATTER_ZEROS, (input, index), (tuple(size), dim))


_max_along, argmax = _picked("max", "argmax")
_min_along, argmin = _picked("min", "argmin")


@heard
def max(input: Tensor, dim: Any = None, keepdim: bool = False, *, out: Any = None) -> Any:
    """The largest element; with an axis (values, indices); with a Tensor the elementwise maximum."""
    if out is not None:
        return deliver(out, max, input, dim, keepdim, same_dtype=isinstance(dim, int))
    return _extremum_call(input, dim, keepdim, "maximum", amax, _max_along)


@heard
def min(input: Tensor, dim: Any = None, keepdim: bool = False, *, out: Any = None) -> Any:
    """The smallest element; with an axis (values, indices); with a Tensor the elementwise minimum."""
    if out is not None:
        return deliver(out, min, input, dim, keepdim, same_dtype=isinstance(dim, int))
    return _extremum_call(input, dim, keepdim, "minimum", amin, _min_along)


def _extremum_call(
    input: Tensor, dim: Any, keepdim: bool, binary: str, whole: Callable[..., Any], along: Callable[..., Any]
) -> Any:
    if input.__class__ is not Tensor:
        require_tensors(binary[:3], input=input)
    if isinstance(dim, Tensor):
        return FUNCTIONS[binary](input, dim)
    return whole(input) if dim is None else along(input, dim, keepdim)
