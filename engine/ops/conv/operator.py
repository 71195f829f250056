"""Convolution in one to three dimensions and its transpose.

Three operators, each the others' derivative: `conv` (input, weight -> output), `conv_transposed` (its adjoint in the
input) and `conv_weight_gradient` (its adjoint in the weight). So a convolution can be differentiated any number of
times. Their arguments are canonical; `engine.ops.conv.functions` has the functions users call.

Layout, as in PyTorch (determine_backend_memory_format): the result, and the gradient of the input, are channels-last if
the input's or the weight's strides look so, else row-major. PyTorch has no channels-last kernel for float64 or (on one
thread) a single sample in three dimensions and falls back to row-major there; here the rule has no exceptions. The
weight's gradient comes in the strides that the layout contract asks for.

Source: torch.nn.functional.conv2d, conv_transpose2d; aten/src/ATen/native/Convolution.cpp.
"""

from types import ModuleType
from typing import Any

import numpy as np

from engine.calls.derivative import implements
from engine.calls.dispatch import apply, apply_ternary
from engine.calls.namespaces import composite
from engine.calls.operator import define
from engine.memory import backend
from engine.ops.conv import arrays as conv_arrays
from engine.ops.conv import cpu as conv_cpu
from engine.ops.reduce.kernels.sums import axis_sums
from engine.ops.shared.operands import optional
from engine.ops.shared.windows import Axes, ConvWindow, formatted, suggested_format
from engine.rules import layout
from engine.rules.layout import MemoryFormat
from engine.rules.spec import Spec
from engine.tensor import Tensor

# --- shapes -----------------------------------------------------------------------------------------------------------


def _check(name: str, input: Spec, weight: Spec, bias: Spec | None, window: ConvWindow) -> None:
    """What convolution and its transpose refuse alike."""
    for spec, role in ((weight, "weight"), (bias, "bias")):
        if spec is not None and spec.dtype is not input.dtype:
            raise RuntimeError(
                f"{name}: Input type ({input.dtype}) and {role} type ({spec.dtype}) should be the same; convert one "
                "with .to()"
            )
    if input.dtype.is_complex or input.dtype.name == "bool":
        raise RuntimeError(f"{name}: not supported for {input.dtype} tensors; use real numbers")
    if any(size < 0 for size in window.padding):
        raise RuntimeError(f"{name}: negative padding is not supported, got {list(window.padding)}")
    if any(size <= 0 for size in window.stride):
        raise RuntimeError(f"{name}: non-positive stride is not supported, got {list(window.stride)}")
    if any(size <= 0 for size in window.dilation):
        raise RuntimeError(f"{name}: dilation should be greater than zero, got {list(window.dilation)}")
    if window.groups <= 0:
        raise RuntimeError(f"{name}: non-positive groups is not supported, got {window.groups}")
    if weight.shape[0] < window.groups or weight.shape[0] % window.groups:
        raise RuntimeError(
            f"{name}: Given groups={window.groups}, expected weight to be divisible by {window.groups} at dimension 0, "
            f"but got weight of size {list(weight.shape)} instead"
        )
    if 0 in weight.shape[2:]:
        raise RuntimeError(f"{name}: kernel size should be greater than zero, got weight of size {list(weight.shape)}")


def _check_bias(name: str, weight: Spec, bias: Spec | None, channels: int) -> None:
    if bias is not None and bias.shape != (channels,):
        raise RuntimeError(
            f"{name}: Given weight of size {list(weight.shape)}, expected bias to be 1-dimensional with {channels} "
            f"elements, but got bias of size {list(bias.shape)} instead"
        )


def _conv_rule(input: Spec, weight: Spec, bias: Spec | None, window: ConvWindow, memory_format: MemoryFormat) -> Spec:
    name = f"conv{len(window.stride)}d"
    _check(name, input, weight, bias, window)
    if input.shape[1] != weight.shape[1] * window.groups:
        raise RuntimeError(
            f"{name}: Given groups={window.groups}, weight of size {list(weight.shape)}, "
            f"expected input{list(input.shape)} to have {weight.shape[1] * window.groups} channels, "
            f"but got {input.shape[1]} channels instead"
        )
    _check_bias(name, weight, bias, weight.shape[0])
    extent = tuple(size + 2 * before for size, before in zip(input.shape[2:], window.padding, strict=True))
    reach = window.spread(weight.shape[2:])
    if any(have < need for have, need in zip(extent, reach, strict=True)):
        raise RuntimeError(
            f"{name}: Calculated padded input size per channel: ({_by(extent)}). Kernel size: ({_by(reach)}). "
            "Kernel size can't be greater than actual input size"
        )
    out = window.positions(input.shape[2:], weight.shape[2:])
    return formatted(input, (input.shape[0], weight.shape[0], *out), memory_format)


