"""Convolutions and their transposes in one, two and three dimensions."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import engine
import engine.nn.functional as F
from engine.nn import init
from engine.nn.module import Module
from engine.nn.parameter import Parameter
from engine.tensor import Tensor

Sizes = int | Sequence[int]
_PADDING_MODES = ("zeros", "reflect", "replicate", "circular")


def _sizes(value: Sizes, dims: int, name: str) -> tuple[int, ...]:
    """One entry a spatial dimension. Raises ValueError for another number of entries."""
    if isinstance(value, int):
        return (value,) * dims
    sizes = tuple(value)
    if len(sizes) == 1:
        return sizes * dims
    if len(sizes) != dims:
        raise ValueError(f"{name}: expected an int or {dims} ints, got {value}")
    return sizes


class _Convolution(Module):
    """What all six classes share: arguments, parameters, their initialisation, repr."""

    dims: ClassVar[int]
    transposed: ClassVar[bool] = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes,
        padding: Sizes | str,
        dilation: Sizes,
        output_padding: Sizes,
        groups: int,
        bias: bool,
        padding_mode: str,
        device: Any,
        dtype: Any,
    ) -> None:
        super().__init__()
        if groups <= 0:
            raise ValueError("groups must be a positive integer")
        if in_channels % groups != 0:
            raise ValueError("in_channels must be divisible by groups")
        if out_channels % groups != 0:
            raise ValueError("out_channels must be divisible by groups")
        if padding_mode not in _PADDING_MODES:
            raise ValueError(
                f"padding_mode must be one of {set(_PADDING_MODES)}, but got padding_mode='{padding_mode}'"
            )
        dims = self.dims
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = _sizes(kernel_size, dims, "kernel_size")
        self.stride = _sizes(stride, dims, "stride")
        self.dilation = _sizes(dilation, dims, "dilation")
        self.output_padding = _sizes(output_padding, dims, "output_padding")
        self.groups = groups
        self.padding_mode = padding_mode
        self.padding: str | tuple[int, ...]
        if isinstance(padding, str):
            if padding not in ("same", "valid"):
                raise ValueError(f"Invalid padding string {padding!r}, should be one of {{'valid', 'same'}}")
            if padding == "same" and any(step != 1 for step in self.stride):
                raise ValueError("padding='same' is not supported for strided convolutions")
            self.padding = padding
        else:
            self.padding = _sizes(padding, dims, "padding")
        channels = (in_channels, out_channels // groups) if self.transposed else (out_channels, in_channels // groups)
        self.weight = Parameter(engine.empty((*channels, *self.kernel_size), device=device, dtype=dtype))
        self.register_parameter(
            "bias", Parameter(engine.empty(out_channels, device=device, dtype=dtype)) if bias else None
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """U(-x, x) with x = 1 / sqrt(fan_in), weight and bias."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            fan_in, _ = init._calculate_fan_in_and_fan_out(self.weight)
            if fan_in:
                bound = 1 / math.sqrt(fan_in)
                init.uniform_(self.bias, -bound, bound)

    def _pads(self) -> list[int]:
        """`padding` as `F.pad` wants it: (before, after) from the last axis to the first."""
        pads: list[int] = []
        for at in reversed(range(self.dims)):
            if isinstance(self.padding, str):
                total = self.dilation[at] * (self.kernel_size[at] - 1) if self.padding == "same" else 0
                pads += [total // 2, total - total // 2]
            else:
                pads += [self.padding[at]] * 2
        return pads

    def extra_repr(self) -> str:
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        if self.padding != (0,) * self.dims:
            text += f", padding={self.padding}"
        if self.dilation != (1,) * self.dims:
            text += f", dilation={self.dilation}"
        if self.output_padding != (0,) * self.dims:
            text += f", output_padding={self.output_padding}"
        if self.groups != 1:
            text += f", groups={self.groups}"
        if self.bias is None:
            text += ", bias=False"
        if self.padding_mode != "zeros":
            text += f", padding_mode={self.padding_mode}"
        return text


_ConvNd = _Convolution  # the name by which code of others finds convolutions among modules


class _Conv(_Convolution):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes | str = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            dilation,
            0,
            groups,
            bias,
            padding_mode,
            device,
            dtype,
        )

    def _padded(self, input: Tensor) -> tuple[Tensor, Any]:
        """(input, padding left to the convolution): modes other than zeros are padded here."""
        if self.padding_mode == "zeros":
            return input, self.padding
        return F.pad(input, self._pads(), mode=self.padding_mode), 0


