"""Methods that write into the tensor they are called on: `x.add_(y)`."""

import math
from collections.abc import Callable
from typing import Any

from engine import ops
from engine.autograd.modes import no_grad
from engine.calls.namespaces import OPERATORS
from engine.ops.creation import factories
from engine.ops.index import along_axis, masked
from engine.ops.index import operator as index
from engine.ops.pointwise import selection
from engine.ops.views import operator as views
from engine.ops.views.as_strided import as_strided
from engine.ops.views.history import become_view
from engine.ops.views.operator import transpose
from engine.ops.writing import inplace
from engine.rules import promotion
from engine.rules.promotion import can_cast
from engine.tensor import Tensor


def twin(name: str) -> Callable[..., Tensor]:
    """The method `x.add_(y)` of a row of the pointwise table."""
    return inplace.functional_inplace(name)


def written_back(name: str) -> Callable[..., Tensor]:
    function = getattr(ops, name)

    def method(self: Tensor, *arguments: Any, **options: Any) -> Tensor:
        # A function that keeps its input for backward must not keep the memory that is about to be overwritten.
        source = self.clone() if self.requires_grad else self
        result = function(source, *arguments, **options)
        exact = name == "float_power"  # PyTorch's takes doubles alone
        if not promotion.can_cast(result.dtype, self.dtype) or (exact and result.dtype is not self.dtype):
            raise RuntimeError(
                f"{name}_: result type {result.dtype} can't be cast to the desired output type {self.dtype}; "
                f"{name}() returns a new tensor"
            )
        return inplace.copy_(self, result)

    method.__name__ = method.__qualname__ = f"{name}_"
    method.__doc__ = f"In-place {name}."
    return method


def round_(self: Tensor, *, decimals: int = 0) -> Tensor:
    """In-place round."""
    if decimals or not (self.is_floating_point() or self.is_complex()):
        return inplace.become(self, ops.round(self, decimals=decimals), "round_")
    return inplace.inplace(OPERATORS["round"], self, ())


