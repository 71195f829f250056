"""Counts the blocking calls of MPI from outside, and notes those made while no wait is declared
(`ddp.watching.progress`).

`install()` comes before anything communicates: it puts subclasses of mpi4py's communicators, windows and requests in
the place of its own, which watch every call that may wait for another rank.
"""

import os
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

from mpi4py import MPI
from mpi4py.util import pkl5

import ddp
from ddp.watching import progress

# Of a communicator: whatever waits for others. What begins with I returns at once; the rest asks nobody.
_COLLECTIVE = """
    allgather allreduce alltoall barrier bcast gather reduce reduce_scatter scan scatter exscan allgatherv alltoallv
    gatherv scatterv reduce_scatter_block Dup Split Split_type Create Create_group Clone
"""
_MESSAGES = "Send Recv Ssend Sendrecv send recv ssend sendrecv Probe probe"
_WINDOW = "Fence Free Lock Lock_all Unlock Unlock_all Flush Flush_all Post Wait Complete Start"
_MAKERS = "Allocate Allocate_shared Create Create_dynamic"

undeclared: list[str] = []
"""The calls without a declared wait, with the line of the package."""
calls: Counter[str] = Counter()
"""How often which call was made."""
places: set[tuple[str, int]] = set()
"""Where in the package: file below ddp/, line."""

_here = os.path.dirname(ddp.__file__) + os.sep


def _note(name: str, size: int) -> None:
    if size == 1:
        return  # there is nobody to wait for
    calls[name] += 1
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not frame.f_code.co_filename.startswith(_here):
        frame = frame.f_back
    if frame is not None:
        places.add((os.path.relpath(frame.f_code.co_filename, _here), frame.f_lineno))
    if threading.current_thread() is not threading.main_thread() or progress.current_wait() is not None:
        return
    frames = [frame for frame in traceback.extract_stack() if frame.filename.startswith(_here)]
    if frames:
        frame = frames[-1]
        undeclared.append(f"{name} at {os.path.relpath(frame.filename, _here)}:{frame.lineno} ({frame.line})")


def _watched(kind: type, names: list[str], size: Callable[[Any], int]) -> dict[str, Any]:
    def method(name: str) -> Any:
        def call(self: Any, *arguments: Any, **keywords: Any) -> Any:
            _note(f"{kind.__name__}.{name}", size(self))
            result = getattr(super(type(self), self), name)(*arguments, **keywords)
            return _Comm(result) if type(result) is MPI.Intracomm and result != MPI.COMM_NULL else result

        return call

    known = {candidate for name in names for candidate in (name, name.capitalize()) if hasattr(kind, candidate)}
    return {name: method(name) for name in known}


class _Request(MPI.Request):
    """One of ours: whoever waits for it says so."""


def _nonblocking(name: str) -> Any:
    def call(self: Any, *arguments: Any, **keywords: Any) -> Any:
        calls[f"Intracomm.{name}"] += 1
        return _Request(getattr(MPI.Intracomm, name)(self, *arguments, **keywords))

    return call


_Comm: Any = None


def install() -> None:
    """From now on calls are noted; MPI has been started by then, and nothing else."""
    global _Comm
    comm, window = MPI.Intracomm, MPI.Win
    names = f"{_COLLECTIVE} {_MESSAGES}".split()
    methods = _watched(comm, names, lambda self: self.Get_size())
    methods |= {name: _nonblocking(name) for name in dir(comm) if name[0] == "I" and name[1:2].islower()}
    for name in ("Is_inter", "Is_intra", "Iprobe", "Improbe"):
        methods.pop(name, None)
    _Comm = type("SpyComm", (comm,), methods)
    for name in ("Wait", "wait"):
        setattr(_Request, name, _wait(name))
    for name in ("Waitall", "Waitany", "Waitsome"):
        setattr(_Request, name, _wait_for_some(name))
    spied = type("SpyWin", (window,), _watched(window, _WINDOW.split(), lambda self: self.Get_group().Get_size()))
    for name in _MAKERS.split():
        setattr(spied, name, _maker(spied, name))
    MPI.COMM_WORLD = _Comm(MPI.COMM_WORLD)
    MPI.Request, MPI.Win = _Request, spied
    for name in names:
        if hasattr(pkl5.Intracomm, name):
            setattr(pkl5.Intracomm, name, _pickled(name, getattr(pkl5.Intracomm, name)))


def _wait(name: str) -> Any:
    def call(self: Any, *arguments: Any, **keywords: Any) -> Any:
        _note(f"Request.{name}", 2)
        return getattr(super(_Request, self), name)(*arguments, **keywords)

    return call


def _wait_for_some(name: str) -> Any:
    original = getattr(MPI.Request, name)

    def call(*arguments: Any, **keywords: Any) -> Any:
        _note(f"Request.{name}", 2)
        return original(*arguments, **keywords)

    return staticmethod(call)


def _maker(spied: type, name: str) -> Any:
    original = getattr(MPI.Win, name)

    def call(*arguments: Any, comm: Any = MPI.COMM_SELF, **keywords: Any) -> Any:
        _note(f"Win.{name}", comm.Get_size())
        return spied(original(*arguments, comm=comm, **keywords))

    return staticmethod(call)


def _pickled(name: str, original: Any) -> Any:
    def call(self: Any, *arguments: Any, **keywords: Any) -> Any:
        _note(f"pkl5.{name}", self.Get_size())
        return original(self, *arguments, **keywords)

    return call
