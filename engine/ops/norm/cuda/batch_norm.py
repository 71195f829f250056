"""Batch norm and group norm on the device: grids and blocks of `batch_norm.cu`.

An image is planes (N, C, L) row-major, or channels-last rows (M, C) with M = N L; its samples matter to groups only.
Element types float32, float64, float16 and bfloat16; statistics, weight, bias and what is summed up are in float32 for
the half types, else in the image's dtype.
"""

from typing import Any, NamedTuple

import numpy as np

from engine.kernels.cuda.launch import Source
from engine.kernels.cuda.rows import flat_grid, macros, pointer, variants, width, work_type
from engine.memory import backend

Array = Any

SOURCE = Source(
    "ops/norm/cuda/batch_norm.cu",
    [
        *("moments_of_planes", "moments_of_rows", "channel_statistics", "group_statistics", "rstd_of"),
        *("normalise_planes", "normalise_rows", "slope_sums_of_planes", "slope_sums_of_rows", "channel_slopes"),
        *("group_slopes", "group_parameter_slopes", "input_slopes_of_planes", "input_slopes_of_rows"),
    ],
    variants(),
    headers=["rows.cuh"],
)

_BLOCKS = 1024  # about so many blocks share an image whose parts are summed up on their own
_ELEMENTS_A_PART = 2048  # a block's part of a channel has at least about so many elements, or rows / 16


class _Image(NamedTuple):
    """How an image lies and is divided. pixels: 0 for rows. samples: 1 for the rows of batch norm."""

    samples: int
    channels: int
    pixels: int
    a_sample: int  # elements of a channel in a sample
    a_part: int  # samples of a part of planes, rows of a part of rows
    parts: int  # in all (planes), or of a sample (rows)

    @property
    def all_parts(self) -> int:
        return self.parts if self.pixels else self.parts * self.samples


def batch_norm_forward(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array | None,
    running_variance: Array | None,
    momentum: float,
    eps: float,
) -> tuple[Array, Array, Array]:
    """(out, mean (C,), rstd (C,)) by the image's own statistics; the running ones, in the dtype of statistics, move."""
    image = _divided(x, x.shape[0], 0)
    means, squares = _moments(x, image)
    mean, rstd = _vectors(x, image.channels, 2)
    count = x.size // max(image.channels, 1)
    a_part = image.a_part * (image.pixels or 1)
    if x.size:
        _by_channel(
            "channel_statistics",
            x,
            image.channels,
            means,
            squares,
            np.int64(image.parts),
            np.int64(image.channels),
            np.int64(count),
            np.int64(a_part),
            np.float64(eps),
            mean,
            rstd,
            pointer(running_mean),
            pointer(running_variance),
            np.float64(momentum),
        )
    return normalised(x, mean, rstd, weight, bias), mean, rstd


def group_norm_forward(
    x: Array, samples: int, weight: Array | None, bias: Array | None, groups: int, eps: float
) -> tuple[Array, Array, Array]:
    """(out, mean (N, G), rstd (N, G)) of an image with elements."""
    together = x.reshape(samples, groups, -1) if x.ndim == 3 else x  # a group of planes lies side by side
    image = _divided(together, samples, groups)
    means, squares = _moments(together, image)
    mean, rstd = (vector.reshape(samples, groups) for vector in _vectors(x, samples * groups, 2))
    launch = SOURCE.get("group_statistics", **macros(1, x))
    sizes = (samples, 1 if image.pixels else image.parts, image.channels, groups, image.a_sample)
    a_part = image.a_sample if image.pixels else image.a_part
    launch(
        *flat_grid(samples * groups * 32, 128),
        (means, squares, *map(np.int64, (*sizes, a_part)), np.float64(eps), mean, rstd),
    )
    return normalised(x, mean, rstd, weight, bias), mean, rstd


