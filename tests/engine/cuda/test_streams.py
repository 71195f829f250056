"""Streams and events, and memory that is used on several streams. On the CPU driver a race is an error."""

import gc
import threading

import pytest

import engine
from engine.memory import backend, transfer
from engine.memory import blocks as memory
from tests import cuda_device


@pytest.fixture
def on_driver(cuda):
    if not cuda_device.ours():
        pytest.skip("provokes races, which only the CPU driver reports")
    return cuda


def test_the_default_stream_is_current_at_first(cuda):
    assert engine.cuda.current_stream() == engine.cuda.default_stream()
    assert engine.cuda.current_stream().cuda_stream == 0


def test_a_stream_is_current_inside_its_block(cuda):
    side = engine.cuda.Stream()
    with engine.cuda.stream(side):
        assert engine.cuda.current_stream() == side
        with engine.cuda.stream(None):
            assert engine.cuda.current_stream() == side
        with engine.cuda.stream(engine.cuda.default_stream()):
            assert engine.cuda.current_stream() == engine.cuda.default_stream()
        assert engine.cuda.current_stream() == side
    assert engine.cuda.current_stream() == engine.cuda.default_stream()
    with side:
        assert engine.cuda.current_stream() == side
    engine.cuda.set_stream(side)
    assert engine.cuda.current_stream() == side
    engine.cuda.set_stream(engine.cuda.default_stream())
    assert side != engine.cuda.default_stream()
    assert {side: 1}[side] == 1


def test_cupys_own_blocks_come_back_to_the_stream_around_them(cuda):
    side, inner = engine.cuda.Stream(), engine.cuda.Stream()
    with engine.cuda.stream(side):
        with inner.raw:
            assert engine.cuda.current_stream() == inner
        assert engine.cuda.current_stream() == side
        engine.cuda.set_stream(inner)
    assert engine.cuda.current_stream() == engine.cuda.default_stream()
    engine.cuda.set_stream(side)
    with engine.cuda.stream(inner):
        assert engine.cuda.current_stream() == inner
    assert engine.cuda.current_stream() == side
    engine.cuda.set_stream(engine.cuda.default_stream())


def test_a_stream_of_another_gpu_brings_its_device(cuda):
    if engine.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    side = engine.cuda.Stream(1)
    assert side.device == engine.device("cuda:1")
    with engine.cuda.stream(side):
        assert engine.cuda.current_device() == 1
        assert engine.cuda.current_stream() == side
        assert engine.cuda.current_stream(0) == engine.cuda.default_stream(0)
    assert engine.cuda.current_device() == 0
    assert engine.cuda.current_stream(1) == engine.cuda.default_stream(1)


def test_priority_and_external_streams(cuda):
    high = engine.cuda.Stream(priority=-1)
    assert high.priority == -1
    again = engine.cuda.ExternalStream(high.cuda_stream)
    assert again == high
    assert again.__cuda_stream__() == (0, high.cuda_stream)
    with pytest.raises(TypeError, match="unknown argument 'stream_id'"):
        engine.cuda.Stream(stream_id=3)


def test_work_ordered_by_wait_stream(cuda):
    side, main = engine.cuda.Stream(), engine.cuda.current_stream()
    x = engine.ones(4, device=cuda)
    side.wait_stream(main)
    with engine.cuda.stream(side):
        y = x * 2
    main.wait_stream(side)
    assert (y + 1).tolist() == [3.0] * 4


def test_work_that_nothing_orders_is_a_race(on_driver):
    side = engine.cuda.Stream()
    x = engine.ones(4, device=on_driver)
    with cuda_device.race(), engine.cuda.stream(side):
        x.add_(1)


def test_events(cuda):
    side, event = engine.cuda.Stream(), engine.cuda.Event()
    assert event.query()
    event.synchronize()
    x = engine.ones(4, device=cuda)
    event.record()
    side.wait_event(event)
    with engine.cuda.stream(side):
        x.add_(1)
        done = side.record_event()
    done.wait()
    assert x.tolist() == [2.0] * 4
    done.synchronize()
    assert done.query()
    assert done.device == engine.device("cuda:0")
    assert done.cuda_event != 0
    side.synchronize()
    assert side.query()


