"""Images as the kernels of convolution take them, (N, D, H, W, C) with zeros around them, and back in their own layout.

A row-major image is turned around in squares that stay in vector registers (`engine.kernels.tiling.turn`).
"""

import numpy as np

from engine.kernels.jit import helper, kernel
from engine.kernels.language import Read5, ReadStrided5, Write5, WriteStrided5, address, array_at, flat, real
from engine.kernels.tiling import elements, turn

Array = np.ndarray
Three = tuple[int, int, int]


def pad(image: Array, before: Three, size: Three, out: Array | None = None) -> Array:
    """(N, D', H', W', C) C-contiguous of spatial ``size`` with (N, D, H, W, C), of any strides, at ``before`` in
    zeros; an image that needs nothing of that comes back as it is, unless there is an ``out`` to write to.
    """
    if out is None:
        if image.shape[1:4] == size and image.flags.c_contiguous:
            return image
        out = np.empty((len(image), *size, image.shape[4]), image.dtype)
    _pad[image.dtype.char](image, out, *before)
    return out


def place(rows: Array, target: Array) -> None:
    """Copies (N, D, H, W, C) C-contiguous into an array of that shape and any strides."""
    _place[rows.dtype.char](rows, target)


@helper
def _lines(depth: int, height: int, width: int, step_d: int, step_h: int, step_w: int) -> tuple[int, int, int]:
    """The same images with planes of one line each, where that is the same with these steps."""
    if (depth == 1 or step_d == height * step_h) and step_h == width * step_w:
        return 1, 1, depth * height * width
    return depth, height, width


@kernel
def _pad(image: ReadStrided5, out: Write5, before_d: int, before_h: int, before_w: int) -> None:
    batch, depth, height, width, channels = image.shape
    _, size_d, size_h, size_w, _ = out.shape
    item, source, target = out.itemsize, address(image), flat(out)
    step_n, step_d, step_h, step_w, step_c = elements(image.strides, item)
    if depth == size_d and height == size_h and width == size_w:
        depth, height, width = _lines(depth, height, width, step_d, step_h, step_w)
        size_d, size_h, size_w = depth, height, width
    line = size_w * channels
    first = max(0, before_w)
    last = min(size_w, before_w + width)
    count = last - first
    begin, end = first * channels, last * channels
    runs, length = (1, count * channels) if step_w == channels else (count, channels)
    zero = real(0.0)
    for n in range(batch):
        for d in range(size_d):
            for h in range(size_h):
                to = ((n * size_d + d) * size_h + h) * line
                i, j = d - before_d, h - before_h
                outside = i < 0 or i >= depth or j < 0 or j >= height
                for k in range(to, to + (line if outside else begin)):
                    target[k] = zero
                if outside:
                    continue
                for k in range(to + end, to + line):
                    target[k] = zero
                start = n * step_n + i * step_d + j * step_h + (first - before_w) * step_w
                inner_at = address(target) + (to + begin) * item
                inner = array_at(inner_at, 0, end - begin, target)
                if step_c == 1:
                    for run in range(runs):
                        whole = array_at(source, start + run * step_w, length, target)
                        part = array_at(inner_at, run * length, length, target)
                        for k in range(length):
                            part[k] = whole[k]
                elif step_w == 1:
                    turn(target, item, source + start * item, step_c, inner_at, channels, channels, count)
                else:
                    for c in range(channels):
                        plane = array_at(source, start + c * step_c, (count - 1) * step_w + 1, target)
                        for w in range(count):
                            inner[w * channels + c] = plane[w * step_w]


@kernel
def _place(rows: Read5, target: WriteStrided5) -> None:
    batch, depth, height, width, channels = rows.shape
    item, pixels = rows.itemsize, flat(rows)
    step_n, step_d, step_h, step_w, step_c = elements(target.strides, item)
    depth, height, width = _lines(depth, height, width, step_d, step_h, step_w)
    line = width * channels
    for n in range(batch):
        for d in range(depth):
            for h in range(height):
                source = pixels[((n * depth + d) * height + h) * line :][:line]
                start = n * step_n + d * step_d + h * step_h
                if step_w == 1:
                    goal = address(target) + start * item
                    turn(pixels, item, address(source), channels, goal, step_c, width, channels)
                    continue
                for c in range(channels):
                    plane = array_at(address(target), start + c * step_c, (width - 1) * step_w + 1, pixels)
                    for w in range(width):
                        plane[w * step_w] = source[w * channels + c]
