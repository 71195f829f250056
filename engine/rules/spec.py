"""Spec: the interned descriptor (shape, stride, dtype, device) that every tensor points at.

A training step repeats the same few hundred layouts, so each is one object: plans are memoised by Spec identity
(`engine.calls.dispatch`) and the layout questions of `engine.rules.layout` are answered once per Spec. The Spec is the
truth a user sees: the array behind a tensor agrees with it on every axis of size > 1, while NumPy is free to report
other strides for axes of size 0 and 1, where they address nothing.
"""

from collections.abc import Iterable
from functools import cached_property
from math import prod
from typing import SupportsIndex, overload

from engine.rules import iterator, layout
from engine.rules.device import CPU, device
from engine.rules.dtypes import dtype
from engine.rules.promotion import DIMENSIONED, ZERO_DIM

_INTERNED_AT_MOST = 65_536  # programs with ever-changing shapes must not grow without bound


class Size(tuple[int, ...]):
    """The shape of a tensor: a tuple that prints as PyTorch's and knows its number of elements."""

    __slots__ = ()

    def numel(self) -> int:
        """Number of elements of a tensor of this shape."""
        return prod(self)

    def __repr__(self) -> str:
        return f"engine.Size({list(self)})"

    def __add__(self, other: tuple[int, ...]) -> "Size":  # type: ignore[override]
        return Size(tuple(self) + tuple(other))

    @overload
    def __getitem__(self, key: SupportsIndex) -> int: ...
    @overload
    def __getitem__(self, key: slice) -> "Size": ...
    def __getitem__(self, key: SupportsIndex | slice) -> "int | Size":
        item = tuple.__getitem__(self, key)
        return Size(item) if isinstance(item, tuple) else item


class Spec:
    """Shape, stride (elements), dtype and device of a tensor. Make one with `spec_of`, never directly."""

    def __init__(self, shape: Size, stride: tuple[int, ...], dtype: dtype, device: device) -> None:
        self.shape = shape
        self.stride = stride
        self.dtype = dtype
        self.device = device
        self.ndim = len(shape)
        self.numel = prod(shape)
        self.contiguous = layout.is_contiguous(shape, stride)
        # What the fastest path of dispatch asks of equal operands: floats in host memory, with axes and elements, that
        # lie so that a result laid out alike is what the rule says and what NumPy gives.
        self.plain = (
            dtype.category == 2
            and device is CPU
            and self.ndim > 0
            and self.numel > 0
            and stride == iterator.plan(((shape, stride),)).stride
        )
        # Promotion treats 0-dim tensors and Python numbers apart (spec section 6.5).
        self.category = layout_category(self.ndim)

    number: type | None = None  # the Python type of a `Scalar` operand, None for a tensor

    @cached_property
    def dense(self) -> bool:
        """Non-overlapping and dense: the elements fill one block of memory without gaps."""
        return layout.is_non_overlapping_and_dense(self.shape, self.stride)

    @cached_property
    def steady(self) -> bool:
        """Dense without a stride of 0, which an axis of size 1 may have: a gradient that lies so obeys the contract."""
        return self.dense and 0 not in self.stride

    @cached_property
    def channels_last(self) -> bool:
        """Contiguous in the channels-last memory format (4-D only)."""
        return self.ndim == 4 and layout.is_contiguous(self.shape, self.stride, layout.channels_last)

    @cached_property
    def byte_strides(self) -> tuple[int, ...]:
        """Strides in bytes, as NumPy and CuPy count them."""
        size = self.dtype.itemsize
        return tuple(step * size for step in self.stride)

    @cached_property
    def allocation(self) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
        """How a dense Spec's memory is made: sizes from the slowest axis to the fastest, and the transposition from
        there to the shape (None if there is nothing to transpose).
        """
        if self.contiguous:
            return tuple(self.shape), None
        order = sorted(range(self.ndim), key=lambda axis: (-self.stride[axis], axis))
        return tuple(self.shape[axis] for axis in order), tuple(order.index(axis) for axis in range(self.ndim))

    @cached_property
    def operand(self) -> tuple[Size, tuple[int, ...]]:
        """(shape, stride): what `engine.rules.iterator` plans with."""
        return (self.shape, self.stride)

    def like(
        self, shape: Iterable[int] | None = None, stride: tuple[int, ...] | None = None, dtype: dtype | None = None
    ) -> "Spec":
        """This Spec with another shape (then row-major unless `stride` is given), stride or dtype."""
        size = self.shape if shape is None else tuple(shape)
        if stride is None:
            stride = self.stride if shape is None else layout.contiguous_strides(size)
        return spec_of(size, stride, dtype or self.dtype, self.device)

    def __repr__(self) -> str:
        return f"{self.dtype.name}{list(self.shape)} stride {self.stride} on {self.device}"


def layout_category(ndim: int) -> int:
    """Promotion category of a tensor operand (`engine.rules.promotion`): with dimensions, or 0-dim."""
    return DIMENSIONED if ndim else ZERO_DIM


_interned: dict[tuple[object, ...], Spec] = {}


def spec_of(shape: Iterable[int], stride: tuple[int, ...] | None, dtype: dtype, device: device = CPU) -> Spec:
    """The one Spec with these properties; `stride=None` means row-major."""
    shape = tuple(shape)
    if stride is None:
        stride = layout.contiguous_strides(shape)
    key = (shape, stride, dtype, device)
    spec = _interned.get(key)
    if spec is None:
        if len(_interned) >= _INTERNED_AT_MOST:
            _interned.clear()  # safe: identity of Specs is only ever a fast path
        spec = _interned[key] = Spec(Size(shape), stride, dtype, device)
    return spec
