"""Interpolation as one linear map an axis (`engine.ops.resample.operator`), and pixel shuffling.

Source: torch.nn.functional.interpolate, pixel_shuffle; aten/src/ATen/native/UpSample.h, cpu/UpSampleKernel.cpp
(positions, Keys' cubic with a = -0.75, or -0.5 with antialiasing).
"""

from functools import lru_cache
from math import prod
from types import ModuleType
from typing import Any

import numpy as np

from engine.calls.dispatch import apply
from engine.calls.listening import heard
from engine.calls.operator import define
from engine.ops.resample.operator import AxisMap, resample
from engine.ops.shared.windows import formatted, suggested_format
from engine.rules import layout
from engine.rules.dtypes import FLOATING_CATEGORY, float64, uint8
from engine.rules.layout import MemoryFormat
from engine.rules.spec import Spec
from engine.tensor import Tensor

Array = Any


def _step(old: int, new: int, scale: float | None, align_corners: bool) -> float:
    """Distance on the old axis between neighbours on the new one."""
    if align_corners:
        return (old - 1) / (new - 1) if new > 1 else 0.0
    return 1.0 / scale if scale else old / new


def _nearest(old: int, new: int, scale: float | None, align_corners: bool, exact: bool) -> AxisMap:
    if not exact and new in (old, 2 * old):  # whatever the scale was, as in PyTorch (UpSample.h, nearest_idx)
        scale = None
    # In single precision as in PyTorch: its rounding decides ties between neighbours.
    step = np.float32(_step(old, new, scale, False))
    at = np.arange(new, dtype=np.float32) + np.float32(0.5 if exact else 0)
    indices = np.minimum(np.floor(at * step).astype(np.int64), old - 1)[None]
    return AxisMap(old, indices, np.ones(indices.shape))


def _positions(old: int, new: int, scale: float | None, align_corners: bool) -> Array:
    step = _step(old, new, scale, align_corners)
    return step * np.arange(new) if align_corners else step * (np.arange(new) + 0.5) - 0.5


def _linear(old: int, new: int, scale: float | None, align_corners: bool) -> AxisMap:
    positions = np.maximum(_positions(old, new, scale, align_corners), 0)
    lower = np.minimum(positions.astype(np.int64), old - 1)
    share = np.clip(positions - lower, 0, 1)
    return AxisMap(old, np.stack([lower, np.minimum(lower + 1, old - 1)]), np.stack([1 - share, share]))


def _keys(distance: Array, a: float) -> Array:
    """Keys' cubic convolution kernel."""
    d = abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def _cubic(old: int, new: int, scale: float | None, align_corners: bool) -> AxisMap:
    positions = _positions(old, new, scale, align_corners)
    taps = np.floor(positions) + np.arange(-1, 3)[:, None]
    return AxisMap(old, np.clip(taps, 0, old - 1), _keys(positions - taps, -0.75))


def _antialiased(old: int, new: int, scale: float | None, align_corners: bool, cubic: bool) -> AxisMap:
    """The filter widened by the factor of reduction, its weights summing to 1 (Pillow's resampling)."""
    step = _step(old, new, scale, align_corners)
    widened = max(step, 1.0)
    support = (2 if cubic else 1) * widened
    centre = step * (np.arange(new) + 0.5)
    begin = np.maximum((centre - support + 0.5).astype(np.int64), 0)
    end = np.minimum((centre + support + 0.5).astype(np.int64), old)
    taps = begin + np.arange((end - begin).max())[:, None]
    distance = (taps - centre + 0.5) / widened
    weights = _keys(distance, -0.5) if cubic else np.maximum(1 - abs(distance), 0.0)
    inside = taps < end
    weights = np.where(inside, weights, 0.0)
    return AxisMap(old, np.where(inside, taps, -1), weights / weights.sum(axis=0))


@lru_cache(1024)
def _byte_map(mode: str, old: int, new: int, scale: float | None, align_corners: bool, antialias: bool) -> AxisMap:
    """The weights as multiples of 2^-p that fit into 16 bits, halves away from 0 (PyTorch's kernel of bytes)."""
    exact = _axis_map(mode, old, new, scale, align_corners, antialias)
    largest, bits = exact.weights.max(), 0
    while bits < 22 and int(0.5 + largest * 2 ** (bits + 1)) < 1 << 15:
        bits += 1
    whole = np.trunc(exact.weights * 2**bits + np.copysign(0.5, exact.weights))
    return AxisMap(old, exact.indices, whole / 2**bits)


@lru_cache(1024)
def _axis_map(mode: str, old: int, new: int, scale: float | None, align_corners: bool, antialias: bool) -> AxisMap:
    if mode.startswith("nearest"):
        return _nearest(old, new, scale, align_corners, exact=mode == "nearest-exact")
    if antialias:
        return _antialiased(old, new, scale, align_corners, cubic=mode == "bicubic")
    return (_cubic if mode == "bicubic" else _linear)(old, new, scale, align_corners)


