"""Equal bits give equal digests: the job that is attacked and who judges it compare states by them. Imports no MPI."""

import hashlib
from typing import Any

import numpy as np


def digest(*states: dict[str, Any]) -> str:
    """Of parameters, optimizer state and counters: equal bits give equal digests."""
    found = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, dict):
            for key in value:
                found.update(str(key).encode())
                add(value[key])
        elif isinstance(value, list | tuple):
            for each in value:
                add(each)
        else:
            found.update(np.asarray(value.numpy()).tobytes() if hasattr(value, "numpy") else repr(value).encode())

    for state in states:
        add(state)
    return found.hexdigest()
