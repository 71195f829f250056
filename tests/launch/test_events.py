"""What ddprun waits for, and in which order it comes to it."""

import functools
import os
import signal
import socket
from pathlib import Path

from launch.events import Events, signals


def test_a_signal_comes_after_what_was_said_before_it() -> None:
    """By a peer that is known, and by one whose connection is still to be taken."""
    events, order = Events(), []
    ours, theirs = socket.socketpair()
    known, peer = socket.socketpair()

    def hear(line: socket.socket, name: str) -> None:
        line.recv(100)
        order.append(name)

    def accept() -> None:
        ours.recv(100)
        order.append("accepted")
        events.add(known.fileno(), lambda: hear(known, "heard"))

    with ours, theirs, known, peer, signals(events, {signal.SIGUSR1}, lambda number: order.append(number)):
        events.add(ours.fileno(), accept)
        os.kill(os.getpid(), signal.SIGUSR1)
        theirs.send(b"a connection")
        peer.send(b"words")
        events.wait(1.0)
        assert order == ["accepted", "heard", signal.SIGUSR1]


def test_what_has_ended_first_comes_first() -> None:
    events, order = Events(), []
    pairs = [socket.socketpair() for _ in range(3)]

    def hear(number: int) -> None:
        order.append(number)
        events.remove(pairs[number][0].fileno())

    for number, (ours, _) in enumerate(pairs):
        events.add(ours.fileno(), functools.partial(hear, number))
    for number in (2, 0, 1):
        pairs[number][1].close()
    events.wait(1.0)
    for ours, _ in pairs:
        ours.close()
    assert order == [2, 0, 1]


def test_a_file_is_always_ready(tmp_path: Path) -> None:
    """It may be standard input."""
    events, order = Events(), []
    with (tmp_path / "file").open("w+b") as file:
        events.add(file.fileno(), lambda: order.append("ready"))
        events.wait(3600.0)
        events.remove(file.fileno())
        events.wait(0.0)
    assert order == ["ready"]


def test_signals_come_in_their_order() -> None:
    events, order = Events(), []
    numbers = [signal.SIGUSR2, signal.SIGUSR1, signal.SIGUSR2]
    with signals(events, set(numbers), order.append):
        for number in numbers:
            os.kill(os.getpid(), number)
        events.wait(1.0)
    assert order == numbers
