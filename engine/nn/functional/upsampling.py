"""Resampling: interpolate axis by axis, pixel shuffling."""

import math
from collections.abc import Sequence
from typing import Any

import engine
from engine import ops
from engine.tensor import Tensor

_DIMS_OF = {"linear": 1, "bilinear": 2, "bicubic": 2, "trilinear": 3}
_NEAREST = ("nearest", "nearest-exact")


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
    Raises: ValueError for contradictory arguments, NotImplementedError for a mode that does not fit the input or
    antialias.
    """
    if mode in (*_NEAREST, "area") and align_corners is not None:
        raise ValueError(
            "align_corners option can only be set with the interpolating modes: linear | bilinear | bicubic | trilinear"
        )
    dims = input.dim() - 2
    if antialias:
        raise NotImplementedError("interpolate: antialias=True is not supported")
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
    for at in range(dims):
        axis, old, new = at + 2, input.shape[at + 2], sizes[at]
        if old == 0 or new <= 0:
            raise RuntimeError(
                f"Input and output sizes should be greater than 0, but got input (H, W): {list(input.shape[2:])} "
                f"output {sizes}"
            )
        if mode in _NEAREST:
            input = _resize_nearest(input, axis, old, new, scales[at], exact=mode == "nearest-exact")
        else:
            resize = _resize_cubic if mode == "bicubic" else _resize_linear
            input = resize(input, axis, _positions(old, new, scales[at], bool(align_corners), mode == "bicubic"))
    return input


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


def _resize_nearest(input: Tensor, axis: int, old: int, new: int, scale: float | None, exact: bool) -> Tensor:
    if not exact and new in (old, 2 * old):  # whatever the scale was, as in PyTorch
        where = engine.arange(new) // (new // old)
        return input.index_select(axis, where.to(input.device))
    ratio = 1.0 / scale if scale else old / new
    offset = 0.5 if exact else 0.0
    # single precision as in PyTorch, whose rounding decides ties between neighbours
    where = ((engine.arange(new, dtype=engine.float32) + offset) * ratio).floor().clamp(max=old - 1)
    return input.index_select(axis, where.to(engine.int64).to(input.device))


def _positions(old: int, new: int, scale: float | None, align_corners: bool, cubic: bool) -> list[float]:
    """Where on the old axis each new element lies."""
    if align_corners:
        step = (old - 1) / (new - 1) if new > 1 else 0.0
        return [step * at for at in range(new)]
    step = 1.0 / scale if scale else old / new
    positions = [step * (at + 0.5) - 0.5 for at in range(new)]
    return positions if cubic else [max(position, 0.0) for position in positions]


def _taps(input: Tensor, axis: int, taps: list[tuple[list[int], list[float]]]) -> Tensor:
    """Σ over taps of weight · input at index, along `axis`."""
    shape = [1] * input.dim()
    shape[axis] = -1
    total = None
    for indices, weights in taps:
        weight = engine.tensor(weights, dtype=input.dtype, device=input.device).view(shape)
        part = input.index_select(axis, engine.tensor(indices, dtype=engine.int64, device=input.device)) * weight
        total = part if total is None else total + part
    assert total is not None
    return total


def _resize_linear(input: Tensor, axis: int, positions: list[float]) -> Tensor:
    last = input.shape[axis] - 1
    lower = [min(int(position), last) for position in positions]
    upper = [min(at + 1, last) for at in lower]
    share = [position - at for position, at in zip(positions, lower, strict=True)]
    return _taps(input, axis, [(lower, [1 - part for part in share]), (upper, share)])


def _resize_cubic(input: Tensor, axis: int, positions: list[float]) -> Tensor:
    """Keys' cubic convolution with a = -0.75, as PyTorch."""
    a = -0.75
    last = input.shape[axis] - 1

    def weight(distance: float) -> float:
        d = abs(distance)
        if d <= 1:
            return ((a + 2) * d - (a + 3)) * d * d + 1
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a

    floors = [math.floor(position) for position in positions]
    taps = []
    for offset in (-1, 0, 1, 2):
        indices = [min(max(at + offset, 0), last) for at in floors]
        weights = [weight(position - at - offset) for position, at in zip(positions, floors, strict=True)]
        taps.append((indices, weights))
    return _taps(input, axis, taps)


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
    r = upscale_factor
    *outer, channels, height, width = input.shape
    if channels % (r * r):
        raise RuntimeError(
            "pixel_shuffle expects its input's 'channel' dimension to be divisible by the square of "
            f"upscale_factor, but input.size(-3)={channels} is not divisible by {r * r}"
        )
    parts = input.reshape(-1, channels // (r * r), r, r, height, width).permute(0, 1, 4, 2, 5, 3)
    return parts.reshape(*outer, channels // (r * r), height * r, width * r)


def pixel_unshuffle(input: Tensor, downscale_factor: int) -> Tensor:
    """(*, C, H r, W r) -> (*, C r², H, W). Raises RuntimeError if r does not divide height and width."""
    r = downscale_factor
    *outer, channels, height, width = input.shape
    if height % r or width % r:
        raise RuntimeError(
            f"pixel_unshuffle expects height and width to be divisible by downscale_factor, but got {height} x "
            f"{width} and {r}"
        )
    parts = input.reshape(-1, channels, height // r, r, width // r, r).permute(0, 1, 3, 5, 2, 4)
    return parts.reshape(*outer, channels * r * r, height // r, width // r)


def channel_shuffle(input: Tensor, groups: int) -> Tensor:
    """(N, g · k, ...) -> the channels of the g groups interleaved. Zhang et al. (2018)."""
    samples, channels = input.shape[:2]
    if channels % groups:
        raise RuntimeError(
            f"Number of channels must be divisible by groups. Got {channels} channels and {groups} groups."
        )
    return input.reshape(samples, groups, channels // groups, -1).transpose(1, 2).reshape(input.shape)
