"""Padding the spatial axes: by a constant (negative sizes crop), or from the image itself (reflect, replicate, circular).

Source: torch.nn.functional.pad; aten/src/ATen/native/PadNd.cpp (constant_pad_nd, the argument order, the memory format).
"""

from collections.abc import Sequence
from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np

from engine.dispatch import apply, define
from engine.layout import contiguous_format
from engine.ops.resample import AxisMap, interned, resample
from engine.ops.windows import Axes, formatted, suggested_format
from engine.spec import Spec
from engine.tensor import Tensor

Pairs = tuple[tuple[int, int], ...]  # (before, after) of every axis, first axis first


def _pairs(pad: Axes, ndim: int) -> Pairs:
    """`pad` counts from the last axis: (before, after) of the last, then of the one before it, and so on."""
    given = [(pad[at], pad[at + 1]) for at in range(0, len(pad), 2)]
    return ((0, 0),) * (ndim - len(given)) + tuple(reversed(given))


def _constant_rule(input: Spec, pad: Axes, value: Any) -> Spec:
    shape = []
    for axis, (size, (before, after)) in enumerate(zip(input.shape, _pairs(pad, input.ndim), strict=True)):
        if size + before + after < 0:
            raise RuntimeError(
                f"pad: The input size {size}, plus negative padding {before} and {after} resulted in a negative output size, "
                f"which is invalid. Check dimension {axis} of your input."
            )
        shape.append(size + before + after)
    return formatted(input, tuple(shape), suggested_format(input))


def _constant(xp: ModuleType, input: Any, pad: Axes, value: Any) -> Any:
    pairs = _pairs(pad, input.ndim)
    inside = tuple(slice(max(-before, 0), size - max(-after, 0)) for size, (before, after) in zip(input.shape, pairs, strict=True))
    kept = input[inside]
    shape = tuple(size + max(before, 0) + max(after, 0) for size, (before, after) in zip(kept.shape, pairs, strict=True))
    order = sorted(range(input.ndim), key=lambda axis: -abs(input.strides[axis]))
    memory = xp.full([shape[axis] for axis in order], value, input.dtype)
    out = memory.transpose(np.argsort(order).tolist())
    out[tuple(slice(max(before, 0), max(before, 0) + size) for size, (before, _) in zip(kept.shape, pairs, strict=True))] = kept
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
        raise RuntimeError(f"pad: Length of pad must be even, but instead it equals {len(pad)}")
    if len(pad) // 2 > input.ndim:
        raise RuntimeError(
            f"pad: Length of pad should be no more than twice the number of dimensions of the input. Pad length is {len(pad)} "
            f"while the input has {input.ndim} dimensions."
        )
    return apply(CONSTANT_PAD, (input,), (pad, value))
