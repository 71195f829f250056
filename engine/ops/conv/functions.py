"""The public convolutions.

Arguments in canonical form, unbatched inputs, padding by name, the memory format of the result.
"""

from collections.abc import Callable
from typing import Any

from engine.calls.listening import heard
from engine.ops.conv.operator import conv, conv_transposed
from engine.ops.pointwise.complex_numbers import complex as make_complex
from engine.ops.pointwise.complex_numbers import imag, real
from engine.ops.shape.padding import constant_pad_nd
from engine.ops.shared.windows import ConvWindow, Sizes, sizes, suggested_format
from engine.rules.layout import MemoryFormat, contiguous_format
from engine.tensor import Tensor


def _memory_format(input: Tensor, weight: Tensor, dims: int) -> MemoryFormat:
    """Channels-last where input or weight looks so. In one dimension PyTorch asks the weight only."""
    found = suggested_format(input._spec)
    return suggested_format(weight._spec, dims) if found is contiguous_format else found


def _batched(name: str, input: Tensor, weight: Tensor, dims: int) -> Tensor:
    """The input with a batch axis. Raises: TypeError, RuntimeError naming the operator and the shapes."""
    if not (isinstance(input, Tensor) and isinstance(weight, Tensor)):
        role, value = ("weight", weight) if isinstance(input, Tensor) else ("input", input)
        raise TypeError(f"{name}(): argument '{role}' must be Tensor, not {type(value).__name__}")
    ndim = input.ndim
    if ndim not in (dims + 1, dims + 2):
        raise RuntimeError(
            f"{name}: Expected {dims + 1}D (unbatched) or {dims + 2}D (batched) input to {name}, but got input of "
            "size: "
            f"{list(input.shape)}"
        )
    if weight.ndim != dims + 2:
        raise RuntimeError(
            f"{name}: expected a {dims + 2}-dimensional weight (outputs, inputs / groups, kernel...), got size "
            f"{list(weight.shape)}"
        )
    return input if ndim == dims + 2 else input.unsqueeze(0)


def _same_padding(
    name: str, input: Tensor, weight: Tensor, stride: Any, dilation: Any
) -> tuple[Tensor, tuple[int, ...]]:
    """The input, padded by one more where the total is odd, and the symmetric rest (aten convolution_same)."""
    if any(step != 1 for step in stride):
        raise RuntimeError(
            f"{name}: padding='same' is not supported for strided convolutions, got stride {list(stride)}"
        )
    totals = [by * (size - 1) for by, size in zip(dilation, weight.shape[2:], strict=True)]
    if any(total % 2 for total in totals):
        input = constant_pad_nd(input, tuple(side for total in reversed(totals) for side in (0, total % 2)), 0.0)
    return input, tuple(total // 2 for total in totals)


def _by_parts(
    convolve: Callable[..., Tensor], input: Tensor, weight: Tensor, bias: Tensor | None, *window: Any
) -> Tensor:
    """A complex convolution as three real ones, as in PyTorch (aten complex_convolution).

    Raises: RuntimeError where the weight or the bias has another dtype.
    """
    for role, operand in (("weight", weight), ("bias", bias)):
        if operand is not None and operand.dtype is not input.dtype:
            raise RuntimeError(
                f"{convolve.__name__}: expected input and {role} to have the same dtype, but got {input.dtype} and "
                f"{operand.dtype}; convert one with .to()"
            )
    (a, b), (c, d) = ((real(each), imag(each)) for each in (input, weight))
    e, f = (None, None) if bias is None else (real(bias), imag(bias))
    first, second = convolve(a, c, e, *window), convolve(b, d, None, *window)
    both = convolve(a + b, c + d, None if e is None or f is None else e + f, *window)
    return make_complex(first - second, both - first - second)


def _convolution(dims: int) -> Callable[..., Tensor]:
    name = f"conv{dims}d"

    def convolution(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Sizes = 1,
        padding: Sizes | str = 0,
        dilation: Sizes = 1,
        groups: int = 1,
    ) -> Tensor:
        image = _batched(name, input, weight, dims)
        if image._spec.dtype.is_complex:
            return _by_parts(convolution, input, weight, bias, stride, padding, dilation, groups)
        steps, spread = sizes(name, "stride", stride, dims), sizes(name, "dilation", dilation, dims)
        if isinstance(padding, str):
            if padding == "same":
                image, margin = _same_padding(name, image, weight, steps, spread)
            elif padding == "valid":
                margin = (0,) * dims
            else:
                raise RuntimeError(f"{name}: Invalid padding string: '{padding}'; expected 'same' or 'valid'")
        else:
            margin = sizes(name, "padding", padding, dims)
        result = conv(
            image, weight, bias, ConvWindow(steps, margin, spread, groups), _memory_format(image, weight, dims)
        )
        return result if input.ndim == dims + 2 else result.squeeze(0)

    convolution.__name__ = convolution.__qualname__ = name
    convolution.__doc__ = f"""Convolution over {dims} spatial axes.

    Shapes: input (N, C, d...) or (C, d...), weight (O, C / groups, kernel...), bias (O,). `padding` is a number, one an
    axis, "valid" (none) or "same" (as many outputs as inputs). The result is channels-last if input or weight is.
    Raises: RuntimeError naming the shapes for operands that do not fit. Source: torch.nn.functional.{name}.
    """
    return heard(convolution)


def _transposed(dims: int) -> Callable[..., Tensor]:
    name = f"conv_transpose{dims}d"

    def convolution(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Sizes = 1,
        padding: Sizes = 0,
        output_padding: Sizes = 0,
        groups: int = 1,
        dilation: Sizes = 1,
    ) -> Tensor:
        image = _batched(name, input, weight, dims)
        if image._spec.dtype.is_complex:
            return _by_parts(convolution, input, weight, bias, stride, padding, output_padding, groups, dilation)
        steps, spread = sizes(name, "stride", stride, dims), sizes(name, "dilation", dilation, dims)
        margin, extra = sizes(name, "padding", padding, dims), sizes(name, "output_padding", output_padding, dims)
        if any(more < 0 for more in extra):
            raise RuntimeError(f"{name}: negative output_padding is not supported, got {list(extra)}")
        if any(more >= max(step, by) for more, step, by in zip(extra, steps, spread, strict=True)):
            raise RuntimeError(
                f"{name}: output padding must be smaller than either stride or dilation, but got output_padding "
                f"{list(extra)}, stride {list(steps)}, dilation {list(spread)}"
            )
        size = tuple(
            (old - 1) * step - 2 * before + by * (window - 1) + more + 1
            for old, step, before, by, window, more in zip(
                image.shape[2:], steps, margin, spread, weight.shape[2:], extra, strict=True
            )
        )
        window = ConvWindow(steps, margin, spread, groups)
        result = conv_transposed(image, weight, bias, size, window, _memory_format(image, weight, dims))
        return result if input.ndim == dims + 2 else result.squeeze(0)

    convolution.__name__ = convolution.__qualname__ = name
    convolution.__doc__ = f"""The transpose (gradient in the input) of `conv{dims}d`.

    Shapes: input (N, C, d...) or (C, d...), weight (C, O / groups, kernel...), bias (O,). `output_padding` enlarges the
    result on one side. Raises: RuntimeError naming the shapes for operands that do not fit.
    Source: torch.nn.functional.{name}.
    """
    return heard(convolution)


conv1d, conv2d, conv3d = _convolution(1), _convolution(2), _convolution(3)
conv_transpose1d, conv_transpose2d, conv_transpose3d = _transposed(1), _transposed(2), _transposed(3)