def test_elapsed_time(cuda):
    begin, end = engine.cuda.Event(enable_timing=True), engine.cuda.Event(enable_timing=True)
    with pytest.raises(ValueError, match="must be recorded before"):
        begin.elapsed_time(end)
    begin.record()
    engine.ones(4, device=cuda).add_(1)
    end.record()
    end.synchronize()
    assert begin.elapsed_time(end) >= 0
    plain = engine.cuda.Event()
    plain.record()
    with pytest.raises(ValueError, match="enable_timing=True"):
        plain.elapsed_time(end)


def test_an_event_belongs_to_one_device(cuda):
    if engine.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    event = engine.cuda.current_stream(1).record_event()
    with pytest.raises(RuntimeError, match="Event device cuda:1 does not match recording stream's device cuda:0"):
        event.record(engine.cuda.current_stream(0))
    engine.cuda.current_stream(0).wait_event(event)


def test_events_of_other_processes(cuda):
    event = engine.cuda.Event(interprocess=True)
    assert len(event.ipc_handle()) == 64
    with pytest.raises(RuntimeError, match=r"use Event\(interprocess=True\)"):
        engine.cuda.Event().ipc_handle()
    with pytest.raises(RuntimeError, match="cannot measure time"):
        engine.cuda.Event(enable_timing=True, interprocess=True)


# --- memory on several streams ----------------------------------------------------------------------------------------


def test_freed_memory_that_another_stream_uses_is_not_given_away(cuda):
    side, main = engine.cuda.Stream(), engine.cuda.current_stream()
    x = engine.ones(4, device=cuda)
    address = x.data_ptr()
    side.wait_stream(main)
    with engine.cuda.stream(side):
        if not cuda_device.ours():  # a GPU is done with `x * 2` before the host asks
            busy = engine.ones(8192, 8192, device=cuda)
            for _ in range(20):
                busy @ busy
        y = x * 2
    x.record_stream(side)
    del x
    assert len(memory._waiting) == 1
    other = engine.zeros(4, device=cuda)  # without record_stream this is x's memory, and a race with x * 2
    assert other.data_ptr() != address
    engine.zeros(4, device=cuda)  # asked again, an event of another stream would be done
    side.synchronize()
    engine.empty(1, device=cuda)
    assert not memory._waiting
    assert y.tolist() == [2.0] * 4


@pytest.mark.parametrize("stream_first", [True, False])
def test_a_stream_that_is_garbage_with_what_it_used(cuda, stream_first):
    """Garbage is finalised in the order in which it was made: memory asks for a stream that is to be destroyed."""
    cycle = [engine.cuda.Stream(), engine.ones(4, device=cuda)]
    if not stream_first:
        cycle[0] = engine.cuda.Stream()
    side, x = cycle
    x.record_stream(side)
    cycle.append(cycle)
    del cycle, side, x
    gc.collect()  # what a finaliser raises fails the test
    assert len(memory._waiting) == 1
    engine.empty(1, device=cuda)


@pytest.mark.parametrize("name", ["memory", "transfer"])
def test_two_threads_give_back_what_is_done(name, cuda):
    """While one asks the event of a block, another one gives that block back: the next one is not theirs to give."""
    waiting = memory._waiting if name == "memory" else transfer._under_way
    give_back = memory.free_done if name == "memory" else transfer._let_go

    class Passed:
        asked = 0

        @property
        def done(self):
            self.asked += 1
            if self.asked == 1:
                other = threading.Thread(target=give_back)
                other.start()
                other.join()
            return True

    class Pending:
        done = False

        def synchronize(self):
            pass

    try:
        for event in (Passed(), Pending()):
            waiting.append(([event], "block") if name == "memory" else (event, "block"))
        give_back()
        assert len(waiting) == 1
    finally:
        waiting.clear()


def test_a_gpu_that_has_failed_is_told(on_driver, monkeypatch):
    event = engine.cuda.current_stream().record_event()
    runtime = backend.require_cupy().cuda.runtime
    monkeypatch.setattr(runtime, "eventQuery", lambda event: 700)
    with pytest.raises(runtime.CUDARuntimeError, match="illegal memory access"):
        event.query()


def test_without_record_stream_the_memory_is_a_race(on_driver):
    side, main = engine.cuda.Stream(), engine.cuda.current_stream()
    x = engine.ones(4, device=on_driver)
    side.wait_stream(main)
    with engine.cuda.stream(side):
        y = x * 2
    del x
    with cuda_device.race():
        engine.zeros(4, device=on_driver)
    del y


def test_record_stream_of_host_memory_is_refused(cuda):
    with pytest.raises(RuntimeError, match="this tensor is on cpu"):
        engine.ones(4).record_stream(engine.cuda.Stream())
