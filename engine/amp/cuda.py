"""Unscaling gradients and adapting the loss scale on the device. Nothing here waits for it."""

from typing import Any

import numpy as np

from engine.kernels.cuda.launch import Source
from engine.memory import backend
from engine.ops.buckets import cuda as buckets
from engine.rules.spec import Spec
from engine.tensor.flat import flat_array

Array = Any

SOURCE = Source("amp/amp.cu", ["update_scale"], [{}])


def check(gradients: list[tuple[Array, Spec]], scale: Array | None, found: Array) -> None:
    """Divides gradients by `scale` (0-dim float32; None leaves them) and sets `found` (0-dim float32) to 1 where one is
    not finite.
    """
    cupy = backend.require_cupy()
    flat = [
        flat_array(array, spec) if spec.dense else cupy.ascontiguousarray(array).ravel() for array, spec in gradients
    ]
    if not flat:
        return
    if scale is None:
        found[...] = ~cupy.isfinite(buckets.norm(flat, power=0)[0])
        return
    buckets.scale(flat, by=cupy.reciprocal(scale), found_inf=found)
    for (array, spec), divided in zip(gradients, flat, strict=True):
        if not spec.dense:
            array[...] = divided.reshape(array.shape)


def update_scale(scale: Array, tracker: Array, found: Array, growth: float, backoff: float, interval: int) -> None:
    """See `engine.amp.gradients.update_scale`; `tracker` is int32, the others float32, all 0-dim."""
    arguments = (scale, tracker, found, np.float32(growth), np.float32(backoff), np.int32(interval))
    SOURCE.get("update_scale")((1,), (1,), arguments)
