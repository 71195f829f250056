"""Maximum and average pooling on the device: grids of `pool.cu`.

Images are planes (planes, d..., 1) or channels-last (N, d..., C), row-major, with one to three spatial axes, of a
floating point dtype; half types are summed up in float32. Positions in the plane are int32.
"""

from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from engine.kernels.cuda.launch import CUDA_TYPES, Source, cuda_type
from engine.kernels.cuda.rows import FLOATS, flat_grid
from engine.memory import backend

Array = Any
Axes = tuple[int, ...]

SOURCE = Source(
    "ops/pooling/pool.cu",
    ["max_pool_forward", "max_pool_backward", "avg_pool_forward", "avg_pool_backward"],
    [{"ELEMENT": CUDA_TYPES[name], "WIDTH": "1"} for name in FLOATS],
    headers=["rows.cuh"],
)


class Windows:
    """Windows over the spatial axes: fixed ones by kernel, stride, padding and dilation, or without a kernel adaptive
    ones, which share an axis evenly."""

    def __init__(
        self, size: Axes, out: Axes, kernel: Axes = (), stride: Axes = (), padding: Axes = (), dilation: Axes = ()
    ) -> None:
        assert max(prod(size), prod(out)) < 2**31
        self.size, self.out = size, out
        missing = 3 - len(size)
        fixed = bool(kernel)
        given = (
            (size, 1),
            (out, 1),
            (kernel or (0,) * len(size), 1 if fixed else 0),
            (stride or (1,) * len(size), 1),
            (padding or (0,) * len(size), 0),
            (dilation or (1,) * len(size), 1),
        )
        self.arguments = tuple(np.int32(number) for axes, fill in given for number in ((fill,) * missing + tuple(axes)))


@lru_cache(1024)
def windows_of(size: Axes, out: Axes, *window: Axes) -> Windows:
    """The one Windows with these properties."""
    return Windows(size, out, *window)


def max_pool_forward(image: Array, windows: Windows) -> tuple[Array, Array]:
    """(maxima, their positions int32), both (outer, out..., inner)."""
    cupy = backend.require_cupy()
    shape = (image.shape[0], *windows.out, image.shape[-1])
    best, place = cupy.empty(shape, image.dtype), cupy.empty(shape, np.int32)
    _launch("max_pool_forward", best, (image, best, place), (), windows)
    return best, place


def max_pool_backward(gradient: Array, place: Array, windows: Windows) -> Array:
    """The gradient of the image (outer, size..., inner)."""
    shape = (gradient.shape[0], *windows.size, gradient.shape[-1])
    out = backend.require_cupy().empty(shape, gradient.dtype)
    _launch("max_pool_backward", out, (gradient, place, out), (), windows)
    return out


def avg_pool_forward(image: Array, windows: Windows, count_padding: bool, divisor: int | None) -> Array:
    """Means (outer, out..., inner)."""
    out = backend.require_cupy().empty((image.shape[0], *windows.out, image.shape[-1]), image.dtype)
    numbers = (np.int32(count_padding), np.int32(divisor or 0))
    _launch("avg_pool_forward", out, (image, out), numbers, windows)
    return out


def avg_pool_backward(gradient: Array, windows: Windows, count_padding: bool, divisor: int | None) -> Array:
    """The gradient of the image (outer, size..., inner)."""
    out = backend.require_cupy().empty((gradient.shape[0], *windows.size, gradient.shape[-1]), gradient.dtype)
    numbers = (np.int32(count_padding), np.int32(divisor or 0))
    _launch("avg_pool_backward", out, (gradient, out), numbers, windows)
    return out


def _launch(kernel: str, out: Array, arrays: tuple[Array, ...], numbers: tuple[Any, ...], windows: Windows) -> None:
    """`out` says how many threads there are."""
    if out.size:
        launch = SOURCE.get(kernel, ELEMENT=cuda_type(out.dtype), WIDTH="1")
        sizes = np.int64(out.size), np.int64(out.shape[-1])
        launch(*flat_grid(out.size), (*arrays, *sizes, *numbers, *windows.arguments))
