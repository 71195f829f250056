"""Padding: by a constant, by reflection, by repetition of the border, and around the circle."""

from collections.abc import Sequence

from engine import ops
from engine.tensor import Tensor


def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    """Pads the last axes; `pad` is (before, after) of the last axis, then of the one before it, and so on.

    "constant" takes any number of axes and negative values (which crop); "reflect", "replicate" and "circular" pad all
    but the first one or two axes. Raises: RuntimeError, ValueError or NotImplementedError for sizes that cannot be.
    """
    return ops.pad(input, pad, mode, value)
