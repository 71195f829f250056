"""col2im on channels-last images: rows, one for the window of every output pixel, are added to its pixels in runs of
channels.

Images are (N, H, W, C) C-contiguous, float32 or float64. Column matrices are (G, N * OH * OW, KH * KW * C / G): one
matrix a group, its columns ordered (kernel row, kernel column, channel), which is the memory order of a channels-last
weight. Pairs are (height, width).
"""

import numpy as np

from engine.kernels.jit import helper, kernel
from engine.kernels.language import Pair, Read1, Read3, Write1, Write4, flat
from engine.kernels.windows import output_size

Array = np.ndarray


def col2im(
    matrix: Array,
    image_shape: tuple[int, int, int, int],
    kernel_size: Pair,
    *,
    stride: Pair = (1, 1),
    padding: Pair = (0, 0),
    dilation: Pair = (1, 1),
    part: tuple[Pair, int] | None = None,
    out: Array | None = None,
) -> Array:
    """The image (N, H, W, C) whose every pixel is the sum of what the windows have for it, in the matrix's row order.

    ``part``: ((first row, last row), columns) of the output that there are columns of; the last row is exclusive. The
    sums are added to ``out``, which the caller has cleared; without it ``out`` is overwritten.
    """
    _, height, width, _ = image_shape
    rows = output_size(height, kernel_size[0], stride[0], padding[0], dilation[0])
    columns = output_size(width, kernel_size[1], stride[1], padding[1], dilation[1])
    if part is not None:
        (first, last), columns = part
        rows, padding = last - first, (padding[0] - first * stride[0], padding[1])
    out = np.empty(image_shape, matrix.dtype) if out is None else out
    if part is None:
        out.fill(0)
    _col2im[matrix.dtype.char](matrix, out, rows, columns, kernel_size, stride, padding, dilation)
    return out


@helper
def _add_run(target: Write1, to: int, source: Read1, start: int, count: int) -> None:
    """``target[to : to + count] += source[start : start + count]``."""
    for k in range(count):
        target[to + k] += source[start + k]


@kernel
def _col2im(
    matrix: Read3,
    image: Write4,
    rows: int,
    columns: int,
    kernel_size: Pair,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
) -> None:
    kernel_h, kernel_w = kernel_size
    stride_h, stride_w = stride
    pad_h, pad_w = padding
    dilation_h, dilation_w = dilation
    batch, height, width, channels = image.shape
    groups = matrix.shape[0]
    run = channels // groups
    joined = groups == 1 and dilation_w == 1
    source = flat(matrix)
    target = flat(image)
    at = 0
    for group in range(groups):
        for n in range(batch):
            for row in range(rows):
                for column in range(columns):
                    for i in range(kernel_h):
                        h = row * stride_h - pad_h + i * dilation_h
                        w = column * stride_w - pad_w
                        if h >= 0 and h < height:
                            if joined:
                                begin, end = max(-w, 0), min(kernel_w, width - w)
                                if end > begin:
                                    start = ((n * height + h) * width + w + begin) * channels
                                    _add_run(target, start, source, at + begin * channels, (end - begin) * channels)
                            else:
                                for j in range(kernel_w):
                                    place = w + j * dilation_w
                                    start = ((n * height + h) * width + place) * channels + group * run
                                    if place >= 0 and place < width:
                                        _add_run(target, start, source, at + j * run, run)
                        at += kernel_w * run
