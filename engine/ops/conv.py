"""Convolution in one to three dimensions and its transpose.

Three operators, each the others' derivative: `conv` (input, weight -> output), `conv_transposed` (its adjoint in the input)
and `conv_weight_gradient` (its adjoint in the weight). So a convolution can be differentiated any number of times.

Layout, as in PyTorch (determine_backend_memory_format): the result, and the gradient of the input, are channels-last if the
input's or the weight's strides look so, else row-major. PyTorch has no channels-last kernel for float64 or (on one thread) a
single sample in three dimensions and falls back to row-major there; here the rule has no exceptions. The weight's gradient
comes in the strides that the layout contract asks for.

Source: torch.nn.functional.conv2d, conv_transpose2d; aten/src/ATen/native/Convolution.cpp.
"""

from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np

from engine import layout
from engine.dispatch import apply, define
from engine.layout import MemoryFormat
from engine.ops import conv_arrays, conv_cpu
from engine.ops.common import optional
from engine.ops.windows import formatted, output_size, suggested_format
from engine.spec import Spec
from engine.tensor import Tensor

Axes = tuple[int, ...]

_HALF = frozenset({"float16", "bfloat16"})


# --- checks -----------------------------------------------------------------------------------------------------------


def _check(name: str, input: Spec, weight: Spec, bias: Spec | None, window: tuple[Axes, Axes, Axes], groups: int) -> None:
    """What convolution and its transpose have in common. `window`: stride, padding, dilation."""
    stride, padding, dilation = window
    for spec, role in ((weight, "weight"), (bias, "bias")):
        if spec is not None and spec.dtype is not input.dtype:
            raise RuntimeError(
                f"{name}: Input type ({input.dtype}) and {role} type ({spec.dtype}) should be the same; convert one with .to()"
            )
    if input.dtype.is_complex:
        raise RuntimeError(f"{name}: not supported for {input.dtype}; convolve real and imaginary parts")
    if input.dtype.name == "bool":
        raise RuntimeError(f"{name}: not supported for bool tensors; convert them with .float()")
    if any(size < 0 for size in padding):
        raise RuntimeError(f"{name}: negative padding is not supported, got {list(padding)}")
    if any(size <= 0 for size in stride):
        raise RuntimeError(f"{name}: non-positive stride is not supported, got {list(stride)}")
    if any(size <= 0 for size in dilation):
        raise RuntimeError(f"{name}: dilation should be greater than zero, got {list(dilation)}")
    if groups <= 0:
        raise RuntimeError(f"{name}: non-positive groups is not supported, got {groups}")
    if weight.shape[0] < groups or weight.shape[0] % groups:
        raise RuntimeError(
            f"{name}: Given groups={groups}, expected weight to be divisible by {groups} at dimension 0, but got weight of size "
            f"{list(weight.shape)} instead"
        )


def _check_bias(name: str, weight: Spec, bias: Spec | None, channels: int) -> None:
    if bias is not None and bias.shape != (channels,):
        raise RuntimeError(
            f"{name}: Given weight of size {list(weight.shape)}, expected bias to be 1-dimensional with {channels} elements, "
            f"but got bias of size {list(bias.shape)} instead"
        )


def _conv_rule(
    input: Spec,
    weight: Spec,
    bias: Spec | None,
    stride: Axes,
    padding: Axes,
    dilation: Axes,
    groups: int,
    memory_format: MemoryFormat,
) -> Spec:
    dims = len(stride)
    name = f"conv{dims}d"
    _check(name, input, weight, bias, (stride, padding, dilation), groups)
    if input.shape[1] != weight.shape[1] * groups:
        raise RuntimeError(
            f"{name}: Given groups={groups}, weight of size {list(weight.shape)}, expected input{list(input.shape)} to have "
            f"{weight.shape[1] * groups} channels, but got {input.shape[1]} channels instead"
        )
    _check_bias(name, weight, bias, weight.shape[0])
    kernel = weight.shape[2:]
    if 0 in kernel:
        raise RuntimeError(f"{name}: kernel size should be greater than zero, got weight of size {list(weight.shape)}")
    spread = tuple(by * (size - 1) + 1 for by, size in zip(dilation, kernel, strict=True))
    extent = tuple(size + 2 * before for size, before in zip(input.shape[2:], padding, strict=True))
    if any(have < need for have, need in zip(extent, spread, strict=True)):
        raise RuntimeError(
            f"{name}: Calculated padded input size per channel: ({_by(extent)}). Kernel size: ({_by(spread)}). "
            "Kernel size can't be greater than actual input size"
        )
    out = tuple(map(output_size, input.shape[2:], kernel, stride, padding, dilation))
    return formatted(input, (input.shape[0], weight.shape[0], *out), memory_format)


