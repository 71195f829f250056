"""How far this rank has come: what it has contributed to each group's communication, and what it waits for.

This is what the watchdog (`ddp.watching.watchdog`) looks at from its own thread, so the hot path only writes Python
attributes: 0.4 µs for a collective or a bucket of gradients, in which nothing is allocated but one tuple.

A channel is a sequence of meetings of the same ranks: the collectives of a group, the buckets of a wrapped module, the
messages from one rank to another. Every rank counts the meetings to which it has contributed its part, in the same
order. So if this rank waits for meeting n, those are late whose count is below n.
"""

import threading
from threading import get_ident
from time import monotonic
from typing import NamedTuple, Protocol

DEFAULT_TIMEOUT = 1800.0  # seconds; of torch.distributed


class Wait(NamedTuple):
    """The main thread waits for a meeting."""

    channel: "Channel"
    number: int
    label: str
    since: float
    """time.monotonic()."""


class Channel:
    """Meetings of the ranks `ranks` (numbers in the world).

    name: equal on all of them, and of no other channel. timeout: seconds after which a wait ends the job. anybody:
    whoever comes first is enough, as when a message is received from any rank.
    """

    __slots__ = ("anybody", "contributed", "name", "ranks", "timeout")

    def __init__(
        self, name: str, ranks: tuple[int, ...], timeout: float = DEFAULT_TIMEOUT, anybody: bool = False
    ) -> None:
        self.anybody = anybody
        self.name = name
        self.ranks = ranks
        self.timeout = timeout
        self.contributed = 0
        channels[name] = self

    def contribute(self) -> int:
        """This rank has done its part of the next meeting. Returns the number of that."""
        if _waiting.forbidden:
            raise RuntimeError(_waiting.forbidden)
        self.contributed = number = self.contributed + 1
        if _waiting.observer is not None:
            _waiting.observer.contributed(self, number)
        return number

    def beside(self, label: str) -> "Meeting":
        """Around blocking calls of the same ranks that are counted by themselves."""
        name = f"{label} of {self.name}"
        return Meeting(channels.get(name) or Channel(name, self.ranks, self.timeout), label)


channels: dict[str, Channel] = {}
"""All channels of this process by name. The watchdog reads it."""


class Observer(Protocol):
    """Is told when it happens; the watchdog looks by itself."""

    def contributed(self, channel: Channel, number: int) -> None:
        """This rank has done its part of a meeting."""

    def wait_changes(self, wait: Wait | None) -> None:
        """What the main thread has waited for so far, before a wait begins or ends."""


class _Waits(list[Wait]):
    """What the main thread waits for, the innermost last."""

    observer: Observer | None = None
    forbidden = ""


_waiting = _Waits()
_main = threading.main_thread().ident  # other threads may wait, too; nobody looks at those


def begin_wait(channel: Channel, number: int, label: str) -> None:
    """From now on this rank waits for meeting `number`; `end_wait` must follow."""
    if get_ident() == _main:
        if _waiting.observer is not None:
            _waiting.observer.wait_changes(current_wait())
        # Its own constructor is in Python, and takes twice as long.
        _waiting.append(tuple.__new__(Wait, (channel, number, label, monotonic())))


def end_wait() -> None:
    """The wait is over, well or badly."""
    if get_ident() == _main:
        if _waiting.observer is not None:
            _waiting.observer.wait_changes(current_wait())
        _waiting.pop()


def forbid(why: str) -> None:
    """Nothing may be contributed from now on, for this reason; empty: anything may."""
    _waiting.forbidden = why


def observe(observer: Observer | None) -> None:
    """One observer at a time; None: nobody."""
    _waiting.observer = observer


class Meeting:
    """Around blocking calls in which the ranks of the channel meet: `with` it, as often as they do."""

    __slots__ = ("_channel", "_label")

    def __init__(self, channel: Channel, label: str) -> None:
        self._channel = channel
        self._label = label

    def __enter__(self) -> None:
        begin_wait(self._channel, self._channel.contribute(), self._label)

    def __exit__(self, *_: object) -> None:
        end_wait()


def current_wait() -> Wait | None:
    """What this rank waits for; where waits are nested, the innermost."""
    try:
        return _waiting[-1]
    except IndexError:
        return None
