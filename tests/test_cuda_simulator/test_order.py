"""What the host waits for is counted, and accesses that nothing orders are found: streams, events, transfers."""

import threading
from typing import Any

import numpy as np
import pytest

from tests import cuda_simulator as simulator


def test_synchronisations_and_transfers_are_counted(xp: Any) -> None:
    with simulator.counters() as count:
        array = xp.asarray(np.ones(4, np.float32))
        array = xp.exp(array) + 1
        array[array.astype(int)] = 0
        array.sum(out=xp.empty((), np.float32))
    assert (count.synchronizations, count.pageable, count.pinned) == (0, 1, 0)
    assert count.bytes == {"pageable": 16}
    for wait in (
        lambda: array.get(),
        lambda: float(array[0]),
        lambda: bool(array[0]),
        lambda: array[0].item(),
        lambda: xp.nonzero(array),
        lambda: xp.unique(array),
        lambda: array[array > 1],
        lambda: array.__setitem__(array > 1, 0),
        lambda: xp.cuda.Device().synchronize(),
        lambda: xp.cuda.get_current_stream().synchronize(),
    ):
        with simulator.counters() as count:
            wait()
        assert count.synchronizations == 1, count.waits
        assert "test_order.py" in count.waits[0]


def test_pinned_memory_is_there_when_the_host_has_waited(xp: Any) -> None:
    array = xp.arange(4, dtype=np.float32)
    memory = xp.cuda.alloc_pinned_memory(16)
    host = np.frombuffer(memory, np.float32, 4)
    host[:] = -1
    stream = xp.cuda.Stream(non_blocking=True)
    xp.cuda.Stream.null.synchronize()
    with simulator.counters() as count:
        array.get(stream, out=host, blocking=False)
        event = stream.record()
        assert host.tolist() == [-1] * 4
        assert not event.done
    assert (count.synchronizations, count.pinned) == (0, 1)
    event.synchronize()
    assert host.tolist() == [0, 1, 2, 3]


def test_a_buffer_that_is_overwritten_under_way_is_a_race(xp: Any) -> None:
    host = np.frombuffer(xp.cuda.alloc_pinned_memory(16), np.float32, 4)
    host[:] = 1
    array = xp.empty(4, np.float32)
    array.set(host)
    host[:] = 2
    with pytest.raises(simulator.RaceError, match="host wrote"):
        xp.cuda.Device().synchronize()


@pytest.mark.parametrize("order", ["write then read", "read then write", "write then write"])
def test_accesses_that_nothing_orders_are_races(xp: Any, two_streams: Any, order: str) -> None:
    array = xp.zeros(1000)
    xp.cuda.Device().synchronize()
    first, second = two_streams

    def access(write: bool) -> None:
        if write:
            array[...] = 1
        else:
            array + 1

    with first:
        access(order.startswith("write"))
    with second, pytest.raises(simulator.RaceError, match="no event orders"):
        access(order.endswith("write"))


@pytest.mark.parametrize("how", ["event", "synchronize", "event of the host", "null stream"])
def test_accesses_that_something_orders_are_none(xp: Any, two_streams: Any, how: str) -> None:
    array = xp.zeros(1000)
    xp.cuda.Device().synchronize()
    first, second = two_streams
    if how == "null stream":
        first, second = xp.cuda.Stream(), xp.cuda.Stream()
    with first:
        array += 1
    if how == "event":
        second.wait_event(first.record())
    elif how == "synchronize":
        first.synchronize()
    elif how == "event of the host":
        first.record().synchronize()
    else:
        xp.zeros(1)
    with second:
        array += 1
    second.synchronize()
    assert array[0].item() == 2


def test_different_parts_of_an_array_may_be_used_at_once(xp: Any, two_streams: Any) -> None:
    array = xp.zeros(1000)
    xp.cuda.Device().synchronize()
    first, second = two_streams
    with first:
        array[:500] += 1
    with second:
        array[500:] += 1


def test_an_event_orders_what_was_queued_before_it_only(xp: Any, two_streams: Any) -> None:
    array = xp.zeros(10)
    xp.cuda.Device().synchronize()
    first, second = two_streams
    event = first.record()
    with first:
        array += 1
    second.wait_event(event)
    with second, pytest.raises(simulator.RaceError):
        array += 1


def test_freed_memory_is_reused_by_its_own_stream_only(xp: Any, two_streams: Any) -> None:
    first, second = two_streams
    with first:
        array = xp.zeros(1000)
        pointer = array.data.ptr
    second.wait_event(first.record())
    with second:
        array + 1
    del array
    with second:
        assert xp.empty(1000).data.ptr != pointer
    with first:
        again = xp.empty(1000)
        assert again.data.ptr == pointer
        with pytest.raises(simulator.RaceError):  # the other stream still reads it
            again.fill(0)


def test_a_race_that_somebody_swallows_fails_the_test(xp: Any) -> None:
    array = xp.zeros(10)
    with xp.cuda.Stream(non_blocking=True), pytest.raises(simulator.RaceError):
        array += 1
    with pytest.raises(simulator.RaceError, match="no event orders"):
        simulator.uninstall()


def test_streams_belong_to_threads_and_devices(xp: Any) -> None:
    stream = xp.cuda.Stream()
    stream.use()
    assert xp.cuda.get_current_stream() == stream
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(xp.cuda.get_current_stream()))
    thread.start()
    thread.join()
    assert found == [xp.cuda.Stream.null]
    with xp.cuda.Device(1):
        assert xp.cuda.get_current_stream() == xp.cuda.Stream.null
        assert xp.zeros(3).device.id == 1
        with pytest.raises(RuntimeError, match="not created on the current device"), stream:
            pass
    xp.cuda.Stream.null.use()
    with pytest.raises(xp.cuda.runtime.CUDARuntimeError, match="invalid device ordinal"):
        xp.cuda.Device(2).use()


def test_arrays_of_another_device_are_refused_but_copied(xp: Any) -> None:
    with xp.cuda.Device(1):
        there = xp.arange(3.0)
        there.device.synchronize()
    with pytest.raises(ValueError, match="current device"):
        there + 1
    with simulator.counters() as count:
        here = xp.asarray(there)
    assert here.device.id == 0
    assert count.peer == 1
    assert here.get().tolist() == [0, 1, 2]
