"""Sorting and selection: sort, topk, kthvalue, median, mode, quantile. Values are gathered, so gradients go back by
index.
"""

from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from engine.calls.dispatch import apply
from engine.calls.listening import heard
from engine.calls.operator import Operator, define
from engine.ops.creation.from_data import tensor
from engine.ops.pointwise.selection import where
from engine.ops.reduce.extrema import even_shares, values_indices
from engine.ops.shared.operands import in_single_precision, refuse_complex, running
from engine.ops.writing.out import deliver
from engine.rules import iterator, layout
from engine.rules.dims import wrap_dim
from engine.rules.dtypes import FLOATING_CATEGORY, int64
from engine.rules.spec import Spec
from engine.tensor import Tensor


def _send_back(g: Any, nd: Any, out1: Any, input_spec: Spec, dim: int) -> Any:
    """The gradient of gathered values (distinct places along `dim`), which may have been written since."""
    return (None if g[0] is None else nd.scatter_zeros(g[0], out1, tuple(input_spec.shape), dim),)


def _order(xp: ModuleType, input: Any, dim: int, descending: bool) -> Any:
    """Indices that sort stably; NaN counts as largest (in bfloat16, too, which ml_dtypes leaves in place)."""
    input = in_single_precision(input)
    if not descending:
        return xp.argsort(input, axis=dim, kind="stable")
    # Descending and stable: the reversed axis sorted stably, read from the end.
    size = input.shape[dim]
    return xp.flip(size - 1 - xp.argsort(xp.flip(input, dim), axis=dim, kind="stable"), dim)


# --- sort -------------------------------------------------------------------------------------------------------------


def _sort_rule(input: Spec, dim: int, descending: bool) -> tuple[Spec, Spec]:
    if input.dtype.is_complex:
        raise RuntimeError(f"sort: complex tensors have no order, got {input.dtype}")
    stride = layout.preserve_strides(input.shape, input.stride)
    return input.like(stride=stride), input.like(stride=stride, dtype=int64)


def _sort(xp: ModuleType, input: Any, dim: int, descending: bool) -> tuple[Any, Any]:
    order = _order(xp, input, dim, descending)
    return xp.take_along_axis(input, order, dim), order


SORT = define(
    "sort",
    rule=_sort_rule,
    forward=_sort,
    backward=_send_back,
    attributes="dim descending",
    outputs=2,
)


def sort(
    input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False, *, out: Any = None
) -> values_indices:
    """(values in order, where they lay) along an axis; always stable. NaN counts as largest."""
    if out is not None:
        return deliver(out, sort, input, dim, descending, stable)
    dim = wrap_dim(dim, input.ndim, "sort")
    if not input.ndim:
        return values_indices((input.clone(), input.new_zeros((), dtype=int64)))
    return values_indices(apply(SORT, (input,), (dim, bool(descending))))


