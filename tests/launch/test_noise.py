"""What mpirun says of processes that are gone is left out, and nothing else, however it comes in parts."""

import os
from collections.abc import Iterable

import pytest

from launch.noise import Sieve, pass_on

RULE = b"-" * 74 + b"\n"
NOTICED = RULE + b"prterun noticed that process rank 0 with PID 7 on node vm exited on\nsignal 9 (Killed).\n" + RULE
WARNED = b"[warn] Epoll MOD(1) on fd 24 failed. Old events were 6: Bad file descriptor\n"
OTHER = RULE + b"There are not enough slots\n" + RULE
LOST = b"LAUNCHER JOB OBJECT NOT FOUND"
EXITED = RULE + b'prterun has exited due to process rank 1 with PID 0 on node vm calling\n"abort".\n' + RULE
MPICH = b"""
===================================================================================
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   PID 16024 RUNNING AT vm
=   EXIT CODE: 9
=   CLEANING UP REMAINING PROCESSES
=   YOU CAN IGNORE THE BELOW CLEANUP MESSAGES
===================================================================================
YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Segmentation fault (signal 11)
This typically refers to a problem with your application.
Please see the FAQ page for debugging suggestions
"""
INTEL = b"""
===================================================================================
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   RANK 1 PID 16318 RUNNING AT vm
=   KILLED BY SIGNAL: 9 (Killed)
===================================================================================
"""
ABORTED = b"Abort(5) on node 1 (rank 1 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 5) - process 1\n"


def taken(parts: Iterable[bytes], killed: dict[int, int] | None = None) -> bytes:
    sieve = Sieve({} if killed is None else killed)
    return b"".join(sieve.take(part) for part in [*parts, b""])


@pytest.mark.parametrize("size", [1, 2, 7, 74, 75, 1000])
def test_only_that_is_left_out(size: int) -> None:
    text = (
        b"one\n" + WARNED + NOTICED + b"[warning]\ntwo\rthree" + LOST + LOST + b"\n" + OTHER + NOTICED + RULE + b"end"
    )
    shown = b"one\n[warning]\ntwo\rthree\n" + OTHER + RULE + b"end"
    assert taken(text[at : at + size] for at in range(0, len(text), size)) == shown


@pytest.mark.parametrize("size", [1, 2, 83, 84, 1000])
def test_each_mpi_says_who_was_killed(size: int) -> None:
    text = b"one\n" + EXITED + b"\0" + NOTICED + MPICH + b"\n" + INTEL + ABORTED + b"Abort(1)\n\0"
    killed: dict[int, int] = {}
    assert taken((text[at : at + size] for at in range(0, len(text), size)), killed) == b"one\n\nAbort(1)\n\0"
    assert killed == {7: 9, 16024: 11, 16318: 9}


def test_nothing_else_is_held_back() -> None:
    sieve = Sieve({})
    assert sieve.take(b"50 %\r") == b"50 %\r"
    assert sieve.take(b"-----") == b"-----", "in the midst of a line"
    assert sieve.take(b"\n---") == b"\n"
    assert sieve.take(b"+\n") == b"---+\n"
    assert sieve.take(b"L") == b""
    assert sieve.take(b"oss 1\n") == b"Loss 1\n"
    assert sieve.take(NOTICED[:100]) == b""
    assert sieve.take(b"") == NOTICED[:100], "it does not come to its end"


def test_it_copies_to_the_end() -> None:
    reading, writing = os.pipe()
    target, end = os.pipe()
    os.write(writing, b"a\n" + NOTICED + b"b")
    os.close(writing)
    with os.fdopen(reading, "rb") as source:
        pass_on(source, end, {}).join(10)
    assert os.read(target, 100) == b"a\nb"
    os.close(target)
    os.close(end)
