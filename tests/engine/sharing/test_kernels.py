"""Waiting for a number that somebody else raises."""

import os
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from engine.sharing.kernels import compiled_post, compiled_sleep, compiled_wait
from tests.launch.jobs import wait_until


def test_waiting_ends_with_the_number_or_with_the_looks() -> None:
    number, wait = np.zeros(1, np.int64), compiled_wait()
    where = number.ctypes.data
    assert [wait(where, 0, 0, 0), wait(where, 0, 0, 10), wait(where, 1, 0, 0), wait(where, 1, 100, 10)] == [1, 1, 0, 0]
    # A thread of this process can raise it meanwhile: waiting holds no lock of the interpreter.
    raising = threading.Timer(0.05, number.__setitem__, (0, 7))
    raising.start()
    assert wait(where, 7, 1 << 40, 10) == 1
    raising.join()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_who_sleeps_is_counted_and_woken(pipe: tuple[int, int]) -> None:
    words, found = np.zeros(2, np.int64), []
    where, sleepers = words.ctypes.data, words.ctypes.data + 8
    thread = threading.Thread(target=lambda: found.append(compiled_sleep()(where, 2, 10, 10, sleepers, pipe[0])))
    thread.start()
    for expected in (1, 2):  # the first time it wakes for less than it waits for, and sleeps again
        wait_until(lambda: words[1] == 1)
        assert compiled_post()(where, sleepers) == 1
        assert (words[0], thread.is_alive()) == (expected, True)
        os.write(pipe[1], b".")
    thread.join()
    assert (found, words.tolist()) == ([1], [2, 0])
    assert compiled_post()(where, sleepers) == 0


def test_nobody_sleeps_for_what_has_come_nor_without_a_file(pipe: tuple[int, int]) -> None:
    words = np.array([3, 0], np.int64)
    where, sleepers = words.ctypes.data, words.ctypes.data + 8
    assert compiled_sleep()(where, 3, 0, 0, sleepers, pipe[0]) == 1
    assert compiled_sleep()(where, 4, 0, 0, sleepers, -1) == 0
    assert words.tolist() == [3, 0]
