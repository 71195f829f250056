"""Padding layers: zeros, a constant, reflection, replication, around the circle."""

from collections.abc import Sequence
from typing import ClassVar

import engine.nn.functional as F
from engine.nn.module import Module
from engine.tensor import Tensor

Sizes = int | Sequence[int]


class _Pad(Module):
    """Pads the last `dims` axes by `padding`: one int, or (before, after) of the last axis, then the one before."""

    dims: ClassVar[int]
    mode: ClassVar[str]
    value = 0.0

    def __init__(self, padding: Sizes) -> None:
        super().__init__()
        self.padding = (padding,) * (2 * self.dims) if isinstance(padding, int) else tuple(padding)

    def forward(self, input: Tensor) -> Tensor:
        if self.mode == "circular" and input.dim() not in (self.dims + 1, self.dims + 2):
            raise ValueError(f"expected {self.dims + 1}D or {self.dims + 2}D input (got {input.dim()}D input)")
        return F.pad(input, self.padding, self.mode, self.value)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class _ConstantPad(_Pad):
    mode = "constant"

    def __init__(self, padding: Sizes, value: float) -> None:
        super().__init__(padding)
        self.value = value

    def extra_repr(self) -> str:
        return f"padding={self.padding}, value={self.value}"


class ConstantPad1d(_ConstantPad):
    """Pads the last axis by `value`."""

    dims = 1


class ConstantPad2d(_ConstantPad):
    """Pads the last two axes by `value`."""

    dims = 2


class ConstantPad3d(_ConstantPad):
    """Pads the last three axes by `value`."""

    dims = 3


class _ZeroPad(_Pad):
    mode = "constant"


class ZeroPad1d(_ZeroPad):
    """Pads the last axis by zeros."""

    dims = 1


class ZeroPad2d(_ZeroPad):
    """Pads the last two axes by zeros."""

    dims = 2


class ZeroPad3d(_ZeroPad):
    """Pads the last three axes by zeros."""

    dims = 3


class _ReflectionPad(_Pad):
    mode = "reflect"


class ReflectionPad1d(_ReflectionPad):
    """Pads the last axis by reflection about its border."""

    dims = 1


class ReflectionPad2d(_ReflectionPad):
    """Pads the last two axes by reflection about their borders."""

    dims = 2


class ReflectionPad3d(_ReflectionPad):
    """Pads the last three axes by reflection about their borders."""

    dims = 3


class _ReplicationPad(_Pad):
    mode = "replicate"


class ReplicationPad1d(_ReplicationPad):
    """Pads the last axis by repeating its border."""

    dims = 1


class ReplicationPad2d(_ReplicationPad):
    """Pads the last two axes by repeating their borders."""

    dims = 2


class ReplicationPad3d(_ReplicationPad):
    """Pads the last three axes by repeating their borders."""

    dims = 3


class _CircularPad(_Pad):
    mode = "circular"


class CircularPad1d(_CircularPad):
    """Pads the last axis around the circle."""

    dims = 1


class CircularPad2d(_CircularPad):
    """Pads the last two axes around the circle."""

    dims = 2


class CircularPad3d(_CircularPad):
    """Pads the last three axes around the circle."""

    dims = 3
