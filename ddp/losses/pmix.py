"""Tells the MPI library of this process that another one has ended, where nobody else does.

Open MPI hears of ends from its launcher, by events of PMIx. The launcher says nothing of a process that ends with
another exit code than 0 past Python (`_exit(3)` in native code), and whoever shrinks a communicator waits for that one
for ever. An event that a process gives to itself is taken like the launcher's. Structures: PMIx 4 to 6, pmix_common.h.
"""

import ctypes
import os
import sys
from functools import cache
from typing import Any, NamedTuple


class Name(NamedTuple):
    """Of a process, as the launcher calls it."""

    space: str
    rank: int


def own_name() -> Name:
    """Of this process; empty where its launcher does not speak PMIx."""
    return Name(os.environ.get("PMIX_NAMESPACE", ""), int(os.environ.get("PMIX_RANK", "0")))


def tell_of_end(name: Name) -> None:
    """This process's MPI learns that the one of this name has ended, as soon as it is called the next time.

    Where there is no PMIx it does not.
    """
    library = _library()
    if library is None:
        return
    process = _Proc(name.space.encode(), name.rank)
    about = _Info(key=b"pmix.evproc", value=_Value(type=_PROC, data=_Data(proc=ctypes.pointer(process))))
    library.PMIx_Notify_event(
        ctypes.c_int(_ABORTED),
        ctypes.byref(process),
        ctypes.c_uint8(_TO_ITSELF),
        ctypes.byref(about),
        ctypes.c_size_t(1),
        None,
        None,
    )


_ABORTED = -7  # PMIX_ERR_PROC_ABORTED
_TO_ITSELF = 7  # PMIX_RANGE_PROC_LOCAL
_PROC = 22  # PMIX_PROC


class _Proc(ctypes.Structure):
    _fields_ = (("space", ctypes.c_char * 256), ("rank", ctypes.c_uint32))


class _Data(ctypes.Union):
    _fields_ = (("proc", ctypes.POINTER(_Proc)), ("room", ctypes.c_char * 24))


class _Value(ctypes.Structure):
    _fields_ = (("type", ctypes.c_uint16), ("data", _Data))


class _Info(ctypes.Structure):
    _fields_ = (("key", ctypes.c_char * 512), ("flags", ctypes.c_uint32), ("value", _Value))


@cache
def _library() -> Any:
    """The one that this process's MPI has loaded."""
    if sys.platform != "linux":
        return None
    with open("/proc/self/maps") as maps:
        found = {line.split(maxsplit=5)[-1].rstrip("\n") for line in maps if "/libpmix.so" in line}
    return ctypes.CDLL(found.pop()) if len(found) == 1 else None
