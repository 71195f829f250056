"""scatter_reduce, index_reduce and put: values combined where they meet at one place.

Sums and means are composed; products and extrema have a kernel. Derivatives as PyTorch's: equal extrema share the
gradient evenly, a product's is that of all other factors, zeros included.
"""

import math
from types import ModuleType
from typing import Any

from engine.calls.dispatch import apply
from engine.calls.listening import heard
from engine.calls.operator import define
from engine.ops.copy.operator import lay_out
from engine.ops.creation.factories import ones_like
from engine.ops.index.along_axis import check_along_axis, places_along, scatter, scatter_add
from engine.ops.index.operator import index_put_
from engine.ops.index.scattering import combine_at
from engine.ops.pointwise.rows import div
from engine.ops.pointwise.selection import where
from engine.ops.shared.operands import kept
from engine.rules.dims import wrap_dim
from engine.rules.dtypes import FLOATING_CATEGORY, bool_, iinfo
from engine.rules.layout import preserve_strides
from engine.rules.spec import Spec
from engine.tensor import Tensor

_UFUNCS = {"prod": "multiply", "amax": "maximum", "amin": "minimum"}
_REDUCTIONS = ("sum", "prod", "mean", "amax", "amin")


def _rule(input: Spec, index: Spec, source: Spec, dim: int, reduce: str) -> Spec:
    return input.like(shape=input.shape)


def _forward(xp: ModuleType, input: Any, index: Any, source: Any, dim: int, reduce: str) -> Any:
    out = input.copy()
    combine_at(xp, _UFUNCS[reduce], out, places_along(index, dim, input.shape, xp), source)
    return out


def _slopes(g: Any, nd: Any, input: Any, index: Any, source: Any, out: Any, dim: int, reduce: str) -> tuple[Any, ...]:
    take = lambda x: nd.gather(x, dim, index)  # noqa: E731
    if nd.records:
        count = lambda base, marks: nd.scatter_add(base.to(g.dtype), dim, index, marks.to(g.dtype))  # noqa: E731
    else:
        count = lambda base, marks: (  # noqa: E731
            base.astype(g.dtype) + nd.scatter_add_zeros(marks.astype(g.dtype), index, input.shape, dim)
        )
    if reduce != "prod":
        hit, hits = input == out, source == take(out)
        shared = g / count(hit, hits)
        return kept(shared, nd, hit), None, kept(take(shared), nd, hits)
    # The product of the other factors: of all that are not 0, if there is no other 0.
    zeros = count(input == 0, source == 0)
    if nd.records and bool((zeros != 0).any()):
        raise RuntimeError("scatter_reduce: the second derivative of prod is not implemented for factors of 0")
    nonzero = nd.where(input == 0, 1, input)
    factors = nd.where(source == 0, 1, source)
    if nd.records:
        rest = scatter_reduce(nonzero, dim, index, factors, "prod")
    else:
        rest = _forward(nd.xp, nonzero, index, factors, dim, "prod")
    share = g * rest
    others_nonzero = zeros - (1 * (input == 0)) == 0
    of_input = kept(share / nonzero, nd, others_nonzero)
    of_source = kept(take(share) / factors, nd, take(zeros) - (1 * (source == 0)) == 0)
    return of_input, None, of_source


SCATTER_REDUCE = define(
    "scatter_reduce",
    rule=_rule,
    forward=_forward,
    backward=_slopes,
    inputs="input index source",
    attributes="dim reduce",
)


_NEUTRAL = {"prod": 1, "sum": 0, "mean": 0}


def _limit(input: Tensor, reduce: str) -> float:
    """What any other element exceeds, or falls below."""
    if input.is_floating_point():
        return -math.inf if reduce == "amax" else math.inf
    if input.dtype is bool_:
        return reduce == "amin"
    return iinfo(input.dtype).min if reduce == "amax" else iinfo(input.dtype).max


def scatter_reduce(
    input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """`input` combined with `src` at `index` along an axis: "sum", "prod", "mean", "amax" or "amin" of what meets
    there, the element of `input` itself included unless `include_self` is False.

    Raises: RuntimeError for another reduction, shapes or dtypes that do not fit, and an index out of range.
    """
    if reduce not in _REDUCTIONS:
        raise RuntimeError(f"reduce argument must be either sum, prod, mean, amax or amin, got {reduce}")
    dim = wrap_dim(dim, input.ndim, "scatter_reduce")
    if not input.ndim:
        flat = scatter_reduce(
            input.reshape(1), 0, index.reshape(-1), src.reshape(-1), reduce, include_self=include_self
        )
        return flat.reshape(())
    check_along_axis("scatter_reduce", input, dim, index, src)
    if src.shape != index.shape:
        src = src[tuple(slice(0, size) for size in index.shape)]
    if not include_self:  # no element of its own where something else is
        own = _NEUTRAL[reduce] if reduce in _NEUTRAL else _limit(input, reduce)
        input = scatter(input, dim, index, own)
    if reduce == "sum":
        return scatter_add(input, dim, index, src)
    if reduce == "mean":
        ones = ones_like(input.detach())
        if not include_self:
            ones = scatter(ones, dim, index, 0)
        counts = scatter_add(ones, dim, index, ones_like(src.detach()))
        total = scatter_add(input, dim, index, src)
        counts = where(counts == 0, 1, counts)
        if input.dtype.category < FLOATING_CATEGORY:
            return div(total, counts, rounding_mode="floor")
        return total / counts
    return apply(SCATTER_REDUCE, (input, index, src), (dim, reduce))


@heard
def index_reduce(
    input: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """`scatter_reduce` of whole slices: slice i of `source` meets slice index[i] of `input` along an axis."""
    if reduce not in ("prod", "mean", "amax", "amin"):
        raise RuntimeError(f"index_reduce(): Expected reduce to be one of prod, mean, amax or amin but got {reduce}.")
    dim = wrap_dim(dim, input.ndim, "index_reduce")
    if index.ndim > 1:
        raise IndexError("index_reduce_(): Index is supposed to be a vector")
    if not input.ndim:
        return scatter_reduce(input, 0, index, source, reduce, include_self=include_self)
    grown = index.reshape((-1,) + (1,) * (input.ndim - 1 - dim)).expand(source.shape)
    return scatter_reduce(input, dim, grown, source, reduce, include_self=include_self)


@heard
def put(input: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """`input` with `source` written (or added) at places of the flattened tensor."""
    if index.numel() != source.numel():
        raise RuntimeError(
            f"put_(): Expected source and index to have the same number of elements, but got source.numel() = "
            f"{source.numel()}, index.numel() = {index.numel()}"
        )
    flat = input.clone().reshape(-1)
    if not index.numel():
        return flat.reshape(input.shape)
    index_put_(flat, (0,), (index.reshape(-1),), source.reshape(-1), accumulate)
    stride = preserve_strides(input.shape, input.stride())
    written = flat.reshape(input.shape)
    return written if stride == written.stride() else lay_out(written, stride)
