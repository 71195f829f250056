"""Simulated CUDA graphs: what is captured, what cannot be, and how a launch is ordered."""

from typing import Any

import numpy as np
import pytest

from tests import cuda_simulator as simulator


def test_captured_work_runs_at_launch(xp: Any) -> None:
    x = xp.arange(4.0)
    out = xp.zeros(4)
    stream = xp.cuda.Stream(non_blocking=True)
    xp.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        assert stream.is_capturing()
        y = x * 2
        out += y
        out[xp.zeros(1, int)] = 9
        graph = stream.end_capture()
    stream.synchronize()
    assert np.isnan(y.get(stream)).all()
    assert out.get(stream).tolist() == [0, 0, 0, 0]
    graph.launch(stream)
    assert out.get(stream).tolist() == [9, 2, 4, 6]
    x.set(np.ones(4), stream)
    graph.launch(stream)
    assert out.get(stream).tolist() == [9, 4, 6, 8]


def test_what_cannot_be_captured(xp: Any) -> None:
    error = xp.cuda.runtime.CUDARuntimeError
    array = xp.ones(4)
    stream = xp.cuda.Stream(non_blocking=True)
    xp.cuda.Device().synchronize()
    for call in (
        lambda: array.get(),
        lambda: bool(array[0]),
        lambda: array[array > 0],
        lambda: stream.synchronize(),
        lambda: xp.asarray(np.ones(3)),
        lambda: xp.cuda.runtime.memcpy(array.data.ptr, array.data.ptr, 8, 3),
    ):
        with stream:
            stream.begin_capture()
            with pytest.raises(error, match="not permitted when stream is capturing"):
                call()
            with pytest.raises(error, match="previous error during capture"):
                stream.end_capture()
    with stream:
        stream.begin_capture(xp.cuda.runtime.streamCaptureModeGlobal)
        with pytest.raises(error, match="not permitted"):
            xp.cuda.runtime.malloc(8)
        with pytest.raises(error):
            stream.end_capture()
    blocking = xp.cuda.Stream()
    blocking.begin_capture()
    with pytest.raises(error, match="legacy stream"):
        array + 1
    blocking.end_capture()
    with pytest.raises(RuntimeError, match="legacy"):
        xp.cuda.Stream.null.begin_capture()


def test_streams_of_a_capture_are_joined(xp: Any, two_streams: Any) -> None:
    array = xp.zeros(4)
    xp.cuda.Device().synchronize()
    first, second = two_streams

    def capture(join: bool) -> Any:
        first.begin_capture()
        second.wait_event(first.record())
        with second:
            array.__iadd__(1)
        if join:
            first.wait_event(second.record())
        return first.end_capture()

    with pytest.raises(xp.cuda.runtime.CUDARuntimeError, match="unjoined"):
        capture(join=False)
    graph = capture(join=True)
    graph.launch(first)
    assert array.get(first).tolist() == [1] * 4


def test_events_do_not_cross_the_border_of_a_capture(xp: Any, two_streams: Any) -> None:
    error = xp.cuda.runtime.CUDARuntimeError
    first, second = two_streams
    outside = second.record()
    first.begin_capture()
    inside = first.record()
    with pytest.raises(error, match="last recorded in a capturing stream"):
        inside.synchronize()
    with pytest.raises(error, match="uncaptured work"):
        first.wait_event(outside)
    with pytest.raises(error, match="previous error"):
        first.end_capture()
    for use in (lambda: second.wait_event(inside), lambda: inside.done):
        with pytest.raises(error, match="last recorded in a capturing stream"):
            use()
    inside.record(first)
    second.wait_event(inside)


def test_races_inside_a_capture_are_found(xp: Any, two_streams: Any) -> None:
    array = xp.zeros(4)
    xp.cuda.Device().synchronize()
    first, second = two_streams
    first.begin_capture()
    second.wait_event(first.record())
    with second:
        array += 1
    with first, pytest.raises(simulator.RaceError):
        array += 1


def test_a_graph_does_not_keep_memory(xp: Any) -> None:
    stream = xp.cuda.Stream(non_blocking=True)
    xp.cuda.Device().synchronize()
    with stream:
        source = xp.ones(100)
        stream.begin_capture()
        result = source + 1
        graph = stream.end_capture()
        graph.launch()
        del source, result
        graph.launch()  # nobody else has the memory yet
        other = xp.zeros(100)
        with pytest.raises(simulator.RaceError, match="handed out again"):
            graph.launch()
        del other


def test_a_launch_is_ordered_like_other_work(xp: Any, two_streams: Any) -> None:
    array = xp.zeros(4)
    xp.cuda.Device().synchronize()
    first, second = two_streams
    with first:
        first.begin_capture()
        array += 1
        graph = first.end_capture()
    with second:
        array += 1
    with pytest.raises(simulator.RaceError):
        graph.launch(first)
