"""What is in no order is found, what is ordered is not; a graph runs when it is launched, and not before."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import numpy as np
import pytest

from tests.cuda_driver import control


@contextmanager
def _found(text: str) -> Iterator[None]:
    """CuPy raises, and the driver says why."""
    with pytest.raises(RuntimeError):
        yield
    assert any(text in problem for problem in control.take_problems())


def _streams(cupy: ModuleType) -> tuple:
    return cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)


def test_another_stream_reads_without_an_event(cupy: ModuleType) -> None:
    one, other = _streams(cupy)
    x = cupy.zeros(100)
    cupy.cuda.Device().synchronize()
    with one:
        x += 1
    with _found("race"), other:
        x + 1


def test_another_stream_writes_what_is_read(cupy: ModuleType) -> None:
    one, other = _streams(cupy)
    x = cupy.zeros(100)
    cupy.cuda.Device().synchronize()
    with one:
        y = x + 1
    with _found("race"), other:
        x.fill(2)
    del y


def test_an_event_orders(cupy: ModuleType) -> None:
    one, other = _streams(cupy)
    x = cupy.zeros(100)
    cupy.cuda.Device().synchronize()
    with one:
        x += 1
        done = one.record()
    other.wait_event(done)
    with other:
        y = x + 1
    other.synchronize()
    assert (y.get() == 2).all()


def test_an_event_recorded_too_early_does_not(cupy: ModuleType) -> None:
    one, other = _streams(cupy)
    x = cupy.zeros(100)
    cupy.cuda.Device().synchronize()
    with one:
        done = one.record()
        x += 1
    other.wait_event(done)
    with _found("race"), other:
        x + 1


def test_an_event_that_was_destroyed_is_known(cupy: ModuleType) -> None:
    runtime = cupy.cuda.runtime
    event = runtime.eventCreate()
    runtime.eventDestroy(event)
    assert runtime.eventCreate() != event
    assert runtime.eventQuery(event) == 400  # which CuPy leaves to its caller
    for call in (runtime.eventSynchronize, runtime.eventDestroy):
        with pytest.raises(runtime.CUDARuntimeError, match="invalid resource handle"):
            call(event)


def test_work_is_not_done_the_first_time_one_asks(cupy: ModuleType) -> None:
    one, _ = _streams(cupy)
    x = cupy.zeros(100)
    cupy.cuda.Device().synchronize()
    with one:
        x += 1
        event = one.record()
    assert [event.done, event.done] == [False, True]
    with one:
        x += 1
    assert [one.done, one.done] == [False, True]


def test_the_null_stream_waits_for_those_that_block(cupy: ModuleType) -> None:
    stream = cupy.cuda.Stream()
    x = cupy.zeros(100)
    with stream:
        x += 1
    assert (x + 1).get().tolist() == [2] * 100


def test_page_locked_memory_is_there_after_a_wait(cupy: ModuleType) -> None:
    stream = cupy.cuda.Stream(non_blocking=True)
    x = cupy.arange(5.0)
    target = np.frombuffer(cupy.cuda.alloc_pinned_memory(40), np.float64, 5)
    target[:] = -1
    cupy.cuda.Device().synchronize()
    with stream:
        x.get(out=target, blocking=False)
    assert target.tolist() == [-1] * 5
    stream.synchronize()
    assert target.tolist() == [0, 1, 2, 3, 4]


def test_page_locked_memory_is_left_alone_until_it_is_sent(cupy: ModuleType) -> None:
    stream = cupy.cuda.Stream(non_blocking=True)
    source = np.frombuffer(cupy.cuda.alloc_pinned_memory(40), np.float64, 5)
    source[:] = 1
    x = cupy.empty(5)
    with stream:
        x.set(source)
    source[:] = 2
    stream.synchronize()
    assert any("page-locked" in problem for problem in control.take_problems())


@pytest.mark.parametrize("blocking", [False, True])
def test_page_locked_memory_is_sent_and_received_into(cupy: ModuleType, blocking: bool) -> None:
    stream = cupy.cuda.Stream(non_blocking=True)
    memory = np.frombuffer(cupy.cuda.alloc_pinned_memory(40), np.float64, 5)
    memory[:] = 1
    x, y = cupy.empty(5), cupy.arange(5.0)
    cupy.cuda.Device().synchronize()
    with stream:
        x.set(memory)
        y.get(out=memory, blocking=blocking)
    stream.synchronize()
    assert memory.tolist() == [0, 1, 2, 3, 4]
    assert x.get().tolist() == [1] * 5


def test_a_graph_runs_when_it_is_launched(cupy: ModuleType) -> None:
    stream = cupy.cuda.Stream(non_blocking=True)
    x = cupy.zeros(5)
    cupy.cuda.Device().synchronize()
    with stream:
        x += 0  # compiled
        stream.begin_capture()
        x += 1
        graph = stream.end_capture()
        assert x.get().tolist() == [0] * 5
        for _ in range(3):
            graph.launch()
        assert x.get().tolist() == [3] * 5


def test_a_capture_that_waits_is_invalid(cupy: ModuleType) -> None:
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        with _found("while it is captured"):
            stream.synchronize()
        with pytest.raises(RuntimeError, match="Invalidated"):
            stream.end_capture()


def test_a_capture_whose_streams_are_not_joined(cupy: ModuleType) -> None:
    one, other = _streams(cupy)
    x = cupy.zeros(5)
    x += 1
    cupy.cuda.Device().synchronize()
    with one:
        one.begin_capture()
        other.wait_event(one.record())
        with other:
            x += 1
        with _found("has not waited"):
            one.end_capture()


def test_branches_of_a_graph_are_in_no_order(cupy: ModuleType) -> None:
    one, other = _streams(cupy)
    x = cupy.zeros(5)
    x += 1
    cupy.cuda.Device().synchronize()
    with one:
        one.begin_capture()
        other.wait_event(one.record())
        with other:
            x += 1
        x += 1
        one.wait_event(other.record())
        graph = one.end_capture()
        with _found("race"):
            graph.launch()


def test_what_a_capture_forbids(cupy: ModuleType) -> None:
    """A relaxed one what waits; one that is not what allocates, too."""
    runtime = cupy.cuda.runtime
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture(runtime.streamCaptureModeRelaxed)
        runtime.free(runtime.malloc(64))
        stream.end_capture()
        stream.begin_capture(runtime.streamCaptureModeRelaxed)
        with _found("is captured"):
            runtime.deviceSynchronize()
        with pytest.raises(RuntimeError, match="Invalidated"):
            stream.end_capture()
        stream.begin_capture(runtime.streamCaptureModeGlobal)
        with _found("cudaMalloc while"):
            runtime.malloc(64)
        with pytest.raises(RuntimeError, match="Invalidated"):
            stream.end_capture()


def test_what_is_counted(cupy: ModuleType) -> None:
    x = cupy.ones(5, "f4")
    with control.counters() as outer, control.counters() as count:
        y = x + 1
        assert (count.launches, count.synchronizations) == (1, 0)
        y.get()
        y.get()
        assert (count.synchronizations, count.pageable, count.bytes) == (2, 2, {"pageable": 40})
        cupy.cuda.Device().synchronize()
    assert outer.names == count.names
    assert (x + 1).size == 5
    assert outer.launches == 1
