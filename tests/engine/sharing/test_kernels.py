"""Waiting for a number that somebody else raises."""

import threading

import numpy as np

from engine.sharing.kernels import compiled_wait


def test_waiting_ends_with_the_number_or_with_the_looks() -> None:
    number, wait = np.zeros(1, np.int64), compiled_wait()
    where = number.ctypes.data
    assert [wait(where, 0, 0, 0), wait(where, 0, 0, 10), wait(where, 1, 0, 0), wait(where, 1, 100, 10)] == [1, 1, 0, 0]
    # A thread of this process can raise it meanwhile: waiting holds no lock of the interpreter.
    raising = threading.Timer(0.05, number.__setitem__, (0, 7))
    raising.start()
    assert wait(where, 7, 1 << 40, 10) == 1
    raising.join()
