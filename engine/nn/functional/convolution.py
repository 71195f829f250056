"""Linear maps and convolutions: the primitives of `engine.ops` under `torch.nn.functional`'s names."""

from collections.abc import Sequence

import engine
from engine import ops
from engine.nn.functional.padding import pad
from engine.tensor import Tensor

Sizes = int | Sequence[int]


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b. Shapes: (..., I), (O, I), (O) -> (..., O)."""
    return ops.linear(input, weight, bias)


def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x1ᵀ W x2 + b. Shapes: (..., I), (..., J), (O, I, J), (O) -> (..., O). Raises RuntimeError if they do not fit."""
    if input1.shape[:-1] != input2.shape[:-1] or tuple(weight.shape[1:]) != (input1.shape[-1], input2.shape[-1]):
        raise RuntimeError(
            f"bilinear: got input1 {tuple(input1.shape)}, input2 {tuple(input2.shape)} and weight "
            f"{tuple(weight.shape)}; expected (..., I), (..., J) and (O, I, J)"
        )
    outputs, size1, size2 = weight.shape
    # (..., I) @ (I, O J) -> (..., O, J), then the product with x2 over J
    left = input1 @ weight.permute(1, 0, 2).reshape(size1, outputs * size2)
    out = (left.reshape(*input1.shape[:-1], outputs, size2) * input2.unsqueeze(-2)).sum(-1)
    return out if bias is None else out + bias


def conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """Shapes: input (N, C, L) or (C, L), weight (O, C / groups, K)."""
    return ops.conv1d(input, weight, bias, stride, padding, dilation, groups)


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """Shapes: input (N, C, H, W) or (C, H, W), weight (O, C / groups, K, K)."""
    return ops.conv2d(input, weight, bias, stride, padding, dilation, groups)


def conv3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """Shapes: input (N, C, D, H, W) or (C, D, H, W), weight (O, C / groups, K, K, K)."""
    return ops.conv3d(input, weight, bias, stride, padding, dilation, groups)


def conv_transpose1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Tensor:
    """The transpose of `conv1d`. Shapes: input (N, C, L) or (C, L), weight (C, O / groups, K)."""
    return ops.conv_transpose1d(input, weight, bias, stride, padding, output_padding, groups, dilation)


def conv_transpose2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Tensor:
    """The transpose of `conv2d`. Shapes: input (N, C, H, W) or (C, H, W), weight (C, O / groups, K, K)."""
    return ops.conv_transpose2d(input, weight, bias, stride, padding, output_padding, groups, dilation)


def conv_transpose3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Tensor:
    """The transpose of `conv3d`. Shapes: input (N, C, D, H, W) or (C, D, H, W), weight (C, O / groups, K, K, K)."""
    return ops.conv_transpose3d(input, weight, bias, stride, padding, output_padding, groups, dilation)


def unfold(input: Tensor, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1) -> Tensor:
    """Sliding windows as columns: (N, C, H, W) -> (N, C · window, windows)."""
    if input.dim() == 3:
        return unfold(input.unsqueeze(0), kernel_size, dilation, padding, stride).squeeze(0)
    windows = _windows(pad(input, _margins(padding)), _pair(kernel_size), _pair(dilation), _pair(stride))
    samples, channels, rows, columns, height, width = windows.shape
    return windows.permute(0, 1, 4, 5, 2, 3).reshape(samples, channels * height * width, rows * columns)


def fold(
    input: Tensor, output_size: Sizes, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1
) -> Tensor:
    """Sums columns back to where `unfold` took them: (N, C · window, windows) -> (N, C, H, W)."""
    if input.dim() == 2:
        return fold(input.unsqueeze(0), output_size, kernel_size, dilation, padding, stride).squeeze(0)
    (height, width), (above, left) = _pair(output_size), _pair(padding)
    rows, columns = height + 2 * above, width + 2 * left
    places = engine.arange(rows * columns, device=input.device).view(1, 1, rows, columns)
    places = _windows(places, _pair(kernel_size), _pair(dilation), _pair(stride)).permute(0, 1, 4, 5, 2, 3).reshape(-1)
    samples, size = input.shape[0], _pair(kernel_size)[0] * _pair(kernel_size)[1]
    if input.shape[1] % size or input.shape[1] // size * places.numel() != input.shape[1] * input.shape[2]:
        raise RuntimeError(
            f"fold: got input {tuple(input.shape)}, expected (N, C · {size}, {places.numel() // size}) for an "
            f"output of {(height, width)}"
        )
    flat = input.reshape(samples, -1, places.numel())
    image = flat.new_zeros(samples, flat.shape[1], rows * columns).scatter_add(2, places.expand(flat.shape), flat)
    image = image.view(samples, flat.shape[1], rows, columns)
    return image[:, :, above : above + height, left : left + width].contiguous()


def _pair(value: Sizes) -> tuple[int, int]:
    first, second = (value, value) if isinstance(value, int) else value
    return first, second


def _margins(padding: Sizes) -> tuple[int, int, int, int]:
    above, left = _pair(padding)
    return left, left, above, above


def _windows(image: Tensor, kernel: tuple[int, int], dilation: tuple[int, int], stride: tuple[int, int]) -> Tensor:
    """A view (N, C, rows, columns, *kernel) of all windows of (N, C, H, W)."""
    spans = [step * (size - 1) + 1 for size, step in zip(kernel, dilation, strict=True)]
    if spans[0] > image.shape[2] or spans[1] > image.shape[3]:
        raise RuntimeError(
            f"unfold: a window of {tuple(spans)} does not fit an image of {tuple(image.shape[2:])}, padding included"
        )
    windows = image.unfold(2, spans[0], stride[0]).unfold(3, spans[1], stride[1])
    return windows[..., :: dilation[0], :: dilation[1]]