@heard
def upsample(
    input: Tensor,
    size: tuple[int, ...],
    scales: tuple[float | None, ...],
    mode: str,
    align_corners: bool = False,
    antialias: bool = False,
) -> Tensor:
    """(N, C, d...) resized to (N, C, size...), one scale an axis or None where it follows from the sizes.

    Modes: nearest, nearest-exact, linear, bilinear, trilinear, bicubic. Of integers, uint8 is rounded after each axis,
    the last one first. Raises: RuntimeError for empty axes; NotImplementedError for other integers between which is to
    be interpolated.
    """
    if 0 in input.shape[1:] or any(new <= 0 for new in size):
        raise RuntimeError(
            f"interpolate: Input and output sizes should be greater than 0, but got input {list(input.shape)} and "
            "output size "
            f"{list(size)}"
        )
    plan = _byte_map if input.dtype is uint8 and len(size) == 2 and not mode.startswith("nearest") else _axis_map
    maps = tuple(
        plan(mode, old, new, scale, align_corners, antialias)
        for old, new, scale in zip(input.shape[2:], size, scales, strict=True)
    )
    wanted = suggested_format(input._spec)
    if input.dtype.category >= FLOATING_CATEGORY or mode.startswith("nearest"):
        return resample(input, maps, wanted)
    if input.dtype is not uint8:
        raise NotImplementedError(f'"{mode}" not implemented for {input.dtype}; convert with .float()')
    values = input.to(float64)  # in which the weights' multiples are summed exactly
    for axis in reversed(range(len(maps))):
        steps = [_axis_map("nearest", now, now, None, False, False) for now in values.shape[2:]]  # as they are
        steps[axis] = maps[axis]
        values = (resample(values, tuple(steps), wanted) + 0.5).floor().clamp(0, 255)  # halves go up
    return values.to(uint8)


# --- pixel shuffling --------------------------------------------------------------------------------------------------


def _shuffle_rule(input: Spec, factor: int, memory_format: MemoryFormat) -> Spec:
    *outer, channels, height, width = input.shape
    if channels % (factor * factor):
        raise RuntimeError(
            "pixel_shuffle expects its input's 'channel' dimension to be divisible by the square of upscale_factor, "
            "but "
            f"input.size(-3)={channels} is not divisible by {factor * factor}"
        )
    return formatted(input, (*outer, channels // factor**2, height * factor, width * factor), memory_format)


def _unshuffle_rule(input: Spec, factor: int, memory_format: MemoryFormat) -> Spec:
    *outer, channels, height, width = input.shape
    if height % factor or width % factor:
        raise RuntimeError(
            "pixel_unshuffle expects height and width to be divisible by downscale_factor, but got "
            f"{height} x {width} and {factor}"
        )
    return formatted(input, (*outer, channels * factor**2, height // factor, width // factor), memory_format)


def _shuffle(xp: ModuleType, input: Array, factor: int, memory_format: MemoryFormat) -> Array:
    *outer, channels, height, width = input.shape
    parts = input.reshape(prod(outer), channels // factor**2, factor, factor, height, width)
    if memory_format is layout.channels_last:
        rows = parts.transpose(0, 4, 2, 5, 3, 1).reshape(
            prod(outer), height * factor, width * factor, channels // factor**2
        )
        return rows.transpose(0, 3, 1, 2)
    shuffled = parts.transpose(0, 1, 4, 2, 5, 3)
    return shuffled.reshape(*outer, channels // factor**2, height * factor, width * factor)


def _unshuffle(xp: ModuleType, input: Array, factor: int, memory_format: MemoryFormat) -> Array:
    *outer, channels, height, width = input.shape
    parts = input.reshape(prod(outer), channels, height // factor, factor, width // factor, factor)
    if memory_format is layout.channels_last:
        rows = parts.transpose(0, 2, 4, 1, 3, 5).reshape(
            prod(outer), height // factor, width // factor, channels * factor**2
        )
        return rows.transpose(0, 3, 1, 2)
    unshuffled = parts.transpose(0, 1, 3, 5, 2, 4)
    return unshuffled.reshape(*outer, channels * factor**2, height // factor, width // factor)


PIXEL_SHUFFLE = define(
    "pixel_shuffle",
    rule=_shuffle_rule,
    forward=_shuffle,
    backward=(lambda g, nd, factor, memory_format: nd.pixel_unshuffle(g, factor, memory_format),),
    attributes="factor memory_format",
)
PIXEL_UNSHUFFLE = define(
    "pixel_unshuffle",
    rule=_unshuffle_rule,
    forward=_unshuffle,
    backward=(lambda g, nd, factor, memory_format: nd.pixel_shuffle(g, factor, memory_format),),
    attributes="factor memory_format",
)


def _factor(name: str, input: Tensor, factor: int) -> None:
    if input.ndim < 3:
        raise RuntimeError(
            f"{name} expects input to have at least 3 dimensions, but got input with {input.ndim} dimension(s)"
        )
    if factor <= 0:
        raise RuntimeError(f"{name} expects a positive factor, but got {factor}")


def pixel_shuffle(input: Tensor, upscale_factor: int, memory_format: MemoryFormat | None = None) -> Tensor:
    """(*, C r^2, H, W) -> (*, C, H r, W r). Shi et al. (2016).

    Raises RuntimeError if r^2 does not divide the channels.
    """
    _factor("pixel_shuffle", input, upscale_factor)
    return apply(PIXEL_SHUFFLE, (input,), (upscale_factor, memory_format or suggested_format(input._spec)))


def pixel_unshuffle(input: Tensor, downscale_factor: int, memory_format: MemoryFormat | None = None) -> Tensor:
    """(*, C, H r, W r) -> (*, C r^2, H, W). Raises RuntimeError if r does not divide height and width."""
    _factor("pixel_unshuffle", input, downscale_factor)
    return apply(PIXEL_UNSHUFFLE, (input,), (downscale_factor, memory_format or suggested_format(input._spec)))
