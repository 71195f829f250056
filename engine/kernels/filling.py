"""Planes laid out so that windows over them become long runs of pixels: shared by convolution and pooling.

A plane is copied with its padding and, where windows move by more than one pixel, as one plane for each remainder of a
place by the stride. There the pixels that meet an element of the window one after the other lie one after the other,
from line to line as well, so a whole plane is one run; what is computed between two lines is left out when the result
is copied.
"""

from typing import NamedTuple

import numpy as np

from engine.kernels.jit import helper
from engine.kernels.language import ReadInt64, Write1, array_at
from engine.kernels.tiling import move_lines
from engine.kernels.vectors import LINE

Array = np.ndarray
Three = tuple[int, int, int]


class Filling(NamedTuple):
    """How a channel's planes lie in the room of a group: (phases D, H, W), each (depth, height, pitch).

    Element (d, h, w) of phase (i, j, k) is the pixel (d, h, w) * stride + (i, j, k) - before of the channel, or padding
    where there is none. Lines are ``width`` long; the padding at the end of one may be that at the beginning of the
    next.
    """

    size: Three  # of the channel's planes
    stride: Three
    before: Three
    phases: Three
    depth: int
    height: int
    width: int
    pitch: int

    @property
    def volume(self) -> int:
        """Elements of a channel."""
        phases = self.phases
        return phases[0] * phases[1] * phases[2] * self.depth * self.height * self.pitch

    def room(self, channels: int, dtype: np.dtype) -> int:
        """Elements for so many channels; runs may be read to the end of a vector behind them."""
        return channels * self.volume + self.width + 2 * LINE // dtype.itemsize

    def numbers(self, dtype: np.dtype) -> Array:
        """For `fill`."""
        extent = self.depth, self.height, self.width, self.pitch
        return np.array([*self.size, *self.stride, *self.before, *self.phases, *extent, dtype.itemsize], np.int64)


def lay_out(size: Three, stride: Three, before: Three, reach: Three, extent: Three, widest: int) -> Filling:
    """For windows that begin ``before`` the image and have this ``reach``, gaps included; phases have this ``extent``,
    and runs compute lines of ``widest`` pixels at most.
    """
    phases = min(stride[0], reach[0]), min(stride[1], reach[1]), min(stride[2], reach[2])
    width = extent[2]
    shared = min(before[2], width - before[2] - size[2], width - widest) if stride[2] == 1 else 0
    return Filling(size, stride, before, phases, *extent, width - max(shared, 0))


class Taps(NamedTuple):
    """The elements of a window, of the first one on, and the gaps between them."""

    number: Three
    gaps: Three
    first: Three = (0, 0, 0)

    def places(self, filling: Filling, channels: int) -> Array:
        """What they meet at the first output pixel, in the order of (window, channels): offsets in a group's room."""
        taps = np.array(self.first) + np.array(self.gaps) * np.moveaxis(np.indices(self.number), 0, -1)
        whole, phase = np.divmod(taps, filling.stride)
        number = (phase[..., 0] * filling.phases[1] + phase[..., 1]) * filling.phases[2] + phase[..., 2]
        rows = ((number * filling.depth + whole[..., 0]) * filling.height + whole[..., 1]) * filling.pitch
        places = rows + whole[..., 2]
        return (places.reshape(-1, 1) + filling.volume * np.arange(channels)).astype(np.int64).reshape(-1)


def filled(
    size: Three, out: Three, kernel: Three, stride: Three, padding: Three, dilation: Three
) -> tuple[Filling, Taps]:
    """How images of this size are laid out for so many windows along each axis, and the elements of those."""
    depth, height, width = (gap * (taps - 1) + 1 for gap, taps in zip(dilation, kernel, strict=True))
    reach = depth, height, width
    along_d, along_h, along_w = (
        many + (along - 1) // step for many, along, step in zip(out, reach, stride, strict=True)
    )
    return lay_out(size, stride, padding, reach, (along_d, along_h, along_w), out[2]), Taps(kernel, dilation)


@helper
def fill(like: Write1, source: int, target: int, numbers: ReadInt64) -> None:
    """Copies a channel to its place in the room, whose padding stays."""
    size_d, size_h, size_w = numbers[0], numbers[1], numbers[2]
    step_d, step_h, step_w = numbers[3], numbers[4], numbers[5]
    depth, height, width, pitch, item = numbers[12], numbers[13], numbers[14], numbers[15], numbers[16]
    goal = target
    for i in range(numbers[9]):
        for j in range(numbers[10]):
            top, bottom = _inside(numbers[7] - j, size_h, step_h, height)
            for k in range(numbers[11]):
                ahead = numbers[8] - k
                first, last = _inside(ahead, size_w, step_w, width)
                for d in range(depth):
                    plane = d * step_d + i - numbers[6]
                    lines, count = bottom - top, last - first
                    if plane >= 0 and plane < size_d and lines > 0 and count > 0:
                        start = (plane * size_h + top * step_h + j - numbers[7]) * size_w + first * step_w - ahead
                        start = source + start * item
                        place, apart = goal + (top * pitch + first) * item, step_h * size_w
                        if step_w == 2:
                            move_lines(2, like, place, pitch, start, apart, lines, count, item)
                        elif step_w == 1:
                            move_lines(1, like, place, pitch, start, apart, lines, count, item)
                        else:
                            for line in range(lines):
                                pixels = array_at(start, line * apart, count * step_w, like)
                                placed = array_at(place, line * pitch, count, like)
                                for w in range(count):
                                    placed[w] = pixels[step_w * w]
                    goal += height * pitch * item


@helper
def _inside(ahead: int, size: int, step: int, many: int) -> tuple[int, int]:
    """The first of so many places, ``step`` apart from ``-ahead`` on, that lies within ``size``, and their end."""
    return max((ahead + step - 1) // step, 0), min((size + ahead + step - 1) // step, many)