def _by(extent: Axes) -> str:
    return " x ".join(map(str, extent))


def _transposed_rule(
    input: Spec, weight: Spec, bias: Spec | None, size: Axes, window: ConvWindow, memory_format: MemoryFormat
) -> Spec:
    name = f"conv_transpose{len(window.stride)}d"
    _check(name, input, weight, bias, window)
    if input.shape[1] != weight.shape[0]:
        raise RuntimeError(
            f"{name}: Given transposed=1, weight of size {list(weight.shape)}, expected input{list(input.shape)} to "
            f"have {weight.shape[0]} channels, but got {input.shape[1]} channels instead"
        )
    _check_bias(name, weight, bias, weight.shape[1] * window.groups)
    if any(extent <= 0 for extent in size):
        raise RuntimeError(
            f"{name}: Given input size per channel: ({_by(input.shape[2:])}). Calculated output size per channel: "
            f"({_by(size)}). Output size is too small"
        )
    return formatted(input, (input.shape[0], weight.shape[1] * window.groups, *size), memory_format)


# --- derivatives ------------------------------------------------------------------------------------------------------


def _conv_backward(
    g: Any,
    nd: Any,
    needs: Any,
    input: Any,
    weight: Any,
    input_spec: Spec,
    weight_spec: Spec,
    window: ConvWindow,
    memory_format: MemoryFormat,
) -> tuple[Any, ...]:
    to_input = to_weight = None
    if needs[0]:
        to_input = nd.conv_transposed(g, weight, None, tuple(input_spec.shape[2:]), window, memory_format)
    if needs[1]:
        to_weight = _weight_slope(nd, g, input, window, weight_spec)
    return to_input, to_weight, _channel_sums(nd, g) if needs[2] else None


@implements(_conv_backward)
def _conv_backward_on_arrays(
    g: Any,
    nd: Any,
    needs: Any,
    input: Any,
    weight: Any,
    input_spec: Spec,
    weight_spec: Spec,
    window: ConvWindow,
    memory_format: MemoryFormat,
) -> tuple[Any, ...]:
    if needs[0] and needs[1]:
        g = conv_cpu.in_one_layout(g, input, weight_spec.shape, window)
    return _conv_backward(g, nd, needs, input, weight, input_spec, weight_spec, window, memory_format)


def _transposed_backward(
    g: Any,
    nd: Any,
    needs: Any,
    input: Any,
    weight: Any,
    input_spec: Spec,
    weight_spec: Spec,
    window: ConvWindow,
    memory_format: MemoryFormat,
) -> tuple[Any, ...]:
    to_input = to_weight = None
    if needs[0]:
        to_input = _first(nd.conv(g, weight, None, window, memory_format), input_spec)
    if needs[1]:
        to_weight = _weight_slope(nd, input, g, window, weight_spec)
    return to_input, to_weight, _channel_sums(nd, g) if needs[2] else None


def _weight_gradient_backward(
    g: Any,
    nd: Any,
    needs: Any,
    gradient: Any,
    input: Any,
    gradient_spec: Spec,
    input_spec: Spec,
    window: ConvWindow,
) -> tuple[Any, ...]:
    memory_format = suggested_format(input_spec)
    to_gradient = to_input = None
    if needs[0]:
        to_gradient = _first(nd.conv(input, g, None, window, memory_format), gradient_spec)
    if needs[1]:
        to_input = nd.conv_transposed(gradient, g, None, tuple(input_spec.shape[2:]), window, memory_format)
    return to_gradient, to_input


def _weight_slope(nd: Any, gradient: Any, input: Any, window: ConvWindow, weight: Spec) -> Any:
    """The gradient of a weight in the strides that the layout contract asks for, so that nobody copies it later."""
    wanted = weight if weight.dense else weight.like(stride=layout.contract_strides(weight.shape, weight.stride))
    slope = nd.conv_weight_gradient(gradient, input, window, tuple(weight.shape), wanted.stride)
    if nd.records or slope.strides == wanted.byte_strides or slope.dtype != wanted.dtype.numpy:
        return slope
    pairs = zip(wanted.shape, slope.strides, wanted.byte_strides, strict=True)
    if any(size > 1 and have != want for size, have, want in pairs):
        memory = backend.empty(wanted)
        memory[...] = slope
        slope = memory
        del memory
    return backend.strided_view(slope, wanted, 0)  # the strides of axes of size 1 as well