def _by(extent: Axes) -> str:
    return " x ".join(map(str, extent))


def _transposed_rule(
    input: Spec,
    weight: Spec,
    bias: Spec | None,
    size: Axes,
    stride: Axes,
    padding: Axes,
    dilation: Axes,
    groups: int,
    memory_format: MemoryFormat,
) -> Spec:
    name = f"conv_transpose{len(stride)}d"
    _check(name, input, weight, bias, (stride, padding, dilation), groups)
    if input.shape[1] != weight.shape[0]:
        raise RuntimeError(
            f"{name}: Given transposed=1, weight of size {list(weight.shape)}, expected input{list(input.shape)} to have "
            f"{weight.shape[0]} channels, but got {input.shape[1]} channels instead"
        )
    _check_bias(name, weight, bias, weight.shape[1] * groups)
    if any(extent <= 0 for extent in size):
        raise RuntimeError(
            f"{name}: Given input size per channel: ({_by(input.shape[2:])}). Calculated output size per channel: "
            f"({_by(size)}). Output size is too small"
        )
    return formatted(input, (input.shape[0], weight.shape[1] * groups, *size), memory_format)


# --- kernels ----------------------------------------------------------------------------------------------------------


def _widened(xp: ModuleType, *arrays: Any) -> tuple[Any, ...]:
    """Half precision operands as float32: sums are taken there, as PyTorch does."""
    if arrays[0].dtype.name in _HALF:
        return tuple(None if array is None else array.astype(xp.float32) for array in arrays)
    return arrays


def _conv(
    xp: ModuleType,
    input: Any,
    weight: Any,
    bias: Any,
    stride: Axes,
    padding: Axes,
    dilation: Axes,
    groups: int,
    memory_format: MemoryFormat,
) -> Any:
    out = tuple(map(output_size, input.shape[2:], weight.shape[2:], stride, padding, dilation))
    operands = _widened(xp, input, weight, bias)
    return conv_arrays.convolve(xp, *operands, stride, padding, dilation, groups, out, memory_format).astype(
        input.dtype, copy=False
    )


def _conv_transposed(
    xp: ModuleType,
    input: Any,
    weight: Any,
    bias: Any,
    size: Axes,
    stride: Axes,
    padding: Axes,
    dilation: Axes,
    groups: int,
    memory_format: MemoryFormat,
) -> Any:
    operands = _widened(xp, input, weight, bias)
    return conv_arrays.convolve_transposed(
        xp, *operands, stride, padding, dilation, groups, size, memory_format
    ).astype(input.dtype, copy=False)


def _weight_gradient(
    xp: ModuleType,
    gradient: Any,
    input: Any,
    stride: Axes,
    padding: Axes,
    dilation: Axes,
    groups: int,
    size: Axes,
    weight_stride: Axes,
) -> Any:
    operands = _widened(xp, gradient, input)
    result = conv_arrays.weight_gradient(xp, *operands, stride, padding, dilation, groups, size)
    if weight_stride == layout.contiguous_strides(size):
        result = xp.ascontiguousarray(result)
    return result.astype(input.dtype, copy=False)


# --- operators --------------------------------------------------------------------------------------------------------


@lru_cache(4096)
def _weight_stride(shape: Axes, stride: Axes) -> Axes:
    return layout.contract_strides(shape, stride)


def _conv_backward(
    g: Any,
    nd: Any,
    needs: Any,
    input: Any,
    weight: Any,
    input_spec: Spec,
    weight_spec: Spec,
    stride: Axes,
    padding: Axes,
    dilation: Axes,
    groups: int,
    memory_format: MemoryFormat,
) -> tuple[Any, ...]:
    window = (stride, padding, dilation, groups)
    to_input = to_weight = to_bias = None
    if needs[0] and needs[1] and g.ndim == 4 and not nd.records and nd.xp is np:
        g = conv_cpu.in_one_layout(g, input, weight_spec.shape[2:], stride, padding)
    if needs[0]:
        to_input = nd.conv_transposed(g, weight, None, tuple(input_spec.shape[2:]), *window, memory_format)
    if needs[1]:
        size = tuple(weight_spec.shape)
        to_weight = nd.conv_weight_gradient(g, input, *window, size, _weight_stride(size, weight_spec.stride))
    if len(needs) > 2 and needs[2]:
        to_bias = _channel_sums(nd, g)
    return to_input, to_weight, to_bias


