"""A backward of the real Reducer in virtual time takes what is predicted, and no term of it grows faster than said."""

import math

import pytest

from ddp.forecast import Link, Software, Workload, rehearse
from ddp.forecast.prediction import NO_TIME, exposed_seconds
from ddp.forecast.rehearsal import Rehearsal
from ddp.transport import chunks
from ddp.transport.headers import length

USUAL = Software(2e-5, 1e-10, 1e-6)
FREE = Software(0.0, 0.0, 0.0)
SIZES = [4096] * 12  # 16 KiB each; three buckets
CAP = 4 * 4096 * 4 / 2**20


def slowest(everyones: list[Rehearsal]) -> Rehearsal:
    """Of ranks in groups, whose first one has its results last."""
    return max(everyones, key=lambda found: found.seconds)


def exposed(found: Rehearsal, work: float, ranks: int, link: Link, software: Software) -> tuple[float, float]:
    """In virtual time, and as predicted."""
    workload = Workload(work, [0.0], found.buckets, NO_TIME, 1, found.seconds)
    return found.seconds - work, exposed_seconds(workload, ranks, link, software)


@pytest.mark.parametrize("ranks", [2, 8, 64])
@pytest.mark.parametrize(
    ("work", "link", "software", "tolerance"),
    [
        (1e-4, Link(1e9, 1e-5), USUAL, 1e-9),  # all but the last bucket is hidden
        (1e-3, Link(1e8, 1e-5), USUAL, 1e-9),
        (1e-4, Link(1e8, 1e-5), USUAL, 0.05),  # the link is behind
        (1e-4, Link(1e8, 1e-3), FREE, 0.12),  # so is the way
        (1e-6, Link(math.inf, 0.0), Software(0.0, 0.0, 1e-5), 0.05),  # posting takes longer than backward
    ],
)
def test_a_backward_takes_what_is_predicted(ranks, work, link, software, tolerance) -> None:
    everyones = rehearse(SIZES, work, ranks, link, software, CAP)
    found = everyones[-1]
    assert [nbytes for _, nbytes, _ in found.buckets] == [4 * 4 * 4096] * 3
    assert [full for full, _, _ in found.buckets] == pytest.approx([4 * work, 8 * work, 12 * work])
    assert [each.seconds for each in everyones] == pytest.approx([found.seconds] * ranks)
    virtual, predicted = exposed(found, 12 * work, ranks, link, software)
    assert virtual == pytest.approx(predicted, rel=tolerance)


# --- growth -----------------------------------------------------------------------------------------------------------


def by_ranks(counts: tuple[int, ...]) -> dict[int, Rehearsal]:
    """Of the last rank: nothing is its own."""
    return {ranks: rehearse(SIZES, 1e-4, ranks, Link(1e9, 1e-5), USUAL, CAP)[-1] for ranks in counts}


