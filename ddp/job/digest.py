"""`digest`: one number for the state of a model, an optimizer, and whatever else has a state, to compare runs by."""

import hashlib
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

import engine


class Stateful(Protocol):
    """Whatever can be saved: modules, optimizers, schedulers."""

    def state_dict(self) -> dict[str, Any]: ...


def digest(*objects: Stateful) -> str:
    """SHA-256, as 64 hexadecimal digits, over the `state_dict` of each: names, dtypes, shapes and all bits.

        ddp.digest(net, optimizer)  # equal on all ranks, and on any number of them

    How tensors lie in memory does not matter. Raises TypeError for a value that has no bits of its own.
    """
    found = hashlib.sha256()
    for each in objects:
        _add(found, each.state_dict())
    return found.hexdigest()


def _add(found: Any, value: Any) -> None:
    if isinstance(value, engine.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        found.update(f"array {array.dtype} {array.shape};".encode())
        found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    elif isinstance(value, Mapping):
        found.update(f"mapping {len(value)};".encode())
        for key, each in value.items():
            _add(found, key)
            _add(found, each)
    elif isinstance(value, list | tuple | set | frozenset):
        found.update(f"sequence {len(value)};".encode())
        for each in sorted(value) if isinstance(value, set | frozenset) else value:
            _add(found, each)
    elif value is None or isinstance(value, bool | int | float | complex | str | bytes):
        found.update(f"{type(value).__name__} {value!r};".encode())
    else:
        raise TypeError(f"digest: a {type(value).__name__} in a state_dict has no bits that could be compared")
