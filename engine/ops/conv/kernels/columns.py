"""im2col and col2im on channels-last images: every output pixel's window becomes one row, copied in runs of channels.

Images are (N, H, W, C) C-contiguous, float32 or float64. Column matrices are (G, N * OH * OW, KH * KW * C / G): one
matrix a group, its columns ordered (kernel row, kernel column, channel), which is the memory order of a channels-last
weight. Pairs are (height, width).
"""

import numpy as np

from engine.kernels.jit import helper, kernel
from engine.kernels.language import Pair, Read1, Read3, Read4, Write1, Write2, Write3, Write4, flat, real
from engine.kernels.windows import output_size, valid_columns

Array = np.ndarray


def im2col(
    image: Array,
    kernel_size: Pair,
    *,
    stride: Pair = (1, 1),
    padding: Pair = (0, 0),
    dilation: Pair = (1, 1),
    groups: int = 1,
    part: tuple[Pair, int] | None = None,
    out: Array | None = None,
) -> Array:
    """Column matrix (G, N * OH * OW, KH * KW * C / G) of an image (N, H, W, C); what lies in the padding is 0.

    ``part``: ((first row, last row), columns) of the output to make columns for; the last row is exclusive.
    """
    batch, height, width, channels = image.shape
    rows = output_size(height, kernel_size[0], stride[0], padding[0], dilation[0])
    columns = output_size(width, kernel_size[1], stride[1], padding[1], dilation[1])
    if part is not None:
        (first, last), columns = part
        rows, padding = last - first, (padding[0] - first * stride[0], padding[1])
    if out is None:
        shape = (groups, batch * rows * columns, kernel_size[0] * kernel_size[1] * (channels // groups))
        out = np.empty(shape, image.dtype)
    _im2col[image.dtype.char](image, out, rows, columns, kernel_size, stride, padding, dilation)
    return out


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
    """Adjoint of :func:`im2col`: image (N, H, W, C), every pixel the sum of its copies in the matrix's row order.

    With ``part`` the sums are added to ``out``, which the caller has cleared; without it ``out`` is overwritten.
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


def add_to_rows(rows: Array, vector: Array) -> None:
    """``rows += vector`` in place: (M, C) and (C,)."""
    _add_to_rows[rows.dtype.char](rows, vector)


@helper
def _add_run(target: Write1, to: int, source: Read1, start: int, count: int) -> None:
    """``target[to : to + count] += source[start : start + count]``."""
    for k in range(count):
        target[to + k] += source[start + k]


@helper
def _copy_run(target: Write1, to: int, source: Read1, start: int, count: int) -> None:
    """``target[to : to + count] = source[start : start + count]``."""
    for k in range(count):
        target[to + k] = source[start + k]


@helper
def _copy_steps(target: Write1, to: int, to_step: int, source: Read1, start: int, step: int, count: int) -> None:
    """``target[to :: to_step] = source[start :: step]`` for ``count`` elements."""
    for k in range(count):
        target[to + k * to_step] = source[start + k * step]


@helper
def _clear_run(target: Write1, to: int, count: int) -> None:
    """``target[to : to + count] = 0``."""
    for k in range(count):
        target[to + k] = real(0.0)


# (12544, 64), the output of such a layer: 0.2 ms a pass, NumPy's broadcast sum 0.5.
@kernel
def _add_to_rows(rows: Write2, vector: Read1) -> None:
    for r in range(rows.shape[0]):
        for c in range(rows.shape[1]):
            rows[r, c] += vector[c]


# 64 images of 14x14x32 under a 3x3 kernel, padded: 0.6 ms in runs, which LLVM vectorises (PyTorch's unfold 5.6).
@kernel
def _im2col(
    image: Read4, out: Write3, rows: int, columns: int, kernel_size: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> None:
    kernel_h, kernel_w = kernel_size
    stride_h, stride_w = stride
    pad_h, pad_w = padding
    dilation_h, dilation_w = dilation
    batch, height, width, channels = image.shape
    groups = out.shape[0]
    run = channels // groups
    row_size = kernel_h * kernel_w * run
    # With one group and no dilation the pixels under a kernel row lie side by side: one run a kernel row instead of one
    # a pixel.
    joined = groups == 1 and dilation_w == 1
    source = flat(image)
    target = flat(out)
    for group in range(groups):
        for n in range(batch):
            for row in range(rows):
                tile = ((group * batch + n) * rows + row) * columns * row_size
                for i in range(kernel_h):
                    h = row * stride_h - pad_h + i * dilation_h
                    line = (n * height + h) * width
                    for j in range(kernel_w):
                        offset = j * dilation_w - pad_w
                        first, last = 0, 0
                        if h >= 0 and h < height:
                            first, last = valid_columns(columns, width, offset, stride_w)
                        at = tile + (i * kernel_w + j) * run
                        for column in range(first):
                            _clear_run(target, at + column * row_size, run)
                        for column in range(last, columns):
                            _clear_run(target, at + column * row_size, run)
                        start = (line + offset) * channels + group * run
                        if run < 8:
                            step = stride_w * channels
                            for k in range(run):
                                to, place = at + first * row_size + k, start + first * step + k
                                _copy_steps(target, to, row_size, source, place, step, last - first)
                        elif not joined:
                            for column in range(first, last):
                                _copy_run(
                                    target, at + column * row_size, source, start + column * stride_w * channels, run
                                )
                    if joined and run >= 8 and h >= 0 and h < height:
                        for column in range(columns):
                            w = column * stride_w - pad_w
                            begin, end = max(-w, 0), min(kernel_w, width - w)
                            if end > begin:
                                at = tile + column * row_size + (i * kernel_w + begin) * run
                                _copy_run(target, at, source, (line + w + begin) * channels, (end - begin) * run)


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