def _first(result: Any, spec: Spec) -> Any:
    """The windows that the operand of `spec` has; output_padding may have made room for further ones."""
    if tuple(result.shape) == tuple(spec.shape):
        return result
    return result[tuple(slice(0, size) for size in spec.shape)]


def _channel_sums(nd: Any, g: Any) -> Any:
    """Sums (C,) of a gradient (N, C, d...) over all but the channels."""
    return nd.channel_sums(g)


def _channel_sums_of_array(xp: ModuleType, g: Any) -> Any:
    if xp is not np:
        return _on_gpu().channel_sums(xp, g)
    if g.dtype.itemsize == 2:
        return g.sum((0, *range(2, g.ndim)), dtype=np.float32).astype(g.dtype)
    return axis_sums(g, (0, *range(2, g.ndim)))


composite("channel_sums", _channel_sums_of_array, lambda g: g.sum((0, *range(2, g.ndim))))


CONV = define(
    "conv",
    rule=_conv_rule,
    forward=conv_arrays.convolve,
    backward=_conv_backward_on_arrays,
    inputs="input weight bias",
    attributes="window memory_format",
)
CONV_TRANSPOSED = define(
    "conv_transposed",
    rule=_transposed_rule,
    forward=conv_arrays.convolve_transposed,
    backward=_transposed_backward,
    inputs="input weight bias",
    attributes="size window memory_format",
)
CONV_WEIGHT_GRADIENT = define(
    "conv_weight_gradient",
    rule=lambda gradient, input, window, size, weight_stride: input.like(shape=size, stride=weight_stride),
    forward=conv_arrays.weight_gradient,
    backward=_weight_gradient_backward,
    inputs="gradient input",
    attributes="window size weight_stride",
)


# --- CPU --------------------------------------------------------------------------------------------------------------

CONV.kernel("cpu")(conv_cpu.convolve)
CONV_TRANSPOSED.kernel("cpu")(conv_cpu.convolve_transposed)
CONV_WEIGHT_GRADIENT.kernel("cpu")(conv_cpu.weight_gradient)


# --- GPU --------------------------------------------------------------------------------------------------------------


def _on_gpu() -> ModuleType:
    """`engine.ops.conv.gpu`, which is no part of `import engine`: it would make that slower."""
    from engine.ops.conv import gpu as conv_cuda

    return conv_cuda


@implements(_conv_backward)
def _conv_backward_on_gpu(
    g: Any,
    nd: Any,
    needs: Any,
    input: Any,
    weight: Any,
    input_spec: Spec,
    weight_spec: Spec,
    window: ConvWindow,
    memory_format: MemoryFormat,
) -> tuple[Any, ...]:
    if needs[0] and needs[1]:
        g = _on_gpu().in_one_layout(g, tuple(weight_spec.shape), window.groups)
    return _conv_backward(g, nd, needs, input, weight, input_spec, weight_spec, window, memory_format)


CONV.kernel("cuda")(lambda xp, *arguments: _on_gpu().convolve(xp, *arguments))
CONV_TRANSPOSED.kernel("cuda")(lambda xp, *arguments: _on_gpu().convolve_transposed(xp, *arguments))
CONV_WEIGHT_GRADIENT.kernel("cuda")(lambda xp, *arguments: _on_gpu().weight_gradient(xp, *arguments))
CONV.derivative("cuda", _conv_backward_on_gpu)


# --- canonical calls --------------------------------------------------------------------------------------------------


def conv(input: Tensor, weight: Tensor, bias: Tensor | None, window: ConvWindow, memory_format: MemoryFormat) -> Tensor:
    """Convolution with every argument in canonical form."""
    return apply_ternary(CONV, input, weight, optional(bias), (window, memory_format))


def conv_transposed(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    size: Axes,
    window: ConvWindow,
    memory_format: MemoryFormat,
) -> Tensor:
    """The adjoint of `conv` in its input: from (N, O, out...) to (N, C, size...)."""
    return apply(CONV_TRANSPOSED, (input, weight, optional(bias)), (size, window, memory_format))


def conv_weight_gradient(
    gradient: Tensor, input: Tensor, window: ConvWindow, size: Axes, weight_stride: Axes
) -> Tensor:
    """The adjoint of `conv` in its weight: `size` (O, C / groups, kernel...), in the strides `weight_stride`."""
    return apply(CONV_WEIGHT_GRADIENT, (gradient, input), (window, size, weight_stride))
