"""Version counters: how often memory was written in place, and up to which version the history of a view is true."""

from engine.autograd.modes import state


class VersionCounter:
    """How often a piece of memory was written in place; shared by a tensor, its views and its detached aliases."""

    __slots__ = ("last_writer", "value")

    def __init__(self) -> None:
        self.value = 0
        self.last_writer = ""  # name of the operator that wrote last, for the error message


class CopyCounter(VersionCounter):
    """Of a copy where PyTorch has a view: `conj` of complex numbers. Who writes there means the base, so nobody may."""

    __slots__ = ()


# Why a view cannot take its history anew from its base once their memory was written (`engine.ops.views.history`).
NO_GRAD, INFERENCE, MULTIPLE, CUSTOM_FUNCTION = 1, 2, 3, 4


def restricted(version: int, reason: int) -> int:
    """The `_view_version` of a restricted view made at `version`: a negative number, so that it equals no version."""
    return ~(version << 3 | reason)


def made_at(view_version: int) -> int:
    """The version at which a restricted view was made."""
    return ~view_version >> 3


def reason_of(view_version: int) -> int:
    """Why a view is restricted."""
    return ~view_version & 7


def version_of_view(version: int, source_version: int) -> int:
    """The `_view_version` of a view made now of a tensor whose own is `source_version` (0 or more unless
    restricted).
    """
    if not state.grad_enabled:
        return restricted(version, INFERENCE if state.inference else NO_GRAD)
    return version if source_version >= 0 else restricted(version, reason_of(source_version))