@heard
def argsort(input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> Tensor:
    """The indices of `sort`."""
    return sort(input.detach(), dim, descending)[1]


@heard
def msort(input: Tensor) -> Tensor:
    """Sorted along the first axis."""
    return sort(input, 0)[0]


# --- topk, kthvalue, median, mode -------------------------------------------------------------------------------------


def _topk_rule(input: Spec, k: int, dim: int, largest: bool, sorted: bool) -> tuple[Spec, Spec]:
    refuse_complex("topk", input)
    if not 0 <= k <= input.shape[dim]:
        raise RuntimeError(f"topk: selected index k out of range: k = {k}, shape {list(input.shape)}, dim {dim}")
    shape = (*input.shape[:dim], k, *input.shape[dim + 1 :])
    return input.like(shape=shape), input.like(shape=shape, dtype=int64)


def _topk(xp: ModuleType, input: Any, k: int, dim: int, largest: bool, sorted: bool) -> tuple[Any, Any]:
    size, front = input.shape[dim], (slice(None),) * dim
    if 0 < 8 * k < size:  # a partition first: 10 of 50,000 floats take 0.45 ms, a full sort 4.1
        near = xp.argpartition(input, size - k if largest else k - 1, axis=dim)
        near = near[(*front, slice(size - k, None) if largest else slice(0, k))]
        order = _order(xp, xp.take_along_axis(input, near, dim), dim, largest)
        kept = xp.take_along_axis(near, order, dim)
    else:
        kept = _order(xp, input, dim, largest)[(*front, slice(0, k))]
    return xp.take_along_axis(input, kept, dim), kept


TOPK = define(
    "topk",
    rule=_topk_rule,
    forward=_topk,
    backward=_send_back,
    attributes="k dim largest sorted",
    outputs=2,
)


def topk(
    input: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True, *, out: Any = None
) -> values_indices:
    """(the k largest or smallest elements in order, where they lie) along an axis.

    Raises: RuntimeError if the axis has fewer than k elements.
    """
    if out is not None:
        return deliver(out, topk, input, k, dim, largest, sorted)
    dim = wrap_dim(dim, input.ndim, "topk")
    if not input.ndim:
        if k > 1:
            raise RuntimeError(f"topk: selected index k out of range: k = {k} of a 0-dim tensor")
        return values_indices((input.clone(), input.new_zeros((), dtype=int64)))
    return values_indices(apply(TOPK, (input,), (int(k), dim, bool(largest), bool(sorted))))


def _pick_rule(name: str, input: Spec, k: int, dim: int, keepdim: bool) -> tuple[Spec, Spec]:
    refuse_complex(name, input)
    shape = iterator.reduction_shape(input.shape, (dim,), keepdim)
    return input.like(shape=shape), input.like(shape=shape, dtype=int64)


def _picker(name: str, find: Any) -> Operator:
    """An operator that takes one element of each row: `find(xp, input, k, dim)` gives its indices, axis kept."""

    def forward(xp: ModuleType, input: Any, k: int, dim: int, keepdim: bool) -> tuple[Any, Any]:
        places = find(xp, input, k, dim)
        values = xp.take_along_axis(input, places, dim)
        return (values, places) if keepdim else (values.squeeze(dim), places.squeeze(dim))

    def slope(g: Any, nd: Any, out1: Any, input_spec: Spec, dim: int, keepdim: bool) -> Any:
        if g[0] is None:
            return (None,)
        grown, places = g[0], out1
        if not keepdim:
            grown, places = nd.unsqueeze(grown, dim), nd.unsqueeze(places, dim)
        return (nd.scatter_zeros(grown, places, tuple(input_spec.shape), dim),)

    rule = partial(_pick_rule, name)
    return define(name, rule=rule, forward=forward, backward=slope, attributes="k dim keepdim", outputs=2)


def _find_kth(xp: ModuleType, input: Any, k: int, dim: int) -> Any:
    order = _order(xp, input, dim, False)
    return order[(slice(None),) * dim + (slice(k - 1, k),)]


def _find_median(xp: ModuleType, input: Any, skip_nan: int, dim: int) -> Any:
    """The lower median; a row with NaN gives its first NaN, unless they are skipped."""
    size = input.shape[dim]
    order = _order(xp, input, dim, False)
    nan = input != input
    numbers = size - nan.sum(axis=dim, keepdims=True)
    if not skip_nan:
        middle = xp.where(
            numbers < size, numbers, (size - 1) // 2
        )  # NaN are last in order, the first of them at `numbers`
    else:
        middle = xp.where(numbers == 0, 0, xp.maximum(numbers - 1, 0) // 2)
    return xp.take_along_axis(order, middle, dim)


def _find_mode(xp: ModuleType, input: Any, unused: int, dim: int) -> Any:
    """The smallest of the most frequent values, at its last place."""
    if xp is not np:
        return _find_mode_in_order(xp, input, dim)
    rows = np.moveaxis(input, dim, -1)
    places = np.empty((*rows.shape[:-1], 1), np.int64)
    for index in np.ndindex(*rows.shape[:-1]):
        values, counts = np.unique(rows[index], return_counts=True, equal_nan=False)
        found = values[counts.argmax()]
        places[index] = np.flatnonzero((rows[index] == found) | (found != found) & (rows[index] != rows[index]))[-1]
    return np.moveaxis(places, -1, dim)


def _find_mode_in_order(xp: ModuleType, input: Any, dim: int) -> Any:
    """The same without a loop over rows: the longest run of equal elements in order, the first of equally long ones."""
    order = xp.moveaxis(_order(xp, input, dim, False), dim, -1)
    rows = xp.take_along_axis(xp.moveaxis(input, dim, -1), order, -1)
    begins = xp.concatenate([xp.ones((*rows.shape[:-1], 1), bool), rows[..., 1:] != rows[..., :-1]], -1)
    places = xp.arange(rows.shape[-1])
    length = places - running(xp, xp.maximum, xp.where(begins, places, 0), rows.ndim - 1)
    last = length.argmax(axis=-1)[..., None]
    found = xp.take_along_axis(rows, last, -1)
    last = xp.where(found == found, last, rows.shape[-1] - 1)
    return xp.moveaxis(xp.take_along_axis(order, last, -1), -1, dim)


KTHVALUE = _picker("kthvalue", _find_kth)
MEDIAN = _picker("median_dim", _find_median)
MODE = _picker("mode", _find_mode)


def _median_of_all(xp: ModuleType, input: Any, skip_nan: int) -> Any:
    flat = input.reshape(-1)
    return flat[_find_median(xp, flat, skip_nan, 0)].reshape(())


def _median_rule(input: Spec, skip_nan: int) -> Spec:
    refuse_complex("median", input)
    return input.like(shape=())


MEDIAN_OF_ALL = define(
    "median",
    rule=_median_rule,
    forward=_median_of_all,
    backward=(
        lambda g, nd, input, out, input_spec: even_shares(
            g, nd, input, out, input_spec, tuple(range(input_spec.ndim)), False
        ),
    ),
    attributes="skip_nan",
)


def _pick(operator: Operator, name: str, input: Tensor, k: int, dim: int, keepdim: bool) -> values_indices:
    dim = wrap_dim(dim, input.ndim, name)
    if not input.ndim:
        return values_indices((input.clone(), input.new_zeros((), dtype=int64)))
    if not input.shape[dim]:
        raise IndexError(f"{name}(): Expected reduction dim {dim} to have non-zero size, got shape {list(input.shape)}")
    return values_indices(apply(operator, (input,), (k, dim, bool(keepdim))))


def kthvalue(input: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> values_indices:
    """(the k-th smallest element, where it lies) along an axis, counted from 1.

    Raises: RuntimeError if there is none.
    """
    size = input.shape[wrap_dim(dim, input.ndim, "kthvalue")] if input.ndim else 1
    if not 1 <= k <= size:
        raise RuntimeError(
            f"kthvalue(): selected number k out of range for dimension {dim}: k = {k}, shape {list(input.shape)}"
        )
    return _pick(KTHVALUE, "kthvalue", input, k, dim, keepdim)


def median(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """The lower median of all elements, or (values, indices) along an axis. NaN where there is any NaN."""
    return _median("median", input, dim, keepdim, 0)


@heard
def nanmedian(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """The median of the elements that are numbers."""
    return _median("nanmedian", input, dim, keepdim, 1)


def _median(name: str, input: Tensor, dim: int | None, keepdim: bool, skip_nan: int) -> Any:
    if dim is not None:
        return _pick(MEDIAN, name, input, skip_nan, dim, keepdim)
    if not input.numel():
        return input.new_full((), float("nan")) if input.dtype.category >= FLOATING_CATEGORY else input.sum()
    return apply(MEDIAN_OF_ALL, (input,), (skip_nan,))


def mode(input: Tensor, dim: int = -1, keepdim: bool = False) -> values_indices:
    """(the most frequent element, the smallest if there are several; where it lies) along an axis."""
    return _pick(MODE, "mode", input, 0, dim, keepdim)


# --- quantiles --------------------------------------------------------------------------------------------------------

_INTERPOLATIONS = ("linear", "lower", "higher", "nearest", "midpoint")


@heard
def quantile(
    input: Tensor, q: Any, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Tensor:
    """The q-quantiles along an axis (of all elements without one); a vector q adds a first axis to the result.

    Raises: RuntimeError for q outside [0, 1], an unknown interpolation or an input without elements.
    """
    return _quantile("quantile", input, q, dim, keepdim, interpolation)


@heard
def nanquantile(
    input: Tensor, q: Any, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Tensor:
    """`quantile` of the elements that are numbers."""
    return _quantile("nanquantile", input, q, dim, keepdim, interpolation)


def _quantile(name: str, input: Tensor, q: Any, dim: int | None, keepdim: bool, interpolation: str) -> Tensor:
    if input.dtype.itemsize < 4 or not input.is_floating_point():
        raise RuntimeError(f"{name}() input tensor must be either float or double dtype, got {input.dtype}")
    if interpolation not in _INTERPOLATIONS:
        raise RuntimeError(
            f"{name}() interpolation must be one of {', '.join(_INTERPOLATIONS)}, but got {interpolation}"
        )
    if not input.numel():
        raise RuntimeError(f"{name}() input tensor must be non-empty, got shape {list(input.shape)}")
    wanted = q if isinstance(q, Tensor) else input.detach().new_tensor(q)
    if wanted.ndim > 1:
        raise RuntimeError(f"{name}() q must be a scalar or 1D tensor")
    known = wanted.detach() if wanted.is_cpu else None if isinstance(q, Tensor) else tensor(q)  # a GPU's: no waiting
    if known is not None and bool(((known < 0) | (known > 1)).any()):
        raise RuntimeError(f"{name}() q values must be in the range [0, 1]")
    axis = wrap_dim(dim, input.ndim, name) if dim is not None else None
    if axis is None or not input.ndim:
        rows = input.reshape(-1)
    else:  # with keepdim an axis of size 1 takes the place of the one that goes last
        rows = input.unsqueeze(-1).transpose(axis, -1) if keepdim else input.movedim(axis, -1)
    ordered = sort(rows, -1)[0]
    nan = rows.detach() != rows.detach()
    size = rows.shape[-1]
    count = (size - nan.sum(-1, True)) if name == "nanquantile" else nan.sum(-1, True) * 0 + size
    ranks = wanted.reshape(-1) * (count - 1).to(wanted.dtype).clamp(min=0)
    if name == "quantile":  # NaN is last in order, and the answer where there is any
        ranks = where(nan.any(-1, True), size - 1.0, ranks)
    below, above = ranks.detach().floor(), ranks.detach().ceil()
    if interpolation in ("lower", "higher", "nearest"):
        chosen = {"lower": below, "higher": above, "nearest": ranks.detach().round()}[interpolation]
        values = ordered.gather(-1, chosen.to(int64))
    else:
        weight = ranks - below if interpolation == "linear" else (ranks - below) * 0 + 0.5
        low, high = ordered.gather(-1, below.to(int64)), ordered.gather(-1, above.to(int64))
        values = low.lerp(high, weight)
    values = values.movedim(-1, 0)
    if keepdim and axis is None:
        values = values.reshape((-1,) + (1,) * input.ndim)
    return values[0] if not wanted.ndim else values
