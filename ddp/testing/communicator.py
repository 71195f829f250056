"""A communicator of ranks that are threads: the methods of mpi4py's Intracomm that this package calls.

What is sent is copied when it is posted; collectives are matched by their number in the communicator, messages by
source and tag in the order of posting. Values are combined in rank order.
"""

import pickle
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from ddp.testing.turns import Turns

_UFUNCS: dict[str, Callable[[Any, Any], Any]] = {
    "SUM": np.add,
    "PROD": np.multiply,
    "MIN": np.minimum,
    "MAX": np.maximum,
    "BAND": np.bitwise_and,
    "BOR": np.bitwise_or,
    "BXOR": np.bitwise_xor,
    "LAND": np.logical_and,
    "LOR": np.logical_or,
}
_ANY = -1  # source or tag


class Meeting:
    """A collective: what each rank has brought, and how many have gone on."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.parts: dict[int, Any] = {}
        self.left = 0


class Room:
    """What the ranks of a communicator share: `members` are numbers in the world."""

    def __init__(self, members: tuple[int, ...]) -> None:
        self.members = members
        self.meetings: dict[int, Meeting] = {}
        self.messages: list[list[tuple[int, int, bytes]]] = [[] for _ in members]  # to each: source, tag, bytes
        self.receives: list[list[Receive]] = [[] for _ in members]  # of each, without a message yet


class Request:
    """Of something under way: `ready` says whether it has happened, `finish` writes the result."""

    def __init__(self, comm: "Comm", label: str, ready: Callable[[], bool], finish: Callable[[], None]) -> None:
        self._comm = comm
        self._label = label
        self._ready = ready
        self._finish = finish
        self._done = False

    def Test(self) -> bool:
        if not self._done:
            if not self._ready():
                self._comm.turns.look(self._comm.number)
            if self._ready():
                self._end()
        return self._done

    def Wait(self) -> bool:
        if not self._done:
            self._comm.turns.wait(self._comm.number, self._ready, self._label)
            self._end()
        return True

    @classmethod
    def Waitany(cls, requests: "Sequence[Request]") -> int:
        active = [request for request in requests if not request._done]
        assert active, "nothing is under way"
        comm = active[0]._comm
        labels = " and ".join(dict.fromkeys(request._label for request in active))
        comm.turns.wait(comm.number, lambda: any(request._ready() for request in active), labels)
        found = next(request for request in active if request._ready())
        found._end()
        return list(requests).index(found)

    def _end(self) -> None:
        self._done = True
        self._finish()


class Receive:
    """A message that is expected; `content` when it has come."""

    def __init__(self, source: int, tag: int) -> None:
        self.source = source
        self.tag = tag
        self.content: bytes | None = None

    def fits(self, source: int, tag: int) -> bool:
        return self.source in (_ANY, source) and self.tag in (_ANY, tag)


class Comm:
    """See the module. `rank` of those in the room; rooms: all there are, by what they were made from."""

    def __init__(self, turns: Turns, rooms: dict[Any, Room], key: Any, members: tuple[int, ...], number: int) -> None:
        self.turns = turns
        self.number = number  # in the world
        self._rooms = rooms
        self._key = key
        self._room = rooms.setdefault(key, Room(members))
        self._meetings = 0
        self._groups: dict[tuple[int, ...], int] = {}
        self.rank = members.index(number)
        self.size = len(members)

    # --- collectives --------------------------------------------------------------------------------------------------

    def _meet(self, name: str, part: Any, take: Callable[[list[Any]], None]) -> Request:
        """Brings this rank's part; `take` gets those of all, in rank order."""
        number = self._meetings
        self._meetings += 1
        meeting = self._room.meetings.setdefault(number, Meeting(name))
        if meeting.name != name:
            raise RuntimeError(f"rank {self.number} calls {name} where another rank calls {meeting.name}")
        meeting.parts[self.rank] = part

        def finish() -> None:
            take([meeting.parts[rank] for rank in range(self.size)])
            meeting.left += 1
            if meeting.left == self.size:
                del self._room.meetings[number]

        return Request(self, name, lambda: len(meeting.parts) == self.size, finish)

    def Iallreduce(self, send: Any, receive: Any, op: Any = None) -> Request:
        part = _as_array(receive if _is_in_place(send) else send).copy()
        return self._meet("Allreduce", part, lambda parts: _write(receive, _combine(op, parts)))

    def Ireduce(self, send: Any, receive: Any, op: Any = None, root: int = 0) -> Request:
        part = _as_array(receive if _is_in_place(send) else send).copy()

        def take(parts: list[Any]) -> None:
            if self.rank == root:
                _write(receive, _combine(op, parts))

        return self._meet("Reduce", part, take)

    def Ireduce_scatter_block(self, send: Any, receive: Any, op: Any = None) -> Request:
        part = _as_array(send).copy().reshape(self.size, -1)
        return self._meet(
            "Reduce_scatter_block", part, lambda parts: _write(receive, _combine(op, [p[self.rank] for p in parts]))
        )

    def Ibcast(self, buffer: Any, root: int = 0) -> Request:
        part = _bytes(buffer) if self.rank == root else None
        return self._meet("Bcast", part, lambda parts: _fill(buffer, parts[root]) if self.rank != root else None)

    def Iallgather(self, send: Any, receive: Any) -> Request:
        rows = _memory(receive).reshape(self.size, -1)
        part = rows[self.rank].tobytes() if _is_in_place(send) else _bytes(send)
        return self._meet("Allgather", part, lambda parts: _fill(receive, b"".join(parts)))

    def Iallgatherv(self, send: Any, receive: Any) -> Request:
        array, (counts, places) = receive[0], receive[1]
        memory = _memory(array)
        begin, count = places[self.rank], counts[self.rank]
        part = memory[begin : begin + count].tobytes() if _is_in_place(send) else _bytes(send)

        def take(parts: list[Any]) -> None:
            for place, content in zip(places, parts, strict=True):
                memory[place : place + len(content)] = np.frombuffer(content, np.uint8)

        return self._meet("Allgatherv", part, take)

    def Ialltoallv(self, send: Any, receive: Any) -> Request:
        source, target = _memory(send[0]), _memory(receive[0])
        parts = [source[place : place + count].tobytes() for count, place in zip(*send[1], strict=True)]

        def take(everyones: list[Any]) -> None:
            for place, sent in zip(receive[1][1], everyones, strict=True):
                content = sent[self.rank]
                target[place : place + len(content)] = np.frombuffer(content, np.uint8)

        return self._meet("Alltoallv", parts, take)

    def Ibarrier(self) -> Request:
        return self._meet("Barrier", None, lambda parts: None)

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
        self._meet("allgather", pickle.dumps(value), lambda parts: found.extend(map(pickle.loads, parts))).Wait()
        return found

    def allreduce(self, value: Any, op: Any = None) -> Any:
        combined = _combine(op, self.allgather(value))
        return combined.item() if isinstance(combined, np.generic) else combined

    def bcast(self, value: Any, root: int = 0) -> Any:
        found = [value]

        def take(parts: list[Any]) -> None:
            if self.rank != root:
                found[0] = pickle.loads(parts[root])

        self._meet("bcast", pickle.dumps(value) if self.rank == root else None, take).Wait()
        return found[0]

    def gather(self, value: Any, root: int = 0) -> list[Any] | None:
        found: list[Any] = []

        def take(parts: list[Any]) -> None:
            if self.rank == root:
                found.extend(map(pickle.loads, parts))

        self._meet("gather", pickle.dumps(value), take).Wait()
        return found if self.rank == root else None

    def scatter(self, values: Any, root: int = 0) -> Any:
        found: list[Any] = []
        own = [pickle.dumps(value) for value in values] if self.rank == root else None
        self._meet("scatter", own, lambda parts: found.append(pickle.loads(parts[root][self.rank]))).Wait()
        return found[0]

    # --- messages -----------------------------------------------------------------------------------------------------

    def Isend(self, buffer: Any, dest: int, tag: int = 0) -> Request:
        self._room.messages[dest].append((self.rank, tag, _bytes(buffer)))
        self._match(dest)
        return Request(self, f"Send to rank {self._room.members[dest]}", lambda: True, lambda: None)

    def Irecv(self, buffer: Any, source: int | None = None, tag: int = _ANY) -> Request:
        expected = Receive(_ANY if source is None or source < 0 else source, tag)
        self._room.receives[self.rank].append(expected)
        self._match(self.rank)
        who = "any rank" if expected.source == _ANY else f"rank {self._room.members[expected.source]}"
        return Request(
            self, f"Recv from {who}", lambda: expected.content is not None, lambda: _fill(buffer, expected.content)
        )

    def _match(self, rank: int) -> None:
        """Gives the messages to a rank to those that expect them, in the order in which they were posted."""
        messages, receives = self._room.messages[rank], self._room.receives[rank]
        for expected in tuple(receives):
            for message in messages:
                if expected.fits(*message[:2]):
                    expected.content = message[2]
                    messages.remove(message)
                    receives.remove(expected)
                    break

    # --- other communicators ------------------------------------------------------------------------------------------

    def _made(self, key: Any, members: tuple[int, ...]) -> "Comm":
        return Comm(self.turns, self._rooms, (self._key, key), members, self.number)

    def Dup(self) -> "Comm":
        number = self._meetings
        self._meet("Dup", None, lambda parts: None).Wait()
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


def _is_in_place(buffer: Any) -> bool:
    from mpi4py import MPI

    return buffer is MPI.IN_PLACE


def _as_array(buffer: Any) -> np.ndarray:
    return np.asarray(buffer).reshape(-1)


def _memory(buffer: Any) -> np.ndarray:
    """The bytes of an array, of a bytearray, or of the array in [array, ...]."""
    if isinstance(buffer, list):
        buffer = buffer[0]
    return buffer.reshape(-1).view(np.uint8) if isinstance(buffer, np.ndarray) else np.frombuffer(buffer, np.uint8)


def _bytes(buffer: Any) -> bytes:
    return _memory(buffer).tobytes()


def _fill(buffer: Any, content: bytes | None) -> None:
    assert content is not None
    _memory(buffer)[: len(content)] = np.frombuffer(content, np.uint8)


def _write(target: Any, values: np.ndarray) -> None:
    target.reshape(-1)[...] = values


def _combine(op: Any, parts: list[Any]) -> Any:
    """In rank order. op: mpi4py's, or its stand-in's; None is the sum."""
    from mpi4py import MPI

    name = "SUM" if op is None else next(name for name in _UFUNCS if op == getattr(MPI, name))
    return reduce(_UFUNCS[name], parts)