class Conv1d(_Conv):
    """Shapes: (N, in, L) or (in, L) -> (N, out, L'); weight (out, in / groups, K)."""

    dims = 1

    def forward(self, input: Tensor) -> Tensor:
        input, padding = self._padded(input)
        return F.conv1d(input, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)


class Conv2d(_Conv):
    """Shapes: (N, in, H, W) or (in, H, W) -> (N, out, H', W'); weight (out, in / groups, K, K)."""

    dims = 2

    def forward(self, input: Tensor) -> Tensor:
        input, padding = self._padded(input)
        return F.conv2d(input, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)


class Conv3d(_Conv):
    """Shapes: (N, in, D, H, W) or (in, D, H, W) -> (N, out, D', H', W'); weight (out, in / groups, K, K, K)."""

    dims = 3

    def forward(self, input: Tensor) -> Tensor:
        input, padding = self._padded(input)
        return F.conv3d(input, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)


class _ConvTranspose(_Convolution):
    transposed = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes = 0,
        output_padding: Sizes = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Sizes = 1,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        if padding_mode != "zeros":
            raise ValueError(f'Only "zeros" padding mode is supported for {type(self).__name__}')
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            dilation,
            output_padding,
            groups,
            bias,
            padding_mode,
            device,
            dtype,
        )

    def _output_padding(self, input: Tensor, output_size: Sequence[int] | None) -> tuple[int, ...]:
        """What has to be added so that the output gets `output_size`. Raises ValueError if nothing can."""
        if output_size is None:
            return self.output_padding
        dims = self.dims
        assert not isinstance(self.padding, str)
        wanted = tuple(output_size)
        if len(wanted) == input.dim():
            wanted = wanted[-dims:]
        if len(wanted) != dims:
            raise ValueError(
                f"{type(self).__name__}: for {input.dim()}D input, output_size must have {dims} or {input.dim()} "
                f"elements (got {len(output_size)})"
            )
        smallest = tuple(
            (input.shape[at - dims] - 1) * self.stride[at]
            - 2 * self.padding[at]
            + self.dilation[at] * (self.kernel_size[at] - 1)
            + 1
            for at in range(dims)
        )
        largest = tuple(smallest[at] + self.stride[at] - 1 for at in range(dims))
        if any(not low <= size <= high for low, size, high in zip(smallest, wanted, largest, strict=True)):
            raise ValueError(
                f"requested an output size of {wanted}, but valid sizes range from {smallest} to {largest} "
                f"(for an input of {tuple(input.shape[-dims:])})"
            )
        return tuple(size - low for size, low in zip(wanted, smallest, strict=True))


class ConvTranspose1d(_ConvTranspose):
    """Shapes: (N, in, L) or (in, L) -> (N, out, L'); weight (in, out / groups, K)."""

    dims = 1

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        extra, padding = self._output_padding(input, output_size), self.padding
        assert not isinstance(padding, str)
        return F.conv_transpose1d(
            input, self.weight, self.bias, self.stride, padding, extra, self.groups, self.dilation
        )


class ConvTranspose2d(_ConvTranspose):
    """Shapes: (N, in, H, W) or (in, H, W) -> (N, out, H', W'); weight (in, out / groups, K, K)."""

    dims = 2

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        extra, padding = self._output_padding(input, output_size), self.padding
        assert not isinstance(padding, str)
        return F.conv_transpose2d(
            input, self.weight, self.bias, self.stride, padding, extra, self.groups, self.dilation
        )


class ConvTranspose3d(_ConvTranspose):
    """Shapes: (N, in, D, H, W) or (in, D, H, W) -> (N, out, D', H', W'); weight (in, out / groups, K, K, K)."""

    dims = 3

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        extra, padding = self._output_padding(input, output_size), self.padding
        assert not isinstance(padding, str)
        return F.conv_transpose3d(
            input, self.weight, self.bias, self.stride, padding, extra, self.groups, self.dilation
        )
