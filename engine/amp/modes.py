"""Which autocast blocks this thread is in, and the casts of weights they share. `autocast` opens them."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from engine.autograd.modes import carry, state
from engine.ops.copy.operator import converted
from engine.rules.dtypes import bfloat16, dtype, float16, float32
from engine.tensor import Tensor

DEVICE_TYPES = ("cpu", "cuda")


class _Modes(threading.local):
    """The thread's switches, as PyTorch names them.

    active: one of `enabled` is true. inside: a function whose arguments were cast is running, so nothing it calls is
    looked at. casts: see `cast`.
    """

    def __init__(self) -> None:
        self.active = self.inside = False
        self.cache_enabled = True
        self.nesting = 0
        self.enabled = dict.fromkeys(DEVICE_TYPES, False)
        self.dtypes: dict[str, dtype] = {"cpu": bfloat16, "cuda": float16}
        self.casts: dict[tuple[int, dtype, bool], tuple[Tensor, int, Tensor]] = {}

    def signature(self) -> tuple[Any, ...]:
        """What decides which dtypes operators choose."""
        return tuple((device_type, self.dtypes[device_type]) for device_type, on in self.enabled.items() if on)


modes = _Modes()
carry(modes)


@contextmanager
def own_casts() -> Iterator[None]:
    """Inside, casts of weights are not shared with what is around."""
    before, modes.casts = modes.casts, {}
    try:
        yield
    finally:
        modes.casts = before


def eligible(value: Any, device_type: str) -> bool:
    """Whether autocast may change the dtype: a floating point tensor on the device that is no float64."""
    return (
        isinstance(value, Tensor)
        and value._spec.dtype.is_floating_point
        and value._spec.dtype.itemsize < 8
        and value._spec.device.type == device_type
    )


def cast(value: Tensor, kind: dtype) -> Tensor:
    """The tensor in another dtype, recorded.

    A float32 leaf that trains is cast once until the outermost block is left. The cast is made anew once the weight was
    written, and not shared between calls that are recorded and calls that are not.
    """
    if value._spec.dtype is kind:
        return value
    if not (modes.cache_enabled and value._requires_grad and value._grad_fn is None and value._base is None):
        return converted(value, kind)
    if kind is float32 or value._spec.dtype is not float32:
        return converted(value, kind)
    key = (id(value), kind, state.grad_enabled)
    found = modes.casts.get(key)
    if found is not None and found[1] == value._version:
        return found[2]
    made = converted(value, kind)
    modes.casts[key] = (value, value._version, made)  # the weight, too, so that its id stays its own
    return made
