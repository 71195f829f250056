"""A communicator of ranks that are threads: the methods of mpi4py's Intracomm that this package calls.

What is sent is copied when it is posted; collectives are matched by their number in the communicator, messages by
source and tag in the order of posting.
"""

import pickle
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ddp.testing.contents import bytes_of, combine, fill, flat, is_in_place, memory_of, write
from ddp.testing.requests import Request
from ddp.testing.rooms import ANY, Meeting, Message, Network, Receive, Room, Slices
from ddp.testing.turns import Turns


class Comm:
    """See the module. `rank` of those in the room; rooms: all there are, by what they were made from. network: what
    messages take.
    """

    def __init__(
        self,
        turns: Turns,
        rooms: dict[Any, Room],
        key: Any,
        members: tuple[int, ...],
        number: int,
        network: Network | None = None,
    ) -> None:
        self.turns = turns
        self.number = number  # in the world
        self.network = network
        self._rooms = rooms
        self._key = key
        self._room = rooms[key] if key in rooms else rooms.setdefault(key, Room(members))
        self._meetings = 0
        self._groups: dict[tuple[int, ...], int] = {}
        self.rank = members.index(number)
        self.size = len(members)

    # --- collectives --------------------------------------------------------------------------------------------------

    def _meet(self, name: str, part: Any, take: Callable[[Meeting], None]) -> Request:
        """Brings this rank's part; `take` gets those of all, in rank order."""
        number = self._meetings
        self._meetings += 1
        meeting = self._room.meetings.get(number)
        if meeting is None:
            meeting = self._room.meetings[number] = Meeting(name, self._room.members)
        if meeting.name != name:
            raise RuntimeError(f"rank {self.number} calls {name} where another rank calls {meeting.name}")
        meeting.parts[self.rank] = part
        if self.network is not None:
            self.network.contribute(meeting, self.rank, part)
        meeting.came += 1
        if meeting.came == self.size:
            meeting.times = [0.0] * self.size
            if self.network is not None:
                self.network.complete(meeting)
            self.turns.tell(self._room.members[self.rank + 1 :] + self._room.members[: self.rank])

        def finish() -> None:
            take(meeting)
            meeting.left += 1
            if meeting.left == self.size:
                del self._room.meetings[number]

        return Request(self, name, lambda: None if meeting.times is None else meeting.times[self.rank], finish)

    def Iallreduce(self, send: Any, receive: Any, op: Any = None) -> Request:
        part = flat(receive if is_in_place(send) else send).copy()
        return self._meet("Allreduce", part, lambda all_: write(receive, all_.combine(partial(combine, op))))

    def Ireduce(self, send: Any, receive: Any, op: Any = None, root: int = 0) -> Request:
        part = flat(receive if is_in_place(send) else send).copy()

        def take(all_: Meeting) -> None:
            if self.rank == root:
                write(receive, combine(op, all_.parts))

        return self._meet("Reduce", part, take)

    def Ireduce_scatter_block(self, send: Any, receive: Any, op: Any = None) -> Request:
        part = flat(send).copy().reshape(self.size, -1)
        return self._meet(
            "Reduce_scatter_block", part, lambda all_: write(receive, all_.combine(partial(combine, op))[self.rank])
        )

    def Ibcast(self, buffer: Any, root: int = 0) -> Request:
        part = bytes_of(buffer) if self.rank == root else None
        return self._meet("Bcast", part, lambda all_: fill(buffer, all_.parts[root]) if self.rank != root else None)

    def Iallgather(self, send: Any, receive: Any) -> Request:
        rows = memory_of(receive).reshape(self.size, -1)
        part = rows[self.rank].tobytes() if is_in_place(send) else bytes_of(send)
        return self._meet("Allgather", part, lambda all_: fill(receive, all_.combine(b"".join)))

    def Iallgatherv(self, send: Any, receive: Any) -> Request:
        array, (counts, places) = receive[0], receive[1]
        memory = memory_of(array)
        begin, count = places[self.rank], counts[self.rank]
        part = memory[begin : begin + count].tobytes() if is_in_place(send) else bytes_of(send)

        def take(all_: Meeting) -> None:
            target = memory.data
            for place, content in zip(places, all_.parts, strict=True):
                target[place : place + len(content)] = content

        return self._meet("Allgatherv", part, take)

    def Ialltoallv(self, send: Any, receive: Any) -> Request:
        part = Slices(memoryview(bytes_of(send[0])), *send[1])

        def take(all_: Meeting) -> None:
            target = memory_of(receive[0]).data
            for place, (content, counts, begins) in zip(receive[1][1], all_.parts, strict=True):
                count, begin = counts[self.rank], begins[self.rank]
                target[place : place + count] = content[begin : begin + count]

        return self._meet("Alltoallv", part, take)

    def Ibarrier(self) -> Request:
        return self._meet("Barrier", None, lambda all_: None)

    def Allreduce(self, *arguments: Any) -> None:
        self.Iallreduce(*arguments).Wait()

    def Reduce(self, *arguments: Any) -> None:
        self.Ireduce(*arguments).Wait()

    def Reduce_scatter_block(self, *arguments: Any) -> None:
        self.Ireduce_scatter_block(*arguments).Wait()

    def Bcast(self, *arguments: Any) -> None:
        self.Ibcast(*arguments).Wait()

    def Allgather(self, *arguments: Any) -> None:
        self.Iallgather(*arguments).Wait()

    def Barrier(self) -> None:
        self.Ibarrier().Wait()

    # --- objects ------------------------------------------------------------------------------------------------------

    def allgather(self, value: Any) -> list[Any]:
        found: list[Any] = []
        self._meet("allgather", pickle.dumps(value), lambda all_: found.extend(map(pickle.loads, all_.parts))).Wait()
        return found

    def allreduce(self, value: Any, op: Any = None) -> Any:
        combined = combine(op, self.allgather(value))
        return combined.item() if isinstance(combined, np.generic) else combined

    def bcast(self, value: Any, root: int = 0) -> Any:
        found = [value]

        def take(all_: Meeting) -> None:
            if self.rank != root:
                found[0] = pickle.loads(all_.parts[root])

        self._meet("bcast", pickle.dumps(value) if self.rank == root else None, take).Wait()
        return found[0]

    def gather(self, value: Any, root: int = 0) -> list[Any] | None:
        found: list[Any] = []

        def take(all_: Meeting) -> None:
            if self.rank == root:
                found.extend(map(pickle.loads, all_.parts))

        self._meet("gather", pickle.dumps(value), take).Wait()
        return found if self.rank == root else None

    def scatter(self, values: Any, root: int = 0) -> Any:
        found: list[Any] = []
        own = [pickle.dumps(value) for value in values] if self.rank == root else None
        self._meet("scatter", own, lambda all_: found.append(pickle.loads(all_.parts[root][self.rank]))).Wait()
        return found[0]

    # --- messages -----------------------------------------------------------------------------------------------------

    def Isend(self, buffer: Any, dest: int, tag: int = 0) -> Request:
        content, target = bytes_of(buffer), self._room.members[dest]
        time = 0.0 if self.network is None else self.network.send(self.number, target, len(content))
        self._room.messages[dest].append(Message(self.rank, tag, content, time))
        self._match(dest)
        return Request(self, f"Send to rank {target}", lambda: 0.0, lambda: None)

    def Irecv(self, buffer: Any, source: int | None = None, tag: int = ANY) -> Request:
        expected = Receive(ANY if source is None or source < 0 else source, tag)
        self._room.receives[self.rank].append(expected)
        self._match(self.rank)
        who = "any rank" if expected.source == ANY else f"rank {self._room.members[expected.source]}"

        def finish() -> None:
            assert expected.message is not None
            fill(buffer, expected.message.content)

        return Request(
            self, f"Recv from {who}", lambda: None if expected.message is None else expected.message.time, finish
        )

    def _match(self, rank: int) -> None:
        """Gives the messages to a rank to those that expect them, in the order in which they were posted."""
        messages, receives = self._room.messages[rank], self._room.receives[rank]
        for expected in tuple(receives):
            for message in messages:
                if expected.fits(message):
                    expected.message = message
                    messages.remove(message)
                    receives.remove(expected)
                    break
        self.turns.tell((self._room.members[rank],))

    # --- other communicators ------------------------------------------------------------------------------------------

    def _made(self, key: Any, members: tuple[int, ...]) -> "Comm":
        return Comm(self.turns, self._rooms, (self._key, key), members, self.number, self.network)

    def Dup(self) -> "Comm":
        number = self._meetings
        self._meet("Dup", None, lambda all_: None).Wait()
        return self._made(number, self._room.members)

    def Split(self, color: int = 0, key: int = 0) -> "Comm":
        number = self._meetings
        everyone = sorted((k, r) for r, (c, k) in enumerate(self.allgather((color, key))) if c == color)
        return self._made((number, color), tuple(self._room.members[rank] for _, rank in everyone))

    def Split_type(self, kind: int, key: int = 0) -> "Comm":
        """Nobody shares memory with another rank."""
        return self.Split(self.rank)

    def Get_group(self) -> "Group":
        return Group(self._room.members)

    def Create_group(self, group: "Group", tag: int = 0) -> "Comm":
        count = self._groups[group.members] = self._groups.get(group.members, 0) + 1
        made = self._made((group.members, count), group.members)
        made.Barrier()
        return made

    def Free(self) -> None:
        """Rooms are forgotten with the world."""


class Group:
    """Ranks, as numbers in the world."""

    def __init__(self, members: tuple[int, ...]) -> None:
        self.members = members

    def Incl(self, ranks: Sequence[int]) -> "Group":
        return Group(tuple(self.members[rank] for rank in ranks))

    def Free(self) -> None:
        """Nothing is held."""
