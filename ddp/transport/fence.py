"""Memory order between processes: data must be visible before the number that announces it, and be read after it.

x86 keeps that order by itself, Arm does not: `MPI.Win.Sync` on a window of one byte, of this process alone, is the
fence, on both sides. Where ranks may be lost (`ddp.losses`) a lock is: Open MPI warns of windows there. What is before
its first release is visible before what is after its second acquisition.
"""

import threading

from mpi4py import MPI

from ddp import losses


class Fence:
    """`sync` is the fence. Nothing of it waits for other ranks."""

    def __init__(self) -> None:
        self._window: MPI.Win | None = None
        self._lock = threading.Lock()
        self.sync = self._lock_twice
        if losses.watching() is None:
            self._window = MPI.Win.Allocate_shared(1, 1, comm=MPI.COMM_SELF)  # its own: to free it waits for nobody
            self._window.Lock_all(MPI.MODE_NOCHECK)  # Win.Sync is only defined inside an access epoch
            self.sync = self._window.Sync

    def close(self) -> None:
        """Give the window back."""
        if self._window is not None:
            self._window.Unlock_all()
            self._window.Free()

    def _lock_twice(self) -> None:
        for _ in range(2):
            with self._lock:
                pass
