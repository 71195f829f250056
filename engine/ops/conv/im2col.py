"""Sliding windows as columns and back: `im2col` and its adjoint `col2im`, each the other's derivative.

Source: torch.nn.functional.unfold, fold; aten/src/ATen/native/Im2Col.cpp, Col2Im.cpp.
"""

from math import prod
from types import ModuleType
from typing import Any

import numpy as np

from engine.calls.dispatch import apply
from engine.calls.operator import define
from engine.ops.shared.windows import Axes, Sizes, channels_last, output_size, padded, patches, sizes
from engine.rules.spec import Spec
from engine.tensor import Tensor

Array = Any


def _positions(name: str, size: Axes, kernel: Axes, dilation: Axes, padding: Axes, stride: Axes) -> Axes:
    """Number of windows along each axis. Raises: RuntimeError naming the operator for windows that cannot be."""
    for values, what in ((kernel, "kernel_size"), (dilation, "dilation"), (stride, "stride")):
        if any(value <= 0 for value in values):
            raise RuntimeError(f"{name}: {what} should be greater than zero, but got {list(values)}")
    if any(value < 0 for value in padding):
        raise RuntimeError(f"{name}: padding should be non-negative, but got {list(padding)}")
    out = tuple(map(output_size, size, kernel, stride, padding, dilation))
    if any(count < 1 for count in out):
        raise RuntimeError(
            f"{name}: Given spatial size {list(size)}, kernel_size={list(kernel)}, dilation={list(dilation)}, "
            f"padding={list(padding)}, stride={list(stride)}, calculated shape of the array of sliding blocks as "
            f"{list(out)}, "
            "but its components must be at least one"
        )
    return out


def _im2col_rule(input: Spec, kernel: Axes, dilation: Axes, padding: Axes, stride: Axes) -> Spec:
    if 0 in input.shape[1:]:
        raise RuntimeError(f"unfold: Expected non-zero sizes but for the batch, got input of shape {list(input.shape)}")
    out = _positions("unfold", tuple(input.shape[2:]), kernel, dilation, padding, stride)
    return input.like(shape=(input.shape[0], input.shape[1] * prod(kernel), prod(out)))


def _im2col(xp: ModuleType, input: Array, kernel: Axes, dilation: Axes, padding: Axes, stride: Axes) -> Array:
    out = tuple(map(output_size, input.shape[2:], kernel, stride, padding, dilation))
    image = padded(xp, channels_last(input), padding, padding)
    view = patches(xp, image, kernel, stride, dilation, out)  # (N, OH, OW, KH, KW, C)
    return view.transpose(0, 5, 3, 4, 1, 2).reshape(len(input), input.shape[1] * prod(kernel), prod(out))


def _col2im_rule(input: Spec, size: Axes, kernel: Axes, dilation: Axes, padding: Axes, stride: Axes) -> Spec:
    window = prod(kernel)
    out = _positions("fold", size, kernel, dilation, padding, stride)
    if input.shape[1] % window:
        raise RuntimeError(
            "fold: Expected size of input's dimension 1 to be divisible by the product of kernel_size, but got "
            f"input.size(1)={input.shape[1]} and kernel_size={list(kernel)}"
        )
    if input.shape[2] != prod(out):
        raise RuntimeError(
            f"fold: Given output_size={list(size)}, kernel_size={list(kernel)}, dilation={list(dilation)}, "
            f"padding={list(padding)}, stride={list(stride)}, expected size of input's dimension 2 to match the "
            "calculated "
            f"number of sliding blocks {' * '.join(map(str, out))} = {prod(out)}, but got "
            f"input.size(2)={input.shape[2]}"
        )
    return input.like(shape=(input.shape[0], input.shape[1] // window, *size))


def _col2im(
    xp: ModuleType, input: Array, size: Axes, kernel: Axes, dilation: Axes, padding: Axes, stride: Axes
) -> Array:
    out = tuple(map(output_size, size, kernel, stride, padding, dilation))
    channels = input.shape[1] // prod(kernel)
    columns = input.reshape(len(input), channels, *kernel, *out)
    total = xp.zeros((len(input), channels, *(n + 2 * p for n, p in zip(size, padding, strict=True))), input.dtype)
    for tap in np.ndindex(*kernel):
        where = tuple(
            slice(at * by, at * by + (count - 1) * step + 1, step)
            for at, by, count, step in zip(tap, dilation, out, stride, strict=True)
        )
        total[(slice(None), slice(None), *where)] += columns[(slice(None), slice(None), *tap)]
    inside = tuple(slice(p, p + n) for n, p in zip(size, padding, strict=True))
    return xp.ascontiguousarray(total[(slice(None), slice(None), *inside)])


IM2COL = define(
    "im2col",
    rule=_im2col_rule,
    forward=_im2col,
    backward=(
        lambda g, nd, input_spec, kernel, dilation, padding, stride: nd.col2im(
            g, tuple(input_spec.shape[2:]), kernel, dilation, padding, stride
        ),
    ),
    attributes="kernel dilation padding stride",
)
COL2IM = define(
    "col2im",
    rule=_col2im_rule,
    forward=_col2im,
    backward=(lambda g, nd, kernel, dilation, padding, stride: nd.im2col(g, kernel, dilation, padding, stride),),
    attributes="size kernel dilation padding stride",
)


def _batched(name: str, input: Tensor, unbatched: int) -> bool:
    """Whether the input has a batch axis. Raises: RuntimeError for another number of axes."""
    if input.ndim not in (unbatched, unbatched + 1):
        raise RuntimeError(
            f"{name}: Expected {unbatched}D (unbatched) or {unbatched + 1}D (batched) input, but got input of shape "
            f"{list(input.shape)}"
        )
    return input.ndim == unbatched + 1


def im2col(input: Tensor, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1) -> Tensor:
    """Sliding windows as columns: (N, C, H, W) or (C, H, W) -> (N, C * window, windows) or without N."""
    window = (kernel_size, dilation, padding, stride)
    names = ("kernel_size", "dilation", "padding", "stride")
    attributes = tuple(sizes("unfold", name, value, 2) for name, value in zip(names, window, strict=True))
    if _batched("unfold", input, 3):
        return apply(IM2COL, (input,), attributes)
    return apply(IM2COL, (input.unsqueeze(0),), attributes).squeeze(0)


def col2im(
    input: Tensor, output_size: Sizes, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1
) -> Tensor:
    """Sums columns back to where `im2col` took them: (N, C * window, windows) -> (N, C, H, W), both also without N."""
    window = (output_size, kernel_size, dilation, padding, stride)
    names = ("output_size", "kernel_size", "dilation", "padding", "stride")
    attributes = tuple(sizes("fold", name, value, 2) for name, value in zip(names, window, strict=True))
    if _batched("fold", input, 2):
        return apply(COL2IM, (input,), attributes)
    return apply(COL2IM, (input.unsqueeze(0),), attributes).squeeze(0)
