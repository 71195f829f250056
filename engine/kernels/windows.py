"""Where sliding windows fall: shared by convolution and pooling."""

from engine.kernels.jit import helper
from engine.kernels.language import Pair


def output_size(size: int, kernel_size: int, stride: int, padding: int, dilation: int) -> int:
    """Number of window positions along one axis."""
    return (size + 2 * padding - dilation * (kernel_size - 1) - 1) // stride + 1


@helper
def valid_columns(columns: int, width: int, offset: int, stride: int) -> Pair:
    """Half-open range of the output columns whose pixel ``column * stride + offset`` lies inside the image."""
    first = min((-offset + stride - 1) // stride, columns) if offset < 0 else 0
    last = (width - 1 - offset) // stride + 1 if width > offset else 0
    return first, max(min(last, columns), first)