def rstd_of(variance: Array, eps: float) -> Array:
    """1 / sqrt(variance + eps) of running variances (C,)."""
    rstd = backend.require_cupy().empty_like(variance)
    if variance.size:
        launch = SOURCE.get("rstd_of", **macros(1, variance))
        launch(*flat_grid(variance.size), (variance, rstd, np.int64(variance.size), np.float64(eps)))
    return rstd


def normalised(x: Array, mean: Array, rstd: Array, weight: Array | None, bias: Array | None) -> Array:
    """(x - mean) * rstd * weight + bias, with statistics of channels (C,) or of samples and groups (N, G)."""
    out = backend.require_cupy().empty(x.shape, x.dtype)
    _over("normalise_planes", "normalise_rows", x, (out, mean, rstd, pointer(weight), pointer(bias)), mean, (x, out))
    return out


def batch_norm_backward(
    gradient: Array, x: Array, mean: Array, rstd: Array, weight: Array | None, needs_input: bool
) -> tuple[Array | None, Array, Array]:
    """Gradients of the image (None unless needed), weight and bias."""
    image = _divided(x, x.shape[0], 0)
    channels = image.channels
    totals, projections = _slope_sums(gradient, x, mean, image, 0)
    of_weight, of_bias, constant, multiple = _vectors(x, channels, 4)
    if not x.size:
        of_weight.fill(0)
        of_bias.fill(0)
        return backend.require_cupy().empty(x.shape, x.dtype) if needs_input else None, of_weight, of_bias
    sizes = map(np.int64, (image.parts, channels, x.size // channels))
    results = (of_weight, of_bias, constant, multiple)
    _by_channel("channel_slopes", x, channels, totals, projections, rstd, pointer(weight), *sizes, *results)
    to_x = _input_slopes(gradient, x, mean, rstd, weight, constant, multiple) if needs_input else None
    return to_x, of_weight, of_bias


def group_norm_backward(
    gradient: Array, x: Array, mean: Array, rstd: Array, weight: Array | None, needs: tuple[bool, bool, bool]
) -> tuple[Array | None, Array | None, Array | None]:
    """Gradients of the image, weight and bias that are needed; the image has elements."""
    samples, groups = mean.shape
    image = _divided(x, samples, groups)
    channels = image.channels
    group = channels // groups
    totals, projections = _slope_sums(gradient, x, mean, image, group)
    parts = 1 if image.pixels else image.parts
    to_x = of_weight = of_bias = None
    if needs[0]:
        constant, multiple = _vectors(x, samples * groups, 2)
        launch = SOURCE.get("group_slopes", **macros(1, x))
        sizes = map(np.int64, (samples, parts, channels, groups, image.a_sample * group))
        launch(
            *flat_grid(samples * groups * 32, 128),
            (totals, projections, rstd, pointer(weight), *sizes, constant, multiple),
        )
        to_x = _input_slopes(gradient, x, mean, rstd, weight, constant, multiple)
    if any(needs[1:]):
        of_weight, of_bias = _vectors(x, channels, 2)
        sizes = map(np.int64, (samples, parts, channels, groups))
        _by_channel("group_parameter_slopes", x, channels, totals, projections, rstd, *sizes, of_weight, of_bias)
    return to_x, of_weight if needs[1] else None, of_bias if needs[2] else None


def _divided(x: Array, samples: int, groups: int) -> _Image:
    """The parts of an image. groups: 0 for batch norm, where parts may hold several samples or cut through them."""
    if x.ndim == 3:
        _, channels, pixels = x.shape
        if groups:
            return _Image(samples, channels, pixels, pixels, 1, samples)
        a_part = max(_ELEMENTS_A_PART // max(pixels, 1), 1, -(-samples * channels // _BLOCKS))
        a_part = max(min(a_part, samples), 1)
        return _Image(samples, channels, pixels, pixels, a_part, max(-(-samples // a_part), 1))
    rows, channels = x.shape
    if not groups:
        samples = 1
    a_sample = rows // max(samples, 1)
    wanted = max(_BLOCKS * 64 // max(channels * samples, 1), 1)  # a block has 64 channels or so
    a_part = max(-(-a_sample // wanted), min(_ELEMENTS_A_PART // 16, a_sample), 1)
    return _Image(samples, channels, 0, a_sample, a_part, max(-(-a_sample // a_part), 1))


def _vectors(x: Array, length: int, count: int) -> list[Array]:
    cupy = backend.require_cupy()
    return [cupy.empty(length, work_type(x)) for _ in range(count)]


def _row_blocks(channels: int, elements: int) -> tuple[int, tuple[int, int]]:
    """(blocks along the channels, block) of the kernels over parts of rows."""
    packs = channels // elements
    wide = 32 if packs > 16 else 16 if packs > 8 else 8
    return -(-packs // wide), (wide, 256 // wide)


def _over_parts(name: str, image: _Image, arrays: tuple[Array, ...], arguments: tuple[Any, ...], *more: Any) -> None:
    """Launches a kernel over the parts of an image: `name`_of_planes or `name`_of_rows."""
    x = arrays[-1]
    if image.pixels:
        elements = width(image.pixels, *arrays[::-1])
        launch = SOURCE.get(f"{name}_of_planes", **macros(elements, x))
        sizes = map(np.int64, (image.samples, image.channels, image.pixels, image.a_part))
        accesses = image.a_part * (image.pixels // elements)
        threads = min(max(-(-accesses // 32) * 32, 32), 256)
        launch((image.channels * image.parts,), (threads,), (*arrays, *arguments, *sizes, *more))
        return
    elements = width(image.channels, *arrays[::-1])
    launch = SOURCE.get(f"{name}_of_rows", **macros(elements, x))
    blocks, block = _row_blocks(image.channels, elements)
    sizes = map(np.int64, (image.channels, image.a_sample, image.a_part, image.parts))
    launch((blocks * image.all_parts,), block, (*arrays, *arguments, *sizes, *more))


def _moments(x: Array, image: _Image) -> list[Array]:
    """Means and sums of squared distances from them, (parts, channels)."""
    found = _vectors(x, image.all_parts * image.channels, 2)
    if x.size:
        _over_parts("moments", image, (x,), tuple(found))
    return found


def _slope_sums(gradient: Array, x: Array, mean: Array, image: _Image, group: int) -> list[Array]:
    """Sums of the gradient and of its products with x - mean, (parts, channels)."""
    found = _vectors(x, image.all_parts * image.channels, 2)
    if x.size:
        _over_parts("slope_sums", image, (gradient, x), (mean, *found), np.int64(group))
    return found


def _by_channel(kernel: str, x: Array, channels: int, *arguments: Any) -> None:
    SOURCE.get(kernel, **macros(1, x))((-(-channels // 32),), (32, 32), arguments)


def _input_slopes(
    gradient: Array, x: Array, mean: Array, rstd: Array, weight: Array | None, constant: Array, multiple: Array
) -> Array:
    out = backend.require_cupy().empty(x.shape, x.dtype)
    arguments = (x, out, mean, rstd, pointer(weight), constant, multiple)
    names = "input_slopes_of_planes", "input_slopes_of_rows"
    _over(*names, gradient, arguments, mean, (gradient, x, out))
    return out


def _over(
    planes: str, rows: str, first: Array, arguments: tuple[Any, ...], statistics: Array, arrays: tuple[Array, ...]
) -> None:
    """Launches a kernel over a whole image with statistics of channels or of samples and groups."""
    if not first.size:
        return
    channels = first.shape[1]
    group = channels // statistics.shape[1] if statistics.ndim == 2 else 0
    inner = first.shape[2] if first.ndim == 3 else channels
    elements = width(inner, *arrays)
    sizes = [first.size // elements, channels, inner // elements, group]
    if first.ndim == 2:
        sizes.append(first.shape[0] // statistics.shape[0] if group else 1)
    launch = SOURCE.get(planes if first.ndim == 3 else rows, **macros(elements, first))
    launch(*flat_grid(sizes[0]), (first, *arguments, *map(np.int64, sizes)))
