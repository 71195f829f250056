"""Padding: by a constant (negative sizes crop), or from the image itself (reflect, replicate, circular).

Source: torch.nn.functional.pad; aten/src/ATen/native/PadNd.cpp (argument order, memory format of the result).
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np

from engine.calls.dispatch import apply
from engine.calls.listening import heard
from engine.calls.operator import define
from engine.ops.resample.operator import AxisMap, resample
from engine.ops.shared.scalars import checked
from engine.ops.shared.windows import Axes, formatted, suggested_format
from engine.rules import layout
from engine.rules.layout import contiguous_format
from engine.rules.spec import Spec
from engine.tensor import Tensor

# --- constant ---------------------------------------------------------------------------------------------------------


def _pairs(pad: Axes, ndim: int) -> list[tuple[int, int]]:
    """(before, after) of every axis in order.

    `pad` counts from the last axis: its pair first, then that of the one before it.
    """
    given = [(pad[at], pad[at + 1]) for at in range(0, len(pad), 2)]
    return [(0, 0)] * (ndim - len(given)) + given[::-1]


def _constant_rule(input: Spec, pad: Axes, value: Any) -> Spec:
    shape = []
    for axis, (size, (before, after)) in enumerate(zip(input.shape, _pairs(pad, input.ndim), strict=True)):
        if size + before + after < 0:
            raise RuntimeError(
                f"pad: The input size {size}, plus negative padding {before} and {after} resulted in a negative "
                "output size, "
                f"which is invalid. Check dimension {axis} of your input."
            )
        shape.append(size + before + after)
    if all(size <= 0 for size in pad):  # a copy of a part
        return input.like(shape=tuple(shape), stride=layout.preserve_strides(tuple(shape), input.stride))
    return formatted(input, tuple(shape), suggested_format(input))


def _constant(xp: ModuleType, input: Any, pad: Axes, value: Any) -> Any:
    kept, target, shape = [], [], []
    for size, (before, after) in zip(input.shape, _pairs(pad, input.ndim), strict=True):
        first, last = max(-before, 0), max(size + min(after, 0), 0)
        length = max(last - first, 0)
        kept.append(slice(first, first + length))
        target.append(slice(max(before, 0), max(before, 0) + length))
        shape.append(size + before + after)
    order = sorted(range(input.ndim), key=lambda axis: -abs(input.strides[axis]))  # the memory order of the input
    out = xp.full([shape[axis] for axis in order], value, input.dtype).transpose(np.argsort(order).tolist())
    out[tuple(target)] = input[tuple(kept)]
    return out


CONSTANT_PAD = define(
    "constant_pad_nd",
    rule=_constant_rule,
    forward=_constant,
    backward=(lambda g, nd, pad: nd.constant_pad_nd(g, tuple(-size for size in pad), 0.0),),
    attributes="pad value",
)


def constant_pad_nd(input: Tensor, pad: Sequence[int], value: float = 0.0) -> Tensor:
    """Pads the last len(pad) / 2 axes by `value`; negative sizes crop.

    Raises: RuntimeError for an odd number of sizes, more than the input has axes, or a negative result.
    """
    pad = tuple(int(size) for size in pad)
    if len(pad) % 2:
        raise RuntimeError(f"pad: Padding length must be divisible by 2, got {len(pad)}")
    if len(pad) // 2 > input.ndim:
        raise RuntimeError(
            "pad: Padding length should be less than or equal to two times the input dimension but got padding length "
            f"{len(pad)} and input of dimension {input.ndim}"
        )
    return apply(CONSTANT_PAD, (input,), (pad, checked("pad", value, input.dtype)))


# --- from the image ---------------------------------------------------------------------------------------------------


def _reflect(size: int, before: int, after: int) -> Any:
    if before >= size or after >= size:
        raise RuntimeError(
            "pad: Padding size should be less than the corresponding input dimension, but got: padding "
            f"({before}, {after}) at a dimension of size {size}"
        )
    return size - 1 - abs(size - 1 - abs(np.arange(-before, size + after)))


def _replicate(size: int, before: int, after: int) -> Any:
    if size == 0:
        raise RuntimeError("pad: replicate padding expects a non-empty dimension, got size 0")
    return np.clip(np.arange(-before, size + after), 0, size - 1)


def _circular(size: int, before: int, after: int) -> Any:
    if before > size or after > size:
        raise RuntimeError(
            f"pad: Padding value causes wrapping around more than once: padding ({before}, {after}) at a dimension of "
            f"size {size}"
        )
    return np.arange(-before, size + after) % max(size, 1)


_INDICES: dict[str, Callable[[int, int, int], Any]] = {
    "reflect": _reflect,
    "replicate": _replicate,
    "circular": _circular,
}


@lru_cache(1024)
def _padding_map(mode: str, size: int, before: int, after: int) -> AxisMap:
    if size + before + after <= 0:
        raise RuntimeError(
            f"pad: mode {mode!r} must leave at least one element, but a dimension of size {size} is padded by "
            f"({before}, {after})"
        )
    indices = _INDICES[mode](size, before, after)[None]
    return AxisMap(size, indices, np.ones(indices.shape))


@heard
def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    """Pads the last axes; `pad` is (before, after) of the last axis, then of the one before it, and so on.

    "constant" takes any number of axes; "reflect", "replicate" and "circular" pad all but the first one or two axes.
    Negative sizes crop. Raises: RuntimeError, ValueError or NotImplementedError for what cannot be.
    """
    if mode == "constant":
        return constant_pad_nd(input, pad, 0.0 if value is None else value)
    pad = tuple(int(size) for size in pad)
    if mode not in _INDICES:
        raise NotImplementedError(f"pad: Unrecognised padding mode {mode}; known are constant, {', '.join(_INDICES)}")
    if value is not None and value != 0:
        raise ValueError(f"pad: Padding mode '{mode}' doesn't take in value argument")
    if len(pad) % 2:
        raise RuntimeError(f"pad: Padding length must be divisible by 2, got {len(pad)}")
    dims = len(pad) // 2
    if input.ndim - dims not in (1, 2) or not 1 <= dims <= 3:
        raise NotImplementedError(
            f"pad: Only 2D, 3D, 4D, 5D padding with non-constant padding are supported for now: got {input.ndim}D "
            "input "
            f"and {len(pad)} padding sizes"
        )
    pairs = _pairs(pad, input.ndim)[-dims:]
    maps = tuple(_padding_map(mode, size, *pair) for size, pair in zip(input.shape[-dims:], pairs, strict=True))
    return resample(input, maps, contiguous_format if mode == "circular" else suggested_format(input._spec))