def clamp_(self: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """In-place clamp."""
    return inplace.inplace(selection.CLAMP, self, selection.clamp_bounds(self, min, max))


def masked_fill_(self: Tensor, mask: Tensor, value: Any) -> Tensor:
    """In-place masked_fill."""
    return inplace.become(self, masked.masked_fill(self, mask, value), "masked_fill_")


def index_add_(self: Tensor, dim: int, index_: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    """Adds the rows of `source` at `index_` along an axis, repeated indices included.

    Raises: RuntimeError for shapes or dtypes that do not fit and an index out of range.
    """
    moved, places, values = along_axis.rows_at("index_add_", self, dim, index_, source)
    index.index_put_(moved, (0,), (places,), values if alpha == 1 else values * alpha, accumulate=True)
    return self


def index_copy_(self: Tensor, dim: int, index_: Tensor, source: Tensor) -> Tensor:
    """Writes the rows of `source` at `index_` along an axis.

    Raises: RuntimeError or IndexError for shapes, dtypes or an index that do not fit.
    """
    if source.numel() == 1 and source.ndim != self.ndim and 0 in (source.ndim, self.ndim):
        source = source.reshape((1,) * self.ndim)
    moved, places, values = along_axis.rows_at("index_copy_", self, dim, index_, source, IndexError)
    index.index_put_(moved, (0,), (places,), values)
    return self


def index_put_(self: Tensor, indices: tuple[Tensor, ...], values: Tensor, accumulate: bool = False) -> Tensor:
    """Writes (or adds) `values` at index tensors, one an axis."""
    index.put_at(self, tuple(indices), values, accumulate)
    return self


def scatter_(self: Tensor, dim: int, index: Tensor, src: Any = None, **options: Any) -> Tensor:
    """In-place scatter."""
    return inplace.become(self, along_axis.scatter(self, dim, index, src, **options), "scatter_")


def scatter_add_(self: Tensor, dim: int, index_: Tensor, src: Tensor) -> Tensor:
    """In-place scatter_add."""
    return inplace.become(self, along_axis.scatter_add(self, dim, index_, src), "scatter_add_")


def heaviside_(self: Tensor, values: Tensor) -> Tensor:
    """In-place heaviside."""
    return inplace.become(self, ops.heaviside(self, values), "heaviside_")


def fill_diagonal_(self: Tensor, fill_value: Any, wrap: bool = False) -> Tensor:
    """Writes a number on the main diagonal; `wrap` goes on after every width + 1 rows of a tall matrix."""
    if self.ndim < 2:
        raise RuntimeError("dimensions must larger than 1")
    with no_grad():
        places = range(0, min(self.numel(), self.numel() if wrap else self.shape[1] ** 2), self.shape[1] + 1)
    if self.ndim == 2:
        rows = [place // self.shape[1] for place in places if place // self.shape[1] < self.shape[0]]
        self[rows, [place % self.shape[1] for place in places][: len(rows)]] = fill_value
        return self
    if len(set(self.shape)) > 1:
        raise RuntimeError("all dimensions of input must be of equal length")
    each = list(range(self.shape[0]))
    self[(each,) * self.ndim] = fill_value
    return self


def subtract_(self: Tensor, other: Any, *, alpha: float = 1) -> Tensor:
    """In-place sub."""
    return self.sub_(other if alpha == 1 else other * alpha)


def log_normal_(self: Tensor, mean: float = 1, std: float = 2, *, generator: Any = None) -> Tensor:
    """Fills with exp of draws from N(mean, std²). Raises: RuntimeError for a std that is not above 0."""
    if not std > 0:
        raise RuntimeError(f"log_normal_ expects std > 0.0, but found std={std}")
    return self.normal_(mean, std, generator=generator).exp_()


def geometric_(self: Tensor, p: float, *, generator: Any = None) -> Tensor:
    """Fills with numbers of trials until one succeeds, each with probability p."""
    if not 0 < p < 1:
        raise RuntimeError(f"geometric_ expects p to be in (0, 1), but got p={p}")
    uniform = factories.empty(self.shape, device=self.device).uniform_(0, 1, generator=generator)
    return self.copy_(((1 - uniform).log() / math.log1p(-p)).ceil().clamp(min=1))


_divide = twin("div")


def div_(self: Tensor, other: Any, *, rounding_mode: str | None = None) -> Tensor:
    """In-place div."""
    if rounding_mode is None:
        return _divide(self, other)
    # the quotient must not keep the memory that is about to be overwritten
    source = self.clone() if self.requires_grad else self
    quotient = source.div(other, rounding_mode=rounding_mode)
    if not can_cast(quotient.dtype, self.dtype):
        raise RuntimeError(
            f"div_: result type {quotient.dtype} can't be cast to the desired output type {self.dtype}; div() returns "
            "a new tensor"
        )
    return self.copy_(quotient)


def squeeze_(self: Tensor, dim: Any = None) -> Tensor:
    """This very tensor without axes of size 1."""
    return become_view(self, views.squeeze, dim)


def unsqueeze_(self: Tensor, dim: int) -> Tensor:
    """This very tensor with one more axis."""
    return become_view(self, views.unsqueeze, dim)


def transpose_(self: Tensor, dim0: int, dim1: int) -> Tensor:
    """This very tensor with two axes exchanged."""
    return become_view(self, views.transpose, dim0, dim1)


def t_(self: Tensor) -> Tensor:
    """This very matrix transposed."""
    return become_view(self, views.t)


def as_strided_(self: Tensor, size: Any, stride: Any, storage_offset: int | None = None) -> Tensor:
    """This very tensor with other sizes, strides and offset into its storage."""
    return become_view(self, as_strided, size, stride, storage_offset)


def swapaxes_(self: Tensor, axis0: int, axis1: int) -> Tensor:
    """This very tensor with two axes exchanged."""
    return become_view(self, transpose, axis0, axis1)
