"""Counting and searching, without gradients: unique, bincount, histc, histogram, searchsorted, bucketize."""

from typing import Any, NamedTuple

import numpy as np

from engine.calls.listening import heard
from engine.memory import backend
from engine.ops.creation.from_data import as_tensor, tensor
from engine.ops.index.operator import wrap_device_array
from engine.ops.shared.operands import in_single_precision, refuse_complex
from engine.rules.dims import wrap_dim
from engine.rules.dtypes import INTEGER_CATEGORY, int32, int64
from engine.tensor import Tensor


def _wrap(array: Any, like: Tensor) -> Tensor:
    return Tensor(array, backend.spec_of_array(array, like.device))


@heard
def unique(
    input: Tensor,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
    """The distinct elements (or slices along an axis) in ascending order; on demand where each input element went, and
    counts.
    """
    refuse_complex("unique", input._spec)
    xp = backend.array_module(input.device)
    axis = None if dim is None else wrap_dim(dim, input.ndim, "unique")
    array = input.detach()._array
    wide = array if input.is_cpu else in_single_precision(array)  # CuPy sorts no bfloat16
    values, inverse, counts = xp.unique(wide, return_inverse=True, return_counts=True, axis=axis)
    values = values.astype(array.dtype, copy=False)
    inverse = inverse.reshape(input.shape if axis is None else (input.shape[axis],))
    return _answer(input, values, inverse, counts, return_inverse, return_counts)


@heard
def unique_consecutive(
    input: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    """The elements (or slices along an axis) without those that repeat their predecessor."""
    xp = backend.array_module(input.device)
    array = input.detach()._array
    axis = None if dim is None else wrap_dim(dim, input.ndim, "unique_consecutive")
    rows = array.reshape(-1, 1) if axis is None else xp.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)
    starts = xp.ones(len(rows), bool)
    starts[1:] = (rows[1:] != rows[:-1]).any(axis=1)
    places = xp.flatnonzero(starts)
    inverse = xp.cumsum(starts) - 1
    counts = xp.diff(xp.concatenate([places, xp.full(1, len(rows))]))
    values = array.reshape(-1)[places] if axis is None else xp.take(array, places, axis=axis)
    inverse = inverse.reshape(input.shape) if axis is None else inverse
    return _answer(input, values, inverse, counts, return_inverse, return_counts)


def _answer(input: Tensor, values: Any, inverse: Any, counts: Any, return_inverse: bool, return_counts: bool) -> Any:
    parts = [_wrap(values, input)]
    if return_inverse:
        parts.append(wrap_device_array(inverse, input))
    if return_counts:
        parts.append(wrap_device_array(counts, input))
    return parts[0] if len(parts) == 1 else tuple(parts)


@heard
def bincount(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """How often each of 0, 1, 2 ... occurs in a vector, or the sums of the weights there.

    Raises: RuntimeError unless the input is a vector of non-negative integers and weights have its length.
    """
    integers = input.dtype.category <= INTEGER_CATEGORY
    known = input.is_cpu and input.numel() > 0  # a GPU's elements are not waited for twice: CuPy looks at them
    if input.ndim != 1 or not integers or (known and bool((input < 0).any())):
        raise RuntimeError(
            f"bincount only supports 1-d non-negative integral inputs, got {input.dtype} of shape {list(input.shape)}"
        )
    if minlength < 0:
        raise RuntimeError(f"minlength should be >= 0, got {minlength}")
    if weights is not None and weights.shape != input.shape:
        raise RuntimeError(
            f"bincount: weights should be 1-d and have the same length as input, got {list(weights.shape)}"
        )
    xp = backend.array_module(input.device)
    index = input._array.astype(np.int64)
    if weights is None:
        return wrap_device_array(xp.bincount(index, minlength=minlength), input)
    sums = xp.bincount(index, weights=weights.detach()._array, minlength=minlength)
    return _wrap(sums.astype("f4") if weights.dtype.name == "float32" else sums.astype("f8"), input)


@heard
def histc(input: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """Counts of the elements in equal bins over [min, max] (over their range if both are 0); others are ignored.

    Raises: RuntimeError for integers, bins < 1, min > max or a range that is not finite.
    """
    if not input.is_floating_point():
        raise RuntimeError(f'"histc" not implemented for {input.dtype}')
    if bins < 1:
        raise RuntimeError(f"bins must be > 0, but got {bins} for histc")
    array = in_single_precision(input.detach()._array.reshape(-1))
    low, high = float(min), float(max)
    if low == high and array.size:
        low, high = float(array.min()), float(array.max())
    if low == high:
        low, high = low - 1, high + 1
    if not (np.isfinite(low) and np.isfinite(high)):
        raise RuntimeError(f"range of [{low}, {high}] is not finite")
    if low > high:
        raise RuntimeError(f"max must be larger than min, got min={low}, max={high}")
    xp = backend.array_module(input.device)
    counts = xp.histogram(array, bins=bins, range=(low, high))[0]
    return _wrap(counts.astype(input.dtype.numpy), input)


@heard
def searchsorted(
    sorted_sequence: Tensor,
    input: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """Where `input` would have to be inserted into ascending rows (the last axis) so that they stay so.

    `right` (or side="right") goes behind equal elements. Raises: RuntimeError for other sides or leading shapes that
    differ.
    """
    if side is not None and side not in ("left", "right"):
        raise RuntimeError(f"torch.searchsorted(): side can only be 'left' or 'right' but got {side}")
    if side == "left" and right:
        raise RuntimeError(
            "torch.searchsorted(): side and right can't be set to opposites, got side of left while right was True"
        )
    xp = backend.array_module(sorted_sequence.device)
    rows = sorted_sequence.detach()
    if sorter is not None:
        rows = rows.gather(-1, sorter)
    given = input.detach() if isinstance(input, Tensor) else as_tensor(input, device=sorted_sequence.device)
    where = "right" if right or side == "right" else "left"
    if rows.is_floating_point() and rows.itemsize == 2:
        rows = rows.float()
    if given.is_floating_point() and given.itemsize == 2:
        given = given.float()
    if rows.ndim == 1:
        found = xp.searchsorted(rows._array, given._array, side=where)
    else:
        if rows.shape[:-1] != given.shape[:-1]:
            raise RuntimeError(
                "torch.searchsorted(): boundaries tensor should be 1 dimension or the first N-1 dimensions of "
                "boundaries "
                f"tensor and input value tensor must match, but we got boundaries tensor {list(rows.shape)} and input "
                "value "
                f"tensor {list(given.shape)}"
            )
        found = xp.empty(given.shape, np.int64)
        for index in np.ndindex(*rows.shape[:-1]):
            found[index] = xp.searchsorted(rows._array[index], given._array[index], side=where)
    result = wrap_device_array(xp.asarray(found), sorted_sequence)
    return result.to(int32 if out_int32 else int64)


@heard
def bucketize(input: Any, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    """Which bucket between ascending boundaries each element falls into; `right` as in `searchsorted`.

    Raises: RuntimeError unless the boundaries are a vector.
    """
    if boundaries.ndim != 1:
        raise RuntimeError(f"bucketize: boundaries tensor must be 1 dimension, but got dim({boundaries.ndim})")
    return searchsorted(boundaries, input, out_int32=out_int32, right=right)


class Histogram(NamedTuple):
    """What `histogram` returns."""

    hist: Tensor
    bin_edges: Tensor


@heard
def histogram(
    input: Tensor, bins: Any, *, range: Any = None, weight: Tensor | None = None, density: bool = False
) -> Histogram:
    """(counts or weights, edges) of `bins` bins of equal width, or of bins between given edges. Without gradients."""
    xp = backend.array_module(input.device)
    edges = bins.detach()._array if isinstance(bins, Tensor) else int(bins)
    limits = None if range is None else (float(range[0]), float(range[1]))
    values = input.detach()._array.reshape(-1)
    if limits is None and not isinstance(bins, Tensor) and values.size and values.min() == values.max():
        limits = (float(values.min()) - 0.5, float(values.max()) + 0.5)
    weights = None if weight is None else weight.detach()._array.reshape(-1)
    counts, found = xp.histogram(values, edges, limits, density, weights)
    return Histogram(
        tensor(counts, dtype=input.dtype, device=input.device), tensor(found, dtype=input.dtype, device=input.device)
    )
