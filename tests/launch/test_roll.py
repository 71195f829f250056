"""The verdict on a job: 0 only where every rank was seen to finish."""

import signal
import socket
from collections.abc import Iterator

import pytest

from launch.peers import Peer
from launch.roll import FAILED, FINISHED, GONE, Roll, name_of_signal, verdict

STAYED = "mpirun did not end when its ranks had and was killed"


@pytest.fixture
def peer() -> Iterator[Peer]:
    with socket.socket() as line:
        yield Peer(line)


def roll_of(peer: Peer, *ends: str, nproc: int = 4) -> Roll:
    """Ranks 0 and 1 on host a, 2 and 3 on host b; one for each of `ends`, in which a number is an exit code."""
    roll = Roll(nproc, {0: "a", 1: "a", 2: "b", 3: "b"})
    for number, how in enumerate(ends):
        roll.arrive(number, 100 + number, "ab"[number // 2], peer)
        if how.isdecimal():
            roll.end(roll.ranks[number], FAILED, int(how))
        elif how:
            roll.end(roll.ranks[number], how)
    return roll


@pytest.mark.parametrize(
    ("ends", "mpirun", "stopped_by", "code", "words"),
    [
        ([FINISHED] * 4, 0, None, 0, ""),
        ([FINISHED] * 4, 3, None, 3, ""),  # in MPI_Finalize
        ([FINISHED] * 4, -signal.SIGKILL, None, 137, ""),
        ([FINISHED, "3", GONE, GONE], 3, None, 3, ""),
        ([FINISHED, "3", GONE, GONE], 0, None, 3, "rank 1 on a and ranks 2, 3 on b were not seen to finish, though"),
        ([FINISHED, FINISHED, GONE, FINISHED], 0, None, 1, "rank 2 on b was not seen to finish, though mpirun"),
        ([FINISHED, FINISHED], 0, None, 1, "ranks 2, 3 on b were not seen to finish, though mpirun returned 0"),
        ([], 0, None, 1, "ranks 0, 1 on a and ranks 2, 3 on b were not seen to finish, though mpirun returned 0"),
        ([FINISHED, "3", GONE, GONE], None, None, 3, f"{STAYED}; rank 1 on a and ranks 2, 3 on b were not seen"),
        ([GONE], None, None, 1, f"{STAYED}; ranks 0, 1 on a and ranks 2, 3 on b were not seen to finish"),
        ([FINISHED] * 4, None, None, 1, f"{STAYED}; their exit code is lost"),
        # A signal: the code is that of the ranks where each ended in its own way.
        ([FINISHED] * 4, 0, signal.SIGTERM, 0, ""),
        ([FINISHED, "9", "7", FINISHED], 143, signal.SIGTERM, 9, ""),
        ([FINISHED] * 3 + [GONE], 0, signal.SIGTERM, 143, ""),
        ([], 0, signal.SIGINT, 130, ""),
    ],
)  # fmt: skip
def test_verdict(
    peer: Peer, ends: list[str], mpirun: int | None, stopped_by: int | None, code: int, words: str
) -> None:
    got, said = verdict(roll_of(peer, *ends), mpirun, stopped_by)
    assert got == code
    assert said.startswith(words)
    assert bool(said) == bool(words)


@pytest.mark.parametrize("others", [["", ""], [GONE, GONE]])  # by mpirun, and heard of at the same time
def test_a_host_is_lost_whose_ranks_are_gone_without_a_word(peer: Peer, others: list[str]) -> None:
    roll = roll_of(peer, *others, GONE, GONE)
    assert not roll.lose("b")  # their processes are there
    roll.ranks[2].there = roll.ranks[3].there = False
    assert roll.lose("b")
    code, words = verdict(roll, 0, None)
    assert code == 1
    assert words == "host b no longer answered; ranks 0, 1 on a and ranks 2, 3 on b were not seen to finish"


def test_a_host_that_answered_first_is_lost_while_others_have_ranks(peer: Peer) -> None:
    roll = roll_of(peer, "", "", GONE, GONE)
    roll.ranks[2].there = roll.ranks[3].there = False
    assert roll.lose("b", answered=True)
    roll = roll_of(peer, GONE, GONE, GONE, GONE)
    for rank in roll.ranks.values():
        rank.there = False
    assert not roll.lose("b", answered=True)  # a batch system ends what is left when all ranks are gone
    assert (roll.lost, roll.doubtful) == ([], ["b"])


def test_a_host_is_not_lost_that_ends_with_a_job_that_failed(peer: Peer) -> None:
    roll = roll_of(peer, "", "3", GONE, GONE)
    roll.ranks[2].there = roll.ranks[3].there = False
    assert not roll.lose("b")


def test_a_host_is_not_lost_when_its_ranks_have_finished(peer: Peer) -> None:
    roll = roll_of(peer, "", "", FINISHED, FINISHED)
    roll.ranks[2].there = roll.ranks[3].there = False
    assert not roll.lose("b")


@pytest.mark.parametrize("others", ["", GONE])
def test_a_host_is_lost_that_answers_nobody_at_the_end(peer: Peer, others: str) -> None:
    """A cut cable: its ranks are still there, as far as is known."""
    roll = roll_of(peer, GONE, GONE, others, others)
    roll.cut_off("b")
    _, words = verdict(roll, 137, None)
    assert words == "host b no longer answered; ranks 0, 1 on a and ranks 2, 3 on b were not seen to finish"


def test_a_host_is_not_lost_that_has_finished_and_answers_nobody(peer: Peer) -> None:
    roll = roll_of(peer, "3", GONE, FINISHED, FINISHED)
    roll.cut_off("b")
    assert roll.lost == []


def test_when_no_rank_is_there_and_none_will_come(peer: Peer) -> None:
    def gone(*ends: str, least: int = 0, there: int | None = None) -> bool:
        roll = roll_of(peer, *ends)
        roll.least = least
        for rank in roll.ranks.values():
            rank.there = rank.number == there
        return roll.gone()

    assert gone(*[FINISHED] * 4)
    assert gone(FINISHED, FINISHED, GONE, "3")
    assert not gone(FINISHED, FINISHED, GONE, "3", there=1)
    assert not gone(), "they are on their way"
    assert not gone(FINISHED, FINISHED, FINISHED), "one may still come"
    assert gone(FINISHED, "3"), "the others will not"
    assert not gone(FINISHED, "3", least=1), "they go on without it"


def test_an_elastic_job_is_over_well_with_the_ranks_that_are_left(peer: Peer) -> None:
    def of(least: int, *ends: str) -> tuple[int, str]:
        roll = roll_of(peer, *ends)
        roll.least = least
        return verdict(roll, 9, None)

    assert of(2, FINISHED, GONE, FINISHED, FINISHED) == (0, "rank 1 on a was lost on the way")
    assert of(2, FINISHED, "1", GONE, FINISHED) == (0, "rank 1 on a and rank 2 on b were lost on the way")
    assert of(2, *[FINISHED] * 4) == (0, "")
    assert of(2, FINISHED, GONE, GONE, GONE) == (
        9,
        "mpirun has ended the job; rank 1 on a and ranks 2, 3 on b were not seen to finish",
    )
    assert of(2, FINISHED, "3", GONE, GONE) == (3, "")
    assert of(0, FINISHED, GONE, FINISHED, FINISHED)[0] == 9


def test_signals_have_names() -> None:
    assert name_of_signal(signal.SIGSEGV) == "SIGSEGV"
    assert name_of_signal(signal.SIGRTMIN + 1) == f"signal {signal.SIGRTMIN + 1}"


def test_who_was_lost_without_a_word_is_named(peer: Peer) -> None:
    assert verdict(roll_of(peer, FINISHED, GONE), 137, None) == (137, "rank 1 on a was lost (SIGKILL)")
    roll = roll_of(peer, FINISHED, "")
    roll.end(roll.ranks[1], GONE, why="os._exit(0)")
    roll.step = 4
    code, words = verdict(roll, 0, None)
    assert code == 1
    assert words.startswith("rank 1 on a was lost at step 4 (os._exit(0)); rank 1 on a and ranks 2, 3 on b were not")
