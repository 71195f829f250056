"""A job is started again when it has lost ranks, and not when that is of no use."""

import socket
from collections.abc import Callable, Collection, Iterator

import pytest

from launch import restart
from launch.hosts import Found, Host
from launch.peers import Peer
from launch.restart import Ended
from launch.roll import FAILED, FINISHED, GONE, Roll


@pytest.fixture
def peer() -> Iterator[Peer]:
    with socket.socket() as line:
        yield Peer(line)


def ended(peer: Peer, code: int, how: str = GONE, error: str = "", lost: str = "", stopped: bool = False) -> Ended:
    """A job of two ranks, of which rank 1 on host b ended first."""
    roll = Roll(2)
    for number in (0, 1):
        roll.arrive(number, 100 + number, "ab"[number], peer)
    roll.end(roll.ranks[1], how, code if how == FAILED else 0, error)
    if lost:
        roll.lost.append(lost)
    return Ended(code, stopped, roll)


def told(*ends: Ended) -> tuple[Callable[[int, Collection[str]], Ended], list[tuple[int, list[str]]]]:
    """A job that ends so, time after time, and a list of what it was started with."""
    starts: list[tuple[int, list[str]]] = []

    def start(number: int, lost: Collection[str]) -> Ended:
        starts.append((number, list(lost)))
        return ends[number]

    return start, starts


def test_lost_ranks_and_hosts_are_another_start(peer: Peer) -> None:
    said: list[str] = []
    start, starts = told(ended(peer, 137), ended(peer, 1, lost="b"), ended(peer, 0, FINISHED))
    assert restart.run(start, 5, said.append) == 0
    assert starts == [(0, []), (1, []), (2, ["b"])]
    assert said == [
        "rank 1 on b was lost (SIGKILL); the job is started again (1 of 5)",
        "host b no longer answered; the job is started again (2 of 5)",
    ]


def test_a_job_that_gets_another_mpirun_has_not_failed(peer: Peer) -> None:
    said: list[str] = []
    ends = [ended(peer, 138, FAILED, "0000008a") for _ in range(3)]
    for each in ends[:2]:
        each.roll.renewed = True
    start, starts = told(*ends, ended(peer, 0, FINISHED))
    assert restart.run(start, 1, said.append) == 0
    assert starts == [(number, []) for number in range(4)]
    assert said == ["rank 1 on b failed; the job is started again (1 of 1)"]


def test_a_job_that_fails_where_it_is_to_get_another_mpirun(peer: Peer) -> None:
    lost = ended(peer, 137)
    lost.roll.renewed = True
    start, _ = told(lost, ended(peer, 0, FINISHED))
    said: list[str] = []
    assert restart.run(start, 1, said.append) == 0
    assert said == ["rank 1 on b was lost (SIGKILL); the job is started again (1 of 1)"]


def test_a_doubtful_host_is_left_out_when_no_rank_comes_to_life(peer: Peer) -> None:
    said: list[str] = []
    first = ended(peer, 137)
    first.roll.doubtful.append("b")
    start, starts = told(first, Ended(213, False, Roll(2)), Ended(213, False, Roll(2)), ended(peer, 0, FINISHED))
    assert restart.run(start, 5, said.append) == 0
    assert starts == [(0, []), (1, []), (2, ["b"]), (3, ["b"])]
    assert said == [
        "rank 1 on b was lost (SIGKILL); the job is started again (1 of 5)",
        "host b no longer answered; the job is started again (2 of 5)",
        "mpirun ended with code 213; the job is started again (3 of 5)",
    ]


def test_a_doubtful_host_that_is_there_again_keeps_its_ranks(peer: Peer) -> None:
    first, second = ended(peer, 137), ended(peer, 137)
    first.roll.doubtful.append("b")
    start, starts = told(first, second, Ended(213, False, Roll(2)), ended(peer, 0, FINISHED))
    assert restart.run(start, 5, str) == 0
    assert starts == [(number, []) for number in range(4)]


def test_there_are_at_most_so_many_starts(peer: Peer) -> None:
    said: list[str] = []
    start, starts = told(*[ended(peer, 137)] * 3)
    assert restart.run(start, 2, said.append) == 137
    assert len(starts) == 3
    assert said[-1].startswith(
        "error: rank 1 on b was lost (SIGKILL); the job was started 3 times, as often as --max-restarts"
    )


def test_the_same_error_twice_is_a_bug(peer: Peer) -> None:
    said: list[str] = []
    start, starts = told(ended(peer, 1, FAILED, "aa"), ended(peer, 1, FAILED, "bb"), ended(peer, 3, FAILED, "bb"))
    assert restart.run(start, 9, said.append) == 3
    assert len(starts) == 3
    assert said[-1] == "error: rank 1 on b failed by the same error as before, which another start does not mend"


@pytest.mark.parametrize("most", [0, 3])
def test_who_is_asked_to_end_ends(peer: Peer, most: int) -> None:
    start, starts = told(ended(peer, 143, stopped=True))
    assert restart.run(start, most, pytest.fail) == 143
    assert len(starts) == 1


def test_without_the_option_nothing_is_said(peer: Peer) -> None:
    start, _ = told(ended(peer, 137))
    assert restart.run(start, 0, pytest.fail) == 137


def test_hosts_that_are_gone_take_no_ranks() -> None:
    found = Found((Host("a.example", 2, 4), Host("b", 3, 4)))
    assert restart.without(found, 5, []) == (found, 5)
    left, ranks = restart.without(found, 5, ["a"])
    assert (left.hosts, ranks) == ((Host("b", 3, 4),), 3)
    assert restart.without(found, None, ["b.example"])[1] is None
    assert restart.without(found, 5, ["a", "b"]) == (found, 5)
    nameless = Found((Host("", 2, 4), Host("", 2, 4)))
    assert restart.without(nameless, 4, ["n1"]) == (nameless, 4)


def test_the_step_and_the_error_are_told(peer: Peer) -> None:
    said: list[str] = []
    first = ended(peer, 1, FINISHED)
    first.roll.ranks[1].ended = ""
    first.roll.end(first.roll.ranks[1], FAILED, 1, "1a2b", "ValueError: x")
    first.roll.step = 7
    second = ended(peer, 255)
    second.roll.ranks[1].why, second.roll.step = "SIGSEGV", 8
    third = ended(peer, 1, lost="b")
    third.roll.step = 9
    start, _ = told(first, second, third, ended(peer, 3), ended(peer, 0, FINISHED))
    assert restart.run(start, 4, said.append) == 0
    assert said == [
        "rank 1 on b failed at step 7 (ValueError: x); the job is started again (1 of 4)",
        "rank 1 on b was lost at step 8 (SIGSEGV); the job is started again (2 of 4)",
        "host b no longer answered at step 9; the job is started again (3 of 4)",
        "rank 1 on b was lost (mpirun ended with code 3); the job is started again (4 of 4)",
    ]