def check_growth(found: dict[int, Rehearsal]) -> None:
    """Against what the code says of itself: each term is one of a + b (P - 1), with a and b known."""
    header = 8 * length(4)  # of four parameters
    whole = -(-header // 64) * 64
    _, fewest = min(found.items())
    for ranks, each in found.items():
        others = ranks - 1
        for phase in ("making", "first", "another"):
            calls = {name: count.calls for name, count in getattr(each, phase).items()}
            assert calls == {name: count.calls for name, count in getattr(fewest, phase).items()}, (ranks, phase)
        assert each.making.keys() == {"Dup", "allgather", "Bcast"}
        # Objects: a digest from each; in the first backward whether it has an order, from rank 0 that.
        assert each.making["allgather"].received <= 64 * others
        assert each.first["allgather"].received <= 32 * others + 4 * len(SIZES) + 64
        # The weights come once; the headers of three buckets from everyone; a sum takes at most twice its bytes.
        nbytes = 4 * sum(SIZES)
        assert (each.making["Bcast"].sent, each.making["Bcast"].received) == (0, nbytes)
        for step in (each.first, each.another):
            assert step["Allgather"] == (3, 3 * whole * others, 3 * whole * others)
            for name in ("Alltoallv", "Allgatherv"):
                rounded = 3 * others * 64 * math.ceil(nbytes / 3 / ranks / 64)  # slices of whole cache lines
                assert max(step[name].sent, step[name].received) <= rounded
        assert each.another.keys() == {
            "Allgather",
            "Alltoallv",
            "Allgatherv",
        }  # a step compares replicas in the headers
        # Kept: the gradients, the header of each bucket from everyone, and seven numbers a rank for its chunk.
        assert each.memory <= nbytes + 3 * (whole * (ranks + 1) + 8 * (7 * ranks + 1))


def test_nothing_grows_faster_than_said() -> None:
    check_growth(by_ranks((2, 8, 32, 128)))


def check_growth_of_groups(ranks: int, found: Rehearsal) -> None:
    """The same where ranks are groups of one size: in a step, a term is one of a + b (L - 1) with L ranks in each."""
    groups = chunks.count_groups(ranks)
    header, size = 8 * length(4), ranks // groups
    whole = -(-header // 64) * 64
    assert found.making.keys() == {"Dup", "allgather", "Bcast"}
    assert found.making["allgather"].received <= 5 * 64 * (ranks - 1)  # with four splits of all ranks
    assert found.first["allgather"].received <= 32 * (ranks - 1) + 4 * len(SIZES) + 64
    nbytes = 4 * sum(SIZES)
    part = 64 * math.ceil(nbytes / 3 / size / 64)
    for step in (found.first, found.another):
        assert step["Allgather"] == (3, 3 * whole * (size - 1), 3 * whole * (size - 1))
        assert step["Bcast"][0] == 3  # the sums of the headers
        for name in ("Alltoallv", "Allgatherv"):
            assert step[name].calls == 3
            assert max(step[name].sent, step[name].received) <= 3 * (size - 1) * part
        # Of the last group, whose last rank sums no headers: sums come, and results go back.
        assert step["Send"].calls == 3
        assert max(step["Send"].sent, step["Send"].received) <= 3 * part
    assert found.another.keys() == {"Allgather", "Bcast", "Alltoallv", "Allgatherv", "Send"}
    assert found.memory <= nbytes + 3 * (whole * (size + 1) + 16 * (header + 16) + 8 * (7 * size + 1))


def test_nothing_of_groups_grows_faster_than_said(monkeypatch) -> None:
    monkeypatch.setattr(chunks, "GROUPED", 16)
    for ranks, found in by_ranks((16, 64, 100)).items():
        check_growth_of_groups(ranks, found)


@pytest.mark.full
def test_nothing_grows_faster_than_said_on_1024_ranks() -> None:
    """A minute of a core, and 2 GB."""
    ranks, link = 1024, Link(1e9, 1e-5)
    everyones = rehearse(SIZES, 1e-4, ranks, link, USUAL, CAP)
    check_growth_of_groups(ranks, everyones[-1])
    virtual, predicted = exposed(slowest(everyones), 12e-4, ranks, link, USUAL)
    assert virtual == pytest.approx(predicted, rel=0.01)


@pytest.mark.parametrize("ranks", [16, 64])
@pytest.mark.parametrize(
    ("work", "link", "software", "tolerance"),
    [
        (1e-4, Link(1e9, 1e-5), USUAL, 0.1),
        (1e-4, Link(1e8, 1e-5), USUAL, 0.1),
        (1e-4, Link(1e8, 1e-3), FREE, 0.16),
        (1e-6, Link(math.inf, 0.0), Software(0.0, 0.0, 1e-5), 0.05),
    ],
)
def test_a_backward_of_groups_takes_what_is_predicted(monkeypatch, ranks, work, link, software, tolerance) -> None:
    """Where hooks are frequent, as with a thread: hops along the groups wait for somebody who looks."""
    monkeypatch.setattr(chunks, "GROUPED", 16)
    found = slowest(rehearse(SIZES, work, ranks, link, software, CAP))
    virtual, predicted = exposed(found, 12 * work, ranks, link, software)
    assert virtual == pytest.approx(predicted, rel=tolerance)
