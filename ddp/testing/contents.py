"""What travels: the bytes of buffers as mpi4py takes them, and values, which are combined in rank order."""

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from ddp.transport.summing import UFUNCS

_UFUNCS: dict[str, Callable[[Any, Any], Any]] = {**UFUNCS, "LAND": np.logical_and, "LOR": np.logical_or}


def is_in_place(buffer: Any) -> bool:
    from mpi4py import MPI

    return buffer is MPI.IN_PLACE


def flat(buffer: Any) -> np.ndarray:
    return np.asarray(buffer).reshape(-1)


def memory_of(buffer: Any) -> np.ndarray:
    """The bytes of an array, of a bytearray, or of the array in [array, ...]."""
    if isinstance(buffer, list):
        buffer = buffer[0]
    return buffer.reshape(-1).view(np.uint8) if isinstance(buffer, np.ndarray) else np.frombuffer(buffer, np.uint8)


def bytes_of(buffer: Any) -> bytes:
    return memory_of(buffer).tobytes()


def fill(buffer: Any, content: bytes) -> None:
    memory_of(buffer)[: len(content)] = np.frombuffer(content, np.uint8)


def write(target: Any, values: np.ndarray) -> None:
    target.reshape(-1)[...] = values


def combine(op: Any, parts: list[Any]) -> Any:
    """In rank order. op: mpi4py's, or its stand-in's; None is the sum."""
    from mpi4py import MPI

    name = "SUM" if op is None else next(name for name in _UFUNCS if op == getattr(MPI, name))
    return reduce(_UFUNCS[name], parts)
