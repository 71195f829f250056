"""The thread that moves a transport on touches it only while something is in flight; polling is without it; and of the
two a model's first steps choose the better one.
"""

import threading
import time
from typing import Any

import numpy as np
import pytest

from ddp import DistributedDataParallel
from ddp.transport import TRANSPORTS
from ddp.transport.background import _BLOCK, _SKIPPED, BackgroundTransport, FirstSteps
from ddp.transport.loopback import LoopbackTransport
from tests.ddp.models import Weights, gradients, mean


class Watched(LoopbackTransport):
    """Its `wait` ends when the thread stands before the lock that the waiting side holds."""

    def __init__(self) -> None:
        super().__init__()
        self.polls = 0

    def poll(self) -> None:
        self.polls += 1
        super().poll()

    def wait(self, buffer: Any) -> None:
        time.sleep(0.05)  # 500 pauses of the thread
        super().wait(buffer)


def test_the_thread_leaves_a_transport_alone_when_the_last_buffer_has_been_waited_for() -> None:
    inner = Watched()
    transport = BackgroundTransport(inner)
    try:
        buffer = transport.allocate(10, "float32")
        for _ in range(5):
            transport.start(buffer)
            transport.wait(buffer)
            before = inner.polls
            time.sleep(0.05)
            assert inner.polls == before
    finally:
        transport.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "transport loopback"]


def threads_of_transports() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "transport loopback"]


def test_polls_go_to_the_transport_only_where_no_thread_does() -> None:
    inner = Watched()
    transport = BackgroundTransport(inner, by_thread=False)
    assert transport.progress == "polling"
    assert not threads_of_transports()
    transport.poll()
    assert inner.polls == 1
    other = transport.independent()
    assert isinstance(other, BackgroundTransport)
    assert not other.by_thread
    assert transport.change()
    assert len(threads_of_transports()) == 1
    transport.poll()
    assert inner.polls == 1
    buffer = transport.allocate(10, "float32")
    transport.start(buffer)
    assert not transport.change()
    assert transport.by_thread
    transport.wait(buffer)
    assert transport.change()
    assert not transport.by_thread
    before = inner.polls
    transport.start(buffer)
    time.sleep(0.05)  # 500 pauses of the thread, which is still there and may have been woken before
    assert inner.polls == before
    transport.poll()
    assert inner.polls == before + 1
    transport.wait(buffer)
    transport.close()
    assert not threads_of_transports()


@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize("better", [False, True])
def test_the_first_steps_choose_the_better_way(begins: bool, better: bool) -> None:
    transport = BackgroundTransport(LoopbackTransport(), by_thread=begins)
    try:
        choice, now, ways = FirstSteps(transport), 0.0, []
        for step in range(1000):
            ways.append(transport.by_thread)
            late = 0.0 if (step - _SKIPPED) % _BLOCK else 1.0  # the first one of each block
            now += late + (0.002 if transport.by_thread == better else 0.003)
            choice.ended(now)
            if choice.settled:
                break
        assert transport.by_thread == better
        assert 0.4 < np.mean(ways) < 0.6
        name = "a thread" if better else "polling"
        assert transport.progress.startswith(f"{name} (first steps: polling ")
        assert f"{name} 2.0 ms" in transport.progress
        assert "3.0 ms" in transport.progress
    finally:
        transport.close()


def test_a_way_that_cannot_be_changed_is_kept_until_it_can() -> None:
    transport = BackgroundTransport(LoopbackTransport(), by_thread=False)
    choice, buffer = FirstSteps(transport), transport.allocate(10, "float32")
    transport.start(buffer)
    for step in range(100):
        choice.ended(step * 0.002)
    assert not transport.by_thread
    assert not choice.settled
    transport.wait(buffer)
    for step in range(100, 200):
        choice.ended(step * 0.002)
        if choice.settled:
            break
    assert "first steps" in transport.progress
    transport.close()


@pytest.mark.mpi(ranks=[2, 3])
@pytest.mark.parametrize("name", ["mpi", "hierarchical"])
def test_gradients_are_the_mean_while_the_ways_change(group, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    moved = BackgroundTransport(TRANSPORTS[name](group.comm), by_thread=False)
    monkeypatch.setattr(group, "_transport", moved)
    net = DistributedDataParallel(Weights("a", "b", "c"), bucket_cap_mb=1e-5)
    transport, ways = net.reducer.buckets.transport, set()
    assert isinstance(transport, BackgroundTransport)
    steps = 0
    while "first steps" not in transport.progress:
        steps += 1
        assert steps < 1000
        ways.add(transport.by_thread)
        net.zero_grad()
        net(**dict.fromkeys("abc", 12 * steps * (group.rank + 1))).backward()
        assert gradients(net) == dict.fromkeys("abc", mean(group, lambda rank, by=steps: 12 * by * (rank + 1)))
    assert ways == {False, True}
