"""What mpirun says of processes that were started later is left out, and nothing else, however it comes in parts."""

import os
from collections.abc import Iterable

import pytest

from launch.noise import Sieve, pass_on

RULE = b"-" * 74 + b"\n"
NOTICED = RULE + b"prterun noticed that process rank 0 with PID 7 on node vm exited on\nsignal 9 (Killed).\n" + RULE
WARNED = b"[warn] Epoll MOD(1) on fd 24 failed. Old events were 6: Bad file descriptor\n"
OTHER = RULE + b"There are not enough slots\n" + RULE
LOST = b"LAUNCHER JOB OBJECT NOT FOUND"


def taken(parts: Iterable[bytes]) -> bytes:
    sieve = Sieve()
    return b"".join(sieve.take(part) for part in [*parts, b""])


@pytest.mark.parametrize("size", [1, 2, 7, 74, 75, 1000])
def test_only_that_is_left_out(size: int) -> None:
    text = (
        b"one\n" + WARNED + NOTICED + b"[warning]\ntwo\rthree" + LOST + LOST + b"\n" + OTHER + NOTICED + RULE + b"end"
    )
    shown = b"one\n[warning]\ntwo\rthree\n" + OTHER + RULE + b"end"
    assert taken(text[at : at + size] for at in range(0, len(text), size)) == shown


def test_nothing_else_is_held_back() -> None:
    sieve = Sieve()
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
        pass_on(source, end).join(10)
    assert os.read(target, 100) == b"a\nb"
    os.close(target)
    os.close(end)
