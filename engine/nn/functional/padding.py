"""Padding: by a constant, by reflection, by repetition of the border, and around the circle."""

from collections.abc import Sequence

import engine
from engine.tensor import Tensor


def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    """Pads the last axes; `pad` is (before, after) of the last axis, then of the one before it, and so on.

    "constant" takes any number of axes and negative values (which crop); "reflect", "replicate" and "circular" pad all
    but the first one or two axes. Raises: RuntimeError, ValueError or NotImplementedError for sizes that cannot be.
    """
    pad = tuple(int(size) for size in pad)
    if len(pad) % 2:
        raise RuntimeError(f"Padding length must be divisible by 2, got {len(pad)}")
    if len(pad) // 2 > input.dim():
        raise RuntimeError(
            "Padding length should be less than or equal to two times the input dimension but got padding length "
            f"{len(pad)} and input of dimension {input.dim()}"
        )
    if mode == "constant":
        return _constant(input, pad, 0.0 if value is None else value)
    if mode not in _INDICES:
        raise NotImplementedError(f"Unrecognised padding mode {mode}; known are constant, {', '.join(_INDICES)}")
    if value is not None and value != 0:
        raise ValueError(f"Padding mode '{mode}' doesn't take in value argument")
    if input.dim() - len(pad) // 2 not in (1, 2):
        raise NotImplementedError(
            f"Only 2D, 3D, 4D, 5D padding with non-constant padding are supported for now: got {input.dim()}D input "
            f"and {len(pad)} padding sizes"
        )
    for axis, before, after in _axes(input.dim(), pad):
        if before or after:
            indices = _INDICES[mode](input.shape[axis], before, after)
            input = input.index_select(axis, engine.tensor(indices, dtype=engine.int64, device=input.device))
    return input


def _axes(dims: int, pad: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """(axis, before, after), last axis first."""
    return [(dims - 1 - at, pad[2 * at], pad[2 * at + 1]) for at in range(len(pad) // 2)]


def _constant(input: Tensor, pad: tuple[int, ...], value: float) -> Tensor:
    for axis, before, after in _axes(input.dim(), pad):
        size = input.shape[axis] + before + after
        if size < 0:
            raise RuntimeError(
                f"The input size {input.shape[axis]}, plus negative padding {before} and {after} resulted in a "
                f"negative output size, which is invalid. Check dimension {axis} of your input."
            )
        if before < 0 or after < 0:
            first = max(-before, 0)
            input = input.narrow(axis, first, input.shape[axis] - first - max(-after, 0))
        if before > 0 or after > 0:
            parts = [input]
            for at, width in ((0, before), (len(parts) + 1, after)):
                if width > 0:
                    shape = list(input.shape)
                    shape[axis] = width
                    parts.insert(at, input.new_full(shape, value))
            input = engine.cat(parts, axis)
    return input


def _reflect(size: int, before: int, after: int) -> list[int]:
    if before >= size or after >= size:
        raise RuntimeError(
            f"Padding size should be less than the corresponding input dimension, but got: padding ({before}, "
            f"{after}) at size {size}"
        )
    return [size - 1 - abs(size - 1 - abs(at)) for at in range(-before, size + after)]


def _replicate(size: int, before: int, after: int) -> list[int]:
    if size == 0:
        raise RuntimeError("replicate padding: expected a non-empty dimension")
    return [min(max(at, 0), size - 1) for at in range(-before, size + after)]


def _circular(size: int, before: int, after: int) -> list[int]:
    if before > size or after > size:
        raise RuntimeError("Padding value causes wrapping around more than once.")
    return [at % size for at in range(-before, size + after)]


_INDICES = {"reflect": _reflect, "replicate": _replicate, "circular": _circular}
