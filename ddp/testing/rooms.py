"""What the ranks of a communicator share: collectives in which they meet, messages and those who expect them."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

ANY = -1  # source or tag


class Network(Protocol):
    """What messages take between ranks, by their numbers in the world; without one they take no time."""

    def contribute(self, meeting: "Meeting", rank: int, part: Any) -> None:
        """This rank brings its part of a collective."""

    def complete(self, meeting: "Meeting") -> None:
        """All ranks have: `meeting.times` is to say when each of them has what it needs."""

    def send(self, source: int, target: int, nbytes: int) -> float:
        """When a message of so many bytes arrives that is sent now."""


class Slices(NamedTuple):
    """What a rank sends to each other one: bytes, and how many from where on."""

    content: memoryview
    counts: Sequence[int]
    places: Sequence[int]


class Meeting:
    """A collective: what each rank has brought, when it has what it needs, and how many have gone on.

    members: numbers in the world. parts: in the order of the room, once all are there. combined: of all parts, what
    every rank gets of them.
    """

    def __init__(self, name: str, members: tuple[int, ...]) -> None:
        self.name = name
        self.members = members
        self.parts: list[Any] = [None] * len(members)
        self.came = 0
        self.left = 0
        self.times: list[float] | None = None
        self.combined: Any = None

    def combine(self, how: Callable[[list[Any]], Any]) -> Any:
        """Once for all ranks."""
        if self.combined is None:
            self.combined = how(self.parts)
        return self.combined


class Message(NamedTuple):
    """On its way, from a rank of the room."""

    source: int
    tag: int
    content: bytes
    time: float
    """When it arrives."""


class Receive:
    """A message that is expected, and the one that has been sent."""

    def __init__(self, source: int, tag: int) -> None:
        self.source = source
        self.tag = tag
        self.message: Message | None = None

    def fits(self, message: Message) -> bool:
        return self.source in (ANY, message.source) and self.tag in (ANY, message.tag)


class Room:
    """What the ranks of a communicator share: `members` are numbers in the world."""

    def __init__(self, members: tuple[int, ...]) -> None:
        self.members = members
        self.meetings: dict[int, Meeting] = {}
        self.messages: list[list[Message]] = [[] for _ in members]  # to each
        self.receives: list[list[Receive]] = [[] for _ in members]  # of each, without a message yet
