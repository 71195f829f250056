"""Small questions and rearrangements that other families do not have: histogram, frexp, range, nonzero_static, ..."""

from typing import Any, NamedTuple

import numpy as np

from engine.calls.listening import heard
from engine.memory import backend
from engine.ops.creation.factories import arange
from engine.ops.creation.from_data import tensor
from engine.ops.index.masked import nonzero
from engine.ops.views.parts import narrow
from engine.rules import dtypes
from engine.rules.dims import wrap_dim
from engine.tensor import Tensor


class Histogram(NamedTuple):
    """What `histogram` returns."""

    hist: Tensor
    bin_edges: Tensor


class Frexp(NamedTuple):
    """What `frexp` returns."""

    mantissa: Tensor
    exponent: Tensor


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


@heard
def frexp(input: Tensor) -> Frexp:
    """(mantissa, exponent) with input = mantissa * 2 ** exponent and mantissas of [0.5, 1); int32 exponents. The
    mantissa has a derivative, 2 ** -exponent.

    Raises: RuntimeError for integers.
    """
    if not input.is_floating_point():
        raise RuntimeError(f"torch.frexp() only supports floating-point dtypes, got {input.dtype}")
    xp = backend.array_module(input.device)
    wide = input.detach()._array.astype(np.float64)
    exponents = xp.frexp(wide)[1].astype(np.int32)
    exponent = tensor(exponents, dtype=dtypes.int32, device=input.device)
    scale = tensor(xp.ldexp(1.0, -exponents), dtype=dtypes.float64, device=input.device)
    return Frexp((input.double() * scale).to(input.dtype), exponent)


@heard
def range(start: Any = 0, end: Any = None, step: Any = 1, **options: Any) -> Tensor:
    """`arange` with its end included, in the default dtype unless `dtype` says otherwise. PyTorch deprecates it."""
    if end is None:
        start, end = 0, start
    options.setdefault("dtype", dtypes.get_default_dtype())
    count = int((end - start) / step + 1e-9) + 1
    return arange(count, **options) * step + start


@heard
def scalar_tensor(s: Any, **options: Any) -> Tensor:
    """A 0-dim tensor in the default dtype unless `dtype` says otherwise."""
    options.setdefault("dtype", dtypes.get_default_dtype())
    return tensor(s, **options)


@heard
def nonzero_static(input: Tensor, *, size: int, fill_value: int = -1) -> Tensor:
    """The first `size` rows of `nonzero`, filled up with `fill_value`."""
    found = nonzero(input)
    result = found.new_full((size, found.shape[1]), fill_value)
    count = min(size, found.shape[0])
    result[:count] = found[:count]
    return result


@heard
def narrow_copy(input: Tensor, dim: int, start: int, length: int) -> Tensor:
    """`narrow` in new memory."""
    return narrow(input, wrap_dim(dim, input.ndim, "narrow_copy"), start, length).clone()


@heard
def is_nonzero(input: Tensor) -> bool:
    """Whether the only element is not 0. Raises: RuntimeError unless there is exactly one."""
    if input.numel() != 1:
        raise RuntimeError(
            "Boolean value of Tensor with no values is ambiguous"
            if not input.numel()
            else "Boolean value of Tensor with more than one value is ambiguous"
        )
    return bool(input.item() != 0)


@heard
def is_same_size(input: Tensor, other: Tensor) -> bool:
    """Whether the shapes are equal."""
    return input.shape == other.shape


@heard
def is_signed(input: Tensor) -> bool:
    """Whether the dtype has negative numbers."""
    return input.dtype not in (dtypes.uint8, dtypes.bool_)
