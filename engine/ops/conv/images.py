"""Images of a convolution on the CPU as its kernels take them: (N, D, H, W, C), zeros around them, some at a time."""

from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from engine.ops.conv.kernels import layout
from engine.ops.shared.windows import Axes, channels_first, channels_last
from engine.rules.layout import MemoryFormat, contiguous_format
from engine.sharing import threads

Array = Any
Three = Any  # tuple[int, int, int]

_IMAGES_BYTES = 1 << 20  # of padded images at a time: what stays in a core's second-level cache beside the weights


def three(axes: Axes, fill: int) -> Three:
    """One number for each of three axes, the first ones filled up."""
    return (*(fill,) * (3 - len(axes)), *axes)


def as_volumes(array: Array) -> Array:
    """(N, C, d...) as a view (N, D, H, W, C)."""
    new = (np.newaxis,) * (5 - array.ndim)
    return array[(slice(None), slice(None), *new)].transpose(0, 2, 3, 4, 1)


class Result:
    """Memory for (N, C, d...) in a memory format, filled a few images at a time."""

    def __init__(self, batch: int, channels: int, size: Axes, dtype: Any, memory_format: MemoryFormat) -> None:
        self.row_major = memory_format is contiguous_format
        if self.row_major:
            self.array = np.empty((batch, channels, *size), dtype)
        else:
            self.array = channels_first(np.empty((batch, *size, channels), dtype))
        self.last = as_volumes(self.array)

    def open(self, images: slice) -> Array:
        """(n, D, H, W, C) to write these images into."""
        part = self.last[images]
        return np.empty(part.shape, part.dtype) if self.row_major else part

    def close(self, images: slice, rows: Array) -> None:
        if self.row_major:
            layout.place(rows, self.last[images])


def in_groups(batch: int, size: Three, channels: int, weight: Array, together: int = 1) -> list[slice]:
    """Some images at a time; more where the weights are many, which are read once for each such group, and where so
    many threads work on a group together.
    """
    bytes_each = size[0] * size[1] * size[2] * channels * weight.itemsize
    return _groups(batch, bytes_each, weight.nbytes, together, threads.usable_threads())


@lru_cache(4096)
def _groups(batch: int, bytes_each: int, bytes_of_weight: int, together: int, number: int) -> list[slice]:
    at_once = max(max(_IMAGES_BYTES, bytes_of_weight // 4) * together // max(bytes_each, 1), 1)
    if together == 1:
        at_once = min(at_once, max(-(-batch // number), 1))
    return [slice(first, min(first + at_once, batch)) for first in range(0, batch, at_once)]


def padded(image: Array, before: Three, size: Three, room: int = 0) -> Array:
    """`layout.pad`, images on different threads; behind the result so many elements may be read."""
    whole = image.shape[1:4] == size and image.flags.c_contiguous
    if not room and (whole or image.size < threads.WORTH):
        return layout.pad(image, before, size)
    shape = (len(image), *size, image.shape[4])
    out = np.empty(prod(shape) + room, image.dtype)[: prod(shape)].reshape(shape)
    threads.in_pieces(lambda part: layout.pad(image[part], before, size, out[part]), len(image), image.size)
    return out


def dense(size: Axes, steps: Axes, dtype: Any) -> Array:
    """Memory for an array of this size whose axes lie in the order of these strides."""
    lying, back = _lying(size, steps)
    return np.empty(lying, dtype).transpose(back)


@lru_cache(4096)
def _lying(size: Axes, steps: Axes) -> tuple[Axes, Axes]:
    """The sizes of axes in the order of these strides, and where each is among them."""
    order = sorted(range(len(size)), key=lambda axis: (-steps[axis], -size[axis]))
    return tuple(size[axis] for axis in order), tuple(sorted(range(len(order)), key=order.__getitem__))


def in_channels_last(image: Array) -> Array:
    """(N, C, H, W) as (N, H, W, C) row-major: 3.2 MB in 0.25 ms where numpy.ascontiguousarray takes 1.1."""
    rows = channels_last(image)
    return padded(rows[:, None], (0, 0, 0), (1, *rows.shape[1:3]))[:, 0]


def laid_out(rows: Array, memory_format: MemoryFormat) -> Array:
    """(N, H, W, C) row-major as (N, C, H, W) in a memory format."""
    if memory_format is not contiguous_format:
        return channels_first(rows)
    result = np.empty((rows.shape[0], rows.shape[3], *rows.shape[1:3]), rows.dtype)
    layout.place(rows[:, None], channels_last(result)[:, None])
    return result