def _transposed_backward(
    g: Any,
    nd: Any,
    needs: Any,
    input: Any,
    weight: Any,
    input_spec: Spec,
    weight_spec: Spec,
    stride: Axes,
    padding: Axes,
    dilation: Axes,
    groups: int,
    memory_format: MemoryFormat,
) -> tuple[Any, ...]:
    window = (stride, padding, dilation, groups)
    to_input = to_weight = to_bias = None
    if needs[0]:
        to_input = _first(nd.conv(g, weight, None, *window, memory_format), input_spec)
    if needs[1]:
        size = tuple(weight_spec.shape)
        to_weight = nd.conv_weight_gradient(input, g, *window, size, _weight_stride(size, weight_spec.stride))
    if len(needs) > 2 and needs[2]:
        to_bias = _channel_sums(nd, g)
    return to_input, to_weight, to_bias


def _weight_gradient_backward(
    g: Any,
    nd: Any,
    needs: Any,
    gradient: Any,
    input: Any,
    gradient_spec: Spec,
    input_spec: Spec,
    stride: Axes,
    padding: Axes,
    dilation: Axes,
    groups: int,
) -> tuple[Any, ...]:
    window = (stride, padding, dilation, groups)
    memory_format = suggested_format(input_spec)
    to_gradient = _first(nd.conv(input, g, None, *window, memory_format), gradient_spec) if needs[0] else None
    to_input = nd.conv_transposed(gradient, g, None, tuple(input_spec.shape[2:]), *window, memory_format) if needs[1] else None
    return to_gradient, to_input


def _first(result: Any, spec: Spec) -> Any:
    """The windows that the operand of `spec` has; output_padding may have made room for further ones."""
    if tuple(result.shape) == tuple(spec.shape):
        return result
    return result[tuple(slice(0, size) for size in spec.shape)]


def _channel_sums(nd: Any, g: Any) -> Any:
    axes = (0, *range(2, g.ndim))
    if nd.records:
        return g.sum(axes)
    return channel_sums(nd.xp, g)


def channel_sums(xp: ModuleType, array: Any) -> Any:
    """Sums (C,) of an array (N, C, d...) over all but the channels."""
    rows = conv_arrays.channels_last(array)
    if rows.flags.c_contiguous and array.dtype.kind == "f":
        # A product with ones: BLAS sums rows several times faster than add.reduce along a short axis.
        rows = rows.reshape(-1, rows.shape[-1])
        return xp.ones(len(rows), array.dtype) @ rows
    return array.sum(axis=(0, *range(2, array.ndim)))


CONV = define(
    "conv",
    rule=_conv_rule,
    forward=_conv,
    backward=_conv_backward,
    inputs="input weight bias",
    attributes="stride padding dilation groups memory_format",
)
CONV_TRANSPOSED = define(
    "conv_transposed",
    rule=_transposed_rule,
    forward=_conv_transposed,
    backward=_transposed_backward,
    inputs="input weight bias",
    attributes="size stride padding dilation groups memory_format",
)
CONV_WEIGHT_GRADIENT = define(
    "conv_weight_gradient",
    rule=lambda gradient, input, stride, padding, dilation, groups, size, weight_stride: input.like(
        shape=size, stride=weight_stride
    ),
    forward=_weight_gradient,
    backward=_weight_gradient_backward,
    inputs="gradient input",
    attributes="stride padding dilation groups size weight_stride",
)
CONV.node_name = CONV_TRANSPOSED.node_name = "ConvolutionBackward0"


# --- CPU --------------------------------------------------------------------------------------------------------------


def _fast(array: Any, dims: int) -> bool:
    """Whether `conv_cpu` serves: one or two axes of float32 or float64, with elements."""
    return dims <= 2 and array.dtype.char in "fd" and array.size > 0


