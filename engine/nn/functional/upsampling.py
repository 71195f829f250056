"""Resampling: interpolate axis by axis, pixel shuffling."""

import math
from collections.abc import Sequence
from typing import Any

from engine import ops
from engine.calls.listening import heard
from engine.rules import layout
from engine.tensor import Tensor

_DIMS_OF = {"linear": 1, "bilinear": 2, "bicubic": 2, "trilinear": 3}
_NEAREST = ("nearest", "nearest-exact")


@heard
def interpolate(
    input: Tensor,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """Resizes the spatial axes of (N, C, d...) to `size`, or by `scale_factor`.

    Modes: nearest, nearest-exact, area (1 to 3 spatial axes), linear (1), bilinear and bicubic (2), trilinear (3).
    Raises: ValueError for contradictory arguments, NotImplementedError for a mode that does not fit the input.
    """
    if mode in (*_NEAREST, "area") and align_corners is not None:
        raise ValueError(
            "align_corners option can only be set with the interpolating modes: linear | bilinear | bicubic | trilinear"
        )
    dims = input.dim() - 2
    if antialias and mode not in ("bilinear", "bicubic"):
        raise ValueError(
            "Anti-alias option is restricted to bilinear and bicubic modes and requires a 4-D tensor as input"
        )
    if mode not in (*_NEAREST, "area", *_DIMS_OF) or dims not in (1, 2, 3):
        raise NotImplementedError(
            f"Input Error: Only 3D, 4D and 5D input Tensors supported (got {input.dim()}D) for the modes: nearest | "
            f"linear | bilinear | bicubic | trilinear | area | nearest-exact (got {mode})"
        )
    if mode in _DIMS_OF and _DIMS_OF[mode] != dims:
        raise NotImplementedError(f"Got {input.dim()}D input, but {mode} mode needs {_DIMS_OF[mode] + 2}D input")
    sizes, scales = _target(input, size, scale_factor, bool(recompute_scale_factor) or mode == "area")
    if mode == "area":
        return (ops.adaptive_avg_pool1d, ops.adaptive_avg_pool2d, ops.adaptive_avg_pool3d)[dims - 1](input, sizes)
    return ops.upsample(input, sizes, scales, mode, bool(align_corners), antialias)


def _target(
    input: Tensor, size: Any, scale_factor: Any, recompute: bool
) -> tuple[tuple[int, ...], tuple[float | None, ...]]:
    """(output sizes, the scale each axis was given or None where it follows from the sizes)."""
    dims = input.dim() - 2
    spatial = tuple(input.shape[2:])
    if (size is None) == (scale_factor is None):
        raise ValueError(
            "either size or scale_factor should be defined"
            if size is None
            else "only one of size or scale_factor should be defined"
        )
    given = size if size is not None else scale_factor
    values = tuple(given) if isinstance(given, list | tuple) else (given,) * dims
    if len(values) != dims:
        what = "output size" if size is not None else "scale_factor of shape"
        raise ValueError(
            "Input and output must have the same number of spatial dimensions, but got input with spatial "
            f"dimensions of {list(spatial)} and {what} {given}. Please provide input tensor in (N, C, d1, d2, "
            "...,dK) format."
        )
    if size is not None:
        if recompute and scale_factor is not None:
            raise ValueError("recompute_scale_factor is not meaningful with an explicit size.")
        return tuple(int(value) for value in values), (None,) * dims
    sizes = tuple(math.floor(old * scale) for old, scale in zip(spatial, values, strict=True))
    return sizes, (None,) * dims if recompute else tuple(float(value) for value in values)


@heard
def upsample(
    input: Tensor,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
) -> Tensor:
    """`interpolate` under its old name."""
    return interpolate(input, size, scale_factor, mode, align_corners)


def pixel_shuffle(input: Tensor, upscale_factor: int) -> Tensor:
    """(*, C r², H, W) -> (*, C, H r, W r). Shi et al. (2016). Raises RuntimeError if r² does not divide them."""
    return ops.pixel_shuffle(input, upscale_factor)


def pixel_unshuffle(input: Tensor, downscale_factor: int) -> Tensor:
    """(*, C, H r, W r) -> (*, C r², H, W). Raises RuntimeError if r does not divide height and width."""
    return ops.pixel_unshuffle(input, downscale_factor)


def channel_shuffle(input: Tensor, groups: int) -> Tensor:
    """(N, g · k, ...) -> the channels of the g groups interleaved. Zhang et al. (2018)."""
    samples, channels = input.shape[:2]
    if channels % groups:
        raise RuntimeError(
            f"Number of channels must be divisible by groups. Got {channels} channels and {groups} groups."
        )
    shuffled = input.reshape(samples, groups, channels // groups, -1).transpose(1, 2).reshape(input.shape)
    return shuffled.contiguous(memory_format=layout.suggest_memory_format(tuple(input.shape), input.stride()))


def upsample_nearest(input: Tensor, size: Any = None, scale_factor: Any = None) -> Tensor:
    """`interpolate(..., mode="nearest")`."""
    return interpolate(input, size, scale_factor, mode="nearest")


def upsample_bilinear(input: Tensor, size: Any = None, scale_factor: Any = None) -> Tensor:
    """`interpolate(..., mode="bilinear", align_corners=True)`."""
    return interpolate(input, size, scale_factor, mode="bilinear", align_corners=True)
