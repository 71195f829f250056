"""Devices: where a tensor's memory lives. `device("cpu")`, `device("cuda", 0)`, `device("meta")`, interned by (type,
index). And the default one, of this thread, where factories put tensors.
"""

import os
import threading
from typing import Any, ClassVar, Self

_given = os.environ.get("ALLSTRIDE_GPU", "")
ASSIGNED_GPU = int(_given) if _given.isdecimal() else 0
"""Which GPU "cuda" is, and the one in use at first: what `ddprun` has given to this rank, by ALLSTRIDE_GPU."""

DEVICE_TYPES = ("cpu", "cuda", "meta")


class device:
    """A device type and, for "cuda", an index. Equal devices are the same object, so `is` compares them.

    Args: type: "cpu", "cuda", "meta", or "cuda:1"; index: which GPU (default for "cuda": the one that `ddprun` has
    given to this rank, else 0).
    Raises: RuntimeError for an unknown type or a malformed string (PyTorch's error type), listing what is known.
    """

    __slots__ = ("index", "type")
    type: str
    index: int | None
    _interned: ClassVar[dict[tuple[str, int | None], "device"]] = {}

    def __new__(cls, type: "str | int | device", index: int | None = None) -> Self:
        if isinstance(type, cls):
            if type is not cls._interned.get(("cuda", None)):
                return type
            type = "cuda"
        if isinstance(type, int):
            index = type
            type = "cuda"
        if not isinstance(type, str):
            raise TypeError(f"device: expected a string, an index or a device, got {type!r}")
        name, _, suffix = type.partition(":")
        if name not in DEVICE_TYPES or (suffix and not suffix.isdigit()) or (suffix and index is not None):
            raise RuntimeError(
                f"device: unknown device {type!r}; known are {', '.join(DEVICE_TYPES)} (and 'cuda:INDEX')"
            )
        if suffix:
            index = int(suffix)
        if name == "cuda" and index is None:
            index = ASSIGNED_GPU
        if name != "cuda":
            index = None
        return cls._known(name, index)

    @classmethod
    def _known(cls, type: str, index: int | None) -> Self:
        known = cls._interned.get((type, index))
        if known is None:
            known = object.__new__(cls)
            known.type, known.index = type, index
            cls._interned[type, index] = known
        return known  # type: ignore[return-value]

    def __repr__(self) -> str:
        return (
            f"device(type={self.type!r})" if self.index is None else f"device(type={self.type!r}, index={self.index})"
        )

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"

    def __eq__(self, other: Any) -> bool:
        return self is other or (isinstance(other, str) and str(self) == other)

    __hash__ = object.__hash__  # there is one object a device, and a plan asks for it once an operand

    def __reduce__(self) -> tuple[Any, ...]:
        return (device, (self.type, self.index))

    def __enter__(self) -> Self:
        """`with device("meta"):` makes it the default inside the block."""
        default.before.append(default.device)
        default.device = device(self)
        return self

    def __exit__(self, *_: object) -> None:
        default.device = default.before.pop()


CPU = device("cpu")


def cuda_without_index() -> device:
    """For scripts that make a device of its name and an index of theirs; `device(...)` of it is that of "cuda"."""
    return device._known("cuda", None)


class _Default(threading.local):
    device = CPU

    def __init__(self) -> None:
        self.before: list[device] = []  # what the open `with` blocks will restore


default = _Default()


def set_default_device(device: Any) -> None:
    """Where this thread's factories put tensors when no device is given; None for host memory."""
    default.device = CPU if device is None else _device(device)


def get_default_device() -> device:
    """Where this thread's factories put tensors when no device is given."""
    return default.device


_device = device  # for functions with an argument of that name
