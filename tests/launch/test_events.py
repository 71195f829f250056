"""What ddprun waits for, and in which order it comes to it."""

import os
import signal
import socket

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


def test_signals_come_in_their_order() -> None:
    events, order = Events(), []
    numbers = [signal.SIGUSR2, signal.SIGUSR1, signal.SIGUSR2]
    with signals(events, set(numbers), order.append):
        for number in numbers:
            os.kill(os.getpid(), number)
        events.wait(1.0)
    assert order == numbers
