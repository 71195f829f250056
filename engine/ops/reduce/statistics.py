"""Reductions composed from those of `engine.ops.reduce.operator`: nansum, nanmean, count_nonzero, aminmax, logsumexp,
cov, corrcoef, renorm.
"""

from typing import Any, NamedTuple

from engine.calls.listening import heard
from engine.ops.pointwise.complex_numbers import adjoint
from engine.ops.pointwise.complex_numbers import complex as make_complex
from engine.ops.pointwise.rows import FUNCTIONS
from engine.ops.pointwise.selection import where
from engine.ops.reduce.extrema import amax, amin
from engine.ops.reduce.operator import Dims, sum
from engine.ops.shared.operands import refuse_complex, require_floating
from engine.ops.writing.out import deliver
from engine.rules import iterator
from engine.rules.dims import wrap_dim, wrap_dims
from engine.rules.dtypes import FLOATING_CATEGORY, INTEGER_CATEGORY, get_default_dtype, int64
from engine.rules.promotion import promote_types
from engine.tensor import Tensor


def _numbers(input: Tensor) -> Tensor:
    return ~FUNCTIONS["isnan"](input.detach())


@heard
def nansum(input: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """Sum of the elements that are numbers."""
    refuse_complex("nansum", input._spec)
    if input.dtype.category < FLOATING_CATEGORY:
        return sum(input, dim, keepdim, dtype=dtype)
    return sum(where(_numbers(input), input, 0), dim, keepdim, dtype=dtype)


@heard
def nanmean(input: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """Mean of the elements that are numbers."""
    require_floating("nanmean", input._spec)
    return nansum(input, dim, keepdim, dtype=dtype) / _numbers(input).sum(dim, keepdim)


@heard
def count_nonzero(input: Tensor, dim: Dims = None) -> Tensor:
    """How many elements are not 0."""
    return sum((input.detach() != 0), dim, dtype=int64)


class min_max(NamedTuple):
    """What `aminmax` returns."""

    min: Tensor
    max: Tensor


@heard
def aminmax(input: Tensor, *, dim: int | None = None, keepdim: bool = False) -> min_max:
    """(smallest, largest), of all elements or along an axis. Raises RuntimeError where there is none."""
    if dim is None and not input.numel():
        raise RuntimeError(
            "aminmax(): cannot compute aminmax over an empty dimension as the operation has no identity: got shape "
            f"{list(input.shape)}"
        )
    return min_max(amin(input, () if dim is None else dim, keepdim), amax(input, () if dim is None else dim, keepdim))


@heard
def cov(
    input: Tensor, *, correction: int = 1, fweights: Tensor | None = None, aweights: Tensor | None = None
) -> Tensor:
    """The covariance matrix of variables (rows) over observations (columns).

    `fweights` (integers) are how often an observation occurs, `aweights` (floating point numbers) how much it counts.
    Raises: RuntimeError for more than 2 axes, and weights of other shapes or dtypes or below 0 (on a GPU, where looking
    would wait for it, these are not refused).
    """
    if input.ndim > 2:
        raise RuntimeError(f"cov(): expected input to have two or fewer dimensions but got an input with {input.ndim}")
    rows = input.reshape(1, -1) if input.ndim < 2 else input
    if fweights is not None:
        _check_weights("fweights", fweights, rows.shape[1], "integral")
    if aweights is not None:
        _check_weights("aweights", aweights, rows.shape[1], "floating point")
        rows = rows.to(promote_types(rows.dtype, aweights.dtype))
    if rows.dtype.category < FLOATING_CATEGORY:
        rows = rows.to(get_default_dtype())
    weights = None
    if fweights is not None:
        weights = fweights.to(rows.dtype)
    if aweights is not None:
        weights = aweights.to(rows.dtype) if weights is None else weights * aweights.to(rows.dtype)
    if weights is None:
        total: Any = rows.shape[1]
        centered = rows - rows.mean(1, True)
        products = centered @ adjoint(centered)
        divisor: Any = max(total - correction, 0)
    else:
        total = weights.sum()
        centered = rows - (rows * weights).sum(1, True) / total
        products = (centered * weights) @ adjoint(centered)
        spread = total if aweights is None else (weights * aweights.to(rows.dtype)).sum() / total * correction
        divisor = total - correction if aweights is None else total - spread
        divisor = (divisor.real if divisor.is_complex() else divisor).clamp(min=0)
    return (products / divisor).squeeze()


def _check_weights(name: str, weights: Tensor, observations: int, kind: str) -> None:
    if weights.ndim > 1:
        raise RuntimeError(
            f"cov(): expected {name} to have one or fewer dimensions but got {name} with {weights.ndim} dimensions"
        )
    category = INTEGER_CATEGORY if kind == "integral" else FLOATING_CATEGORY
    if weights.dtype.category != category:
        raise RuntimeError(f"cov(): expected {name} to have {kind} dtype but got {name} with {weights.dtype} dtype")
    if weights.numel() != observations:
        raise RuntimeError(
            f"cov(): expected {name} to have the same numel as there are observations in the input but got "
            f"{weights.numel()} != {observations}"
        )
    if weights.is_cpu and weights.numel() and bool((weights.detach() < 0).any()):
        raise RuntimeError(f"cov(): {name} cannot be negative")


@heard
def corrcoef(input: Tensor) -> Tensor:
    """Pearson's correlation coefficients of variables (rows) over observations (columns)."""
    covariance = cov(input)
    if not covariance.ndim:
        return covariance / covariance
    deviation = covariance.diagonal().sqrt()
    result = covariance / deviation.unsqueeze(1) / deviation.unsqueeze(0)
    if result.is_complex():
        return make_complex(result.real.clamp(-1, 1), result.imag.clamp(-1, 1))
    return result.clamp(-1, 1)


@heard
def renorm(input: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:
    """`input` with each slice along `dim` scaled down to the p-norm `maxnorm` where it exceeds it."""
    if input.ndim < 2:
        raise RuntimeError(f"renorm: input needs at least 2 dimensions, got {input.ndim} dimensions")
    dim = wrap_dim(dim, input.ndim, "renorm")
    axes = tuple(axis for axis in range(input.ndim) if axis != dim)
    lengths = input.norm(p, axes, keepdim=True)
    return input * where(lengths > maxnorm, maxnorm / (lengths + 1e-7), 1.0)


@heard
def logsumexp(input: Tensor, dim: Dims, keepdim: bool = False, *, out: Tensor | None = None) -> Tensor:
    """log(sum(exp(input))) over axes, without overflow."""
    if out is not None:
        return deliver(out, logsumexp, input, dim, keepdim, same_dtype=False)
    dims = wrap_dims(dim, input.ndim, "logsumexp")
    if input.dtype.category < FLOATING_CATEGORY:
        input = input.to(get_default_dtype())
    if not input.numel():
        return sum(input.exp(), dims, keepdim).log()
    top = amax(input.detach().real if input.is_complex() else input.detach(), dims, True)
    top = top.where(top.abs() != float("inf"), 0)
    result = sum((input - top).exp(), dims, True).log() + top
    return result if keepdim or not dims else result.reshape(iterator.reduction_shape(input.shape, dims, False))
