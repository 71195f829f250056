"""Requests of a communicator of threads: the methods of mpi4py's Request that this package calls."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddp.testing.communicator import Comm


class Request:
    """Of something under way: `when` says at what time it happens, if that is known; `finish` writes the result."""

    def __init__(self, comm: "Comm", label: str, when: Callable[[], float | None], finish: Callable[[], None]) -> None:
        self._comm = comm
        self._label = label
        self._when = when
        self._finish = finish
        self._done = False

    def Test(self) -> bool:
        if not self._done:
            if self._when() is None:
                self._comm.turns.look(self._comm.number)
            if self._has_happened():
                self._end()
        return self._done

    def Wait(self) -> bool:
        if not self._done:
            self._comm.turns.wait(self._comm.number, self._when, self._label)
            self._end()
        return True

    @classmethod
    def Waitany(cls, requests: "Sequence[Request]") -> int:
        active = [request for request in requests if not request._done]
        assert active, "nothing is under way"
        comm = active[0]._comm
        labels = " and ".join(dict.fromkeys(request._label for request in active))

        def first() -> float | None:
            return min((time for request in active if (time := request._when()) is not None), default=None)

        comm.turns.wait(comm.number, first, labels)
        found = next(request for request in active if request._has_happened())
        found._end()
        return list(requests).index(found)

    def _has_happened(self) -> bool:
        time = self._when()
        return time is not None and time <= self._comm.turns.clocks[self._comm.number]

    def _end(self) -> None:
        self._done = True
        self._finish()
