"""Sliding windows as columns, and back."""

from engine import ops
from engine.ops.shared.windows import Sizes
from engine.tensor import Tensor


def unfold(input: Tensor, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1) -> Tensor:
    """Sliding windows as columns: (N, C, H, W) -> (N, C · window, windows)."""
    return ops.im2col(input, kernel_size, dilation, padding, stride)


def fold(
    input: Tensor, output_size: Sizes, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1
) -> Tensor:
    """Sums columns back to where `unfold` took them: (N, C · window, windows) -> (N, C, H, W)."""
    return ops.col2im(input, output_size, kernel_size, dilation, padding, stride)
