"""Device memory handed to MPI, which knows nothing of streams: the host must have waited for what was written."""

import sys
from typing import Any

from tests.cuda_simulator import execution, races

_before: Any = None  # mpi4py's own `MPI.buffer`, while ours is in its place


class _Buffer:
    """In place of `mpi4py.MPI.buffer`."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_before, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _before(*args, **kwargs)

    def fromaddress(self, address: int, nbytes: int, readonly: bool = False) -> Any:
        host_access(address, nbytes)
        return _before.fromaddress(address, nbytes, readonly)


def host_access(address: int, size: int) -> None:
    """The host, or a library that knows no streams, is about to look at these bytes of device memory.

    Raises: RaceError where a stream may still be writing them.
    """
    touched = execution.range_of(address, size) if size else None
    if touched is None:
        return
    block, start, stop = touched
    pending = [
        each.what
        for each in block.history.seen()
        if each.start < stop and start < each.stop and races.HOST.get(each.timeline, 0) < each.tick
    ]
    if pending:
        races.report(f"race: {races.place()} hands device memory to the host that {pending[0]} may still be writing")


def put_in_place() -> None:
    """Buffers that mpi4py makes of addresses are checked from now on."""
    global _before
    module = sys.modules.get("mpi4py.MPI")
    if module is not None and _before is None:
        _before = module.buffer  # type: ignore[attr-defined]
        module.buffer = _Buffer()  # type: ignore[attr-defined]


def take_away() -> None:
    """They are not any more."""
    global _before
    if _before is not None:
        sys.modules["mpi4py.MPI"].buffer = _before  # type: ignore[attr-defined]
        _before = None
