"""Linear maps and convolutions: the primitives of `engine.ops` under `torch.nn.functional`'s names."""

from collections.abc import Sequence

from engine import ops
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
    return ops.im2col(input, kernel_size, dilation, padding, stride)


def fold(
    input: Tensor, output_size: Sizes, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1
) -> Tensor:
    """Sums columns back to where `unfold` took them: (N, C · window, windows) -> (N, C, H, W)."""
    return ops.col2im(input, output_size, kernel_size, dilation, padding, stride)