def _flat(array: Any) -> Any:
    """(N, C, L) as (N, C, 1, L); four axes as they are."""
    return array if array.ndim == 4 else array[:, :, None]


def _pairs(stride: Axes, padding: Axes, dilation: Axes) -> tuple[Axes, Axes, Axes]:
    return (stride, padding, dilation) if len(stride) == 2 else ((1, *stride), (0, *padding), (1, *dilation))


@CONV.kernel("cpu")
def _conv_cpu(
    xp: ModuleType,
    input: Any,
    weight: Any,
    bias: Any,
    stride: Axes,
    padding: Axes,
    dilation: Axes,
    groups: int,
    memory_format: MemoryFormat,
) -> Any:
    dims = len(stride)
    if not (_fast(input, dims) and weight.size):
        return _conv(xp, input, weight, bias, stride, padding, dilation, groups, memory_format)
    window = _pairs(stride, padding, dilation)
    image, kernel = _flat(input), _flat(weight)
    out = tuple(map(output_size, image.shape[2:], kernel.shape[2:], *window))
    result = conv_cpu.forward(image, kernel, bias, *window, groups, out, memory_format)
    return result if dims == 2 else result[:, :, 0]


@CONV_TRANSPOSED.kernel("cpu")
def _conv_transposed_cpu(
    xp: ModuleType,
    input: Any,
    weight: Any,
    bias: Any,
    size: Axes,
    stride: Axes,
    padding: Axes,
    dilation: Axes,
    groups: int,
    memory_format: MemoryFormat,
) -> Any:
    dims = len(stride)
    if not (_fast(input, dims) and weight.size):
        return _conv_transposed(xp, input, weight, bias, size, stride, padding, dilation, groups, memory_format)
    window = _pairs(stride, padding, dilation)
    extent = size if dims == 2 else (1, *size)
    result = conv_cpu.input_gradient(_flat(input), _flat(weight), *window, groups, extent, memory_format)
    if bias is not None:
        result += bias[:, None, None]
    return result if dims == 2 else result[:, :, 0]


@CONV_WEIGHT_GRADIENT.kernel("cpu")
def _weight_gradient_cpu(
    xp: ModuleType,
    gradient: Any,
    input: Any,
    stride: Axes,
    padding: Axes,
    dilation: Axes,
    groups: int,
    size: Axes,
    weight_stride: Axes,
) -> Any:
    dims = len(stride)
    if not (_fast(input, dims) and gradient.size):
        return _weight_gradient(xp, gradient, input, stride, padding, dilation, groups, size, weight_stride)
    window = _pairs(stride, padding, dilation)
    shape = size if dims == 2 else (*size[:2], 1, size[2])
    result = conv_cpu.weight_gradient(_flat(gradient), _flat(input), *window, groups, shape)
    result = result if dims == 2 else result[:, :, 0]
    return xp.ascontiguousarray(result) if weight_stride == layout.contiguous_strides(size) else result


# --- canonical calls --------------------------------------------------------------------------------------------------


def conv(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Axes,
    padding: Axes,
    dilation: Axes,
    groups: int,
    memory_format: MemoryFormat,
) -> Tensor:
    """Convolution with every argument in canonical form; see `conv2d` for the public one."""
    return apply(CONV, (input, weight, optional(bias)), (stride, padding, dilation, groups, memory_format))


def conv_transposed(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    size: Axes,
    stride: Axes,
    padding: Axes,
    dilation: Axes,
    groups: int,
    memory_format: MemoryFormat,
) -> Tensor:
    """The adjoint of `conv` in its input: from (N, O, out...) to (N, C, size...)."""
    return apply(
        CONV_TRANSPOSED,
        (input, weight, optional(bias)),
        (tuple(size), stride, padding, dilation, groups, memory_format),
    )


def conv_weight_gradient(
    gradient: Tensor,
    input: Tensor,
    stride: Axes,
    padding: Axes,
    dilation: Axes,
    groups: int,
    size: Axes,
    weight_stride: Axes,
) -> Tensor:
    """The adjoint of `conv` in its weight: `size` (O, C / groups, kernel...), in the strides `weight_stride`."""
    attributes = (stride, padding, dilation, groups, size, weight_stride)
    return apply(CONV_WEIGHT_GRADIENT, (gradient, input), attributes)
