"""Lines: what the collectives of a group go over, and which of them are under way.

Nothing makes progress here but while somebody calls it.
"""

import logging
from collections import deque
from typing import TYPE_CHECKING

from ddp import losses
from ddp.execution.leaving import free_settled, leave
from ddp.transport.under_way import under_way
from ddp.world.bootstrap import default_world

if TYPE_CHECKING:
    from mpi4py import MPI

    from ddp.execution.collective import Collective
    from ddp.groups.process_group import ProcessGroup
    from ddp.transport.room import Room

logger = logging.getLogger("ddp")


class Lines:
    """What the collectives of a group go over: a room where its ranks share memory, else MPI; and those under way.

    Making one is collective, so it belongs to the making of the group: by the first collective it would wait for the
    other ranks there, whatever that one's `async_op` and timeout say. It costs 0.1 ms (2 ranks, one node).
    """

    def __init__(self, group: "ProcessGroup") -> None:
        assert group.comm is not None
        free_settled()
        self.group = group
        self.bytes = group.comm.Dup()
        self.words = group.comm.Dup()
        self.room = None if group.transport_name == "mpi" else _enter_room(self.bytes)
        self.checks = group.comm.Dup() if self.room is None else None
        self.checking: deque[Collective] = deque()
        self.moving: list[Collective] = []
        self._has_left = False

    def advance(self) -> None:
        """See `ddp.transport.under_way.UnderWay`."""
        while self.checking and self.checking[0].is_checked():
            work = self.checking.popleft()
            work.start_moving()
            self.moving.append(work)
        self.moving = [work for work in self.moving if not work.has_moved()]
        if not self.checking and not self.moving:
            under_way.pop(id(self), None)
            if self._has_left and self.room is not None:
                self.room.close()

    def requests(self) -> "list[MPI.Request]":
        """The same."""
        found = [request for work in self.moving for request in work._requests]
        first = self.checking[0].check if self.checking else None
        return found if first is None else [first, *found]

    def watched(self) -> "Room | None":
        """The same."""
        return self.room if self.checking else None

    def abandon(self) -> None:
        """What is under way will never end: a rank is lost."""
        under_way.pop(id(self), None)

    def leave(self) -> None:
        """Collective, but waits for nobody: the group's communicators are not used any more. What is under way goes on:
        other ranks may come to it.
        """
        assert self.group.comm is not None
        self._has_left = True
        if self.room is not None and not self.checking and not self.moving:
            self.room.close()
        checks = () if self.checks is None else (self.checks,)
        comms = self.words, *checks, self.bytes, self.group.comm
        leave(comms, len(self.checking) + len(self.moving), self.group.unsettled)


def _enter_room(comm: "MPI.Intracomm") -> "Room | None":
    """Collective: memory of all these ranks, where they are on one node and can share some."""
    from mpi4py import MPI

    if not isinstance(comm, MPI.Intracomm) or losses.watching() is not None:
        return None  # ranks that are threads, of `ddp.testing`; or that may be lost, which MPI tells those that wait
    from ddp.transport.nodes import count_nodes
    from ddp.transport.room import Room

    world = default_world()
    if world.local_size < world.size and count_nodes(comm) > 1:
        return None
    try:
        return Room(comm)
    except RuntimeError as error:
        logger.warning("collectives go through MPI: %s", error)
        return None
