"""The number of threads, and sharing work between them."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from queue import SimpleQueue

import numpy as np
import pytest

import engine
import engine.nn.functional as F
from engine.kernels.vectors import vector_bytes
from engine.sharing import threads
from engine.sharing.kernels import compiled_wait
from tests.launch.jobs import wait_until


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = engine.get_num_threads()
    yield
    engine.set_num_threads(before)


def test_the_blas_is_told() -> None:
    for number in (1, 2):
        engine.set_num_threads(number)
        assert engine.get_num_threads() == number == threads._blas()[1]()


def test_wrong_numbers() -> None:
    with pytest.raises(RuntimeError, match="expects a positive integer"):
        engine.set_num_threads(0)
    with pytest.raises(TypeError, match="expects an int, but got float"):
        engine.set_num_threads(2.0)  # type: ignore[arg-type]


def test_parts_run_on_that_many_threads() -> None:
    engine.set_num_threads(3)
    meeting = threading.Barrier(3)
    seen = []

    def work(part: int) -> None:
        meeting.wait(30)
        seen.append(part)

    threads.share(work, [0, 1, 2])
    assert sorted(seen) == [0, 1, 2]
    engine.set_num_threads(1)
    names = []
    threads.share(lambda part: names.append(threading.current_thread()), [0, 1])
    assert set(names) == {threading.current_thread()}


def test_an_error_of_any_part_is_raised_when_all_have_ended() -> None:
    engine.set_num_threads(2)
    done = []

    def work(part: int) -> None:
        if part == 1:
            raise ValueError("part 1")
        done.append(part)

    with pytest.raises(ValueError, match="part 1"):
        threads.share(work, [0, 1, 2, 3])
    assert sorted(done) == [0, 2, 3]


def test_parts_share_nothing_further_and_the_blas_works_alone_meanwhile() -> None:
    engine.set_num_threads(3)
    seen = []

    def work(part: int) -> None:
        here = threading.current_thread()
        threads.share(lambda _: seen.append((threads._blas()[1](), threading.current_thread() is here)), [0, 1])

    threads.share(work, [0, 1, 2])
    assert seen == [(1, True)] * 6
    assert threads._blas()[1]() == 3


def test_several_threads_share_at_once() -> None:
    engine.set_num_threads(3)
    results: list[list[int]] = [[] for _ in range(8)]
    callers = [
        threading.Thread(target=lambda mine=mine: [threads.share(mine.append, [*range(5)]) for _ in range(50)])
        for mine in results
    ]
    for caller in callers:
        caller.start()
    for number in (2, 5, 1, 3):
        engine.set_num_threads(number)
    for caller in callers:
        caller.join()
    assert [sorted(mine) for mine in results] == [sorted([*range(5)] * 50)] * 8
    assert threads._blas()[1]() == 3


@pytest.mark.parametrize("looks_a_second", [0.0, 2e6, 1e12])  # sleeps, looks for half of the time and sleeps, looks
def test_what_comes_late_is_got(looks_a_second: float) -> None:
    queue: SimpleQueue[int] = SimpleQueue()
    waiting = threads._Waiting(compiled_wait(), looks_a_second)
    counter = threads._ENDED

    def put() -> None:
        for number in range(3):
            time.sleep(0.001)
            threads._counters[counter] += 1  # not every change is for this queue
            queue.put(number)
            threads._counters[counter] += 1

    other = threading.Thread(target=put)
    other.start()
    assert [waiting.get(queue, counter, 1e-6) for _ in range(3)] == [0, 1, 2]
    other.join()


def test_more_threads_than_processors_do_not_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    as_many, more = threads._start_workers(1), threads._start_workers(2)
    for workers in (as_many, more, more):
        workers.work.put(None)
    assert as_many.waiting.looks_a_second > 0
    assert more.waiting.looks_a_second == 0


def test_in_pieces() -> None:
    engine.set_num_threads(3)
    for size, handovers, number in ((10, 3.9, 1), (10, 4, 2), (10, 8.9, 2), (10, 9, 3), (10, 900, 3), (2, 900, 2)):
        parts: list[slice] = []
        threads.in_pieces(parts.append, size, int(handovers * threads.HANDOVER))
        parts.sort(key=lambda part: part.start)
        assert len(parts) == number
        assert [parts[0].start, parts[-1].stop] == [0, size]
        assert all(one.stop == other.start for one, other in pairwise(parts))


def test_who_sleeps_is_woken_for_a_good_deal_of_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then the caller takes the same parts, with the BLAS told the same."""
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    engine.set_num_threads(1)
    wait_until(lambda: threads._counters[threads._ASLEEP] == 0)  # those of another test have gone
    engine.set_num_threads(2)
    here = threading.current_thread()
    meeting = threading.Barrier(2)

    def meet(part: int) -> None:  # nobody gets past it alone
        meeting.wait(30)

    threads.share(meet, [0, 1])
    monkeypatch.setattr(threads, "_put_off", 0)
    wait_until(lambda: threads._counters[threads._ASLEEP] == 1)
    seen = []
    for _ in range(threads._WAKING // threads.WORTH - 1):
        threads.share(
            lambda part: seen.append((part, threading.current_thread() is here, threads._blas()[1]())),
            [0, 1],
            threads.WORTH,
        )
    assert seen == [(0, True, 1), (1, True, 1)] * (threads._WAKING // threads.WORTH - 1)
    assert (threads._counters[threads._ASLEEP], threads._blas()[1]()) == (1, 2)
    threads.share(meet, [0, 1], threads.WORTH)  # that was the last that it took
    wait_until(lambda: threads._counters[threads._ASLEEP] == 1)
    threads.share(meet, [0, 1], threads._WAKING)


PROGRAM = """
import os, threading
import engine
from engine.kernels.vectors import vector_bytes
from engine.sharing import threads

def meet():  # only three threads together get past the barrier
    meeting = threading.Barrier(3)
    threads.share(lambda part: meeting.wait(60), [0, 1, 2])

engine.set_num_threads(3)
meet()
child = os.fork()
meet()
if not child:
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_child_has_threads_of_its_own_and_the_interpreter_ends() -> None:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PROGRAM]
    job = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (job.returncode, job.stdout, job.stderr) == (0, "0\n", "")


def test_pieces() -> None:
    engine.set_num_threads(3)
    assert threads.pieces(10, 1) == [slice(0, 4), slice(4, 7), slice(7, 10)]
    assert threads.pieces(10, 6) == [slice(0, 10)]
    assert threads.pieces(0, 1) == []


@pytest.mark.parametrize("groups", [1, 2])
def test_convolution_has_the_same_bits_on_any_number_of_threads(groups: int) -> None:
    results = []
    for number in (1, 2, 3):
        engine.set_num_threads(number)
        engine.manual_seed(0)
        x = engine.randn(5, 8, 9, 11).requires_grad_()
        weight = engine.randn(70, 8 // groups, 3, 3).requires_grad_()
        F.conv2d(x, weight, padding=1, groups=groups).square().sum().backward()
        assert x.grad is not None
        assert weight.grad is not None
        results.append((x.grad.numpy(), weight.grad.numpy()))
    for result in results[1:]:
        for actual, expected in zip(result, results[0], strict=True):
            np.testing.assert_array_equal(actual, expected)


@pytest.mark.skipif(vector_bytes() < 64, reason="products are the BLAS's, whose bits depend on the number of threads")
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("reverse", [False, True])
def test_recurrent_layers_have_the_same_bits_on_any_number_of_threads(kind: str, reverse: bool) -> None:
    """All but the gradients of biases, which are products with a vector."""
    layer = getattr(engine.nn, kind)(128, 256, bidirectional=reverse)
    results = []
    for number in (1, 2, 3):
        engine.set_num_threads(number)
        engine.manual_seed(0)
        x, state = engine.randn(6, 37, 128).requires_grad_(), engine.randn(1 + reverse, 37, 256).requires_grad_()
        layer.zero_grad()
        out, _ = layer(x, (state, state) if kind == "LSTM" else state)
        out.square().sum().backward()
        weights = [each.grad for name, each in layer.named_parameters() if "weight" in name]
        results.append([each.numpy() for each in (out.detach(), x.grad, state.grad, *weights) if each is not None])
    for result in results[1:]:
        assert len(result) == 3 + 2 * (1 + reverse)
        for actual, expected in zip(result, results[0], strict=True):
            np.testing.assert_array_equal(actual, expected)
