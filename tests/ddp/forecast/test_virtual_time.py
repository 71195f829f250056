"""Ranks in virtual time: clocks move as said, nobody sees what is still to come, and sums take what is predicted."""

import math

import numpy as np
import pytest

import ddp
from ddp.forecast import Link, Software
from ddp.forecast.network import exchange_seconds
from ddp.forecast.virtual_time import Traffic, now, run_in_virtual_time, traffic, work
from ddp.groups.group import resolve
from ddp.testing import run_ranks
from ddp.transport import chunks

FREE = Software(0.0, 0.0, 0.0)
FAR = Link(math.inf, 1.0)  # a second away, and nothing else
NARROW = Link(1e6, 0.0)  # a byte a microsecond


def send(nbytes: int, target: int) -> None:
    resolve(None).comm.Isend(bytes(nbytes), target).Wait()


def receive(nbytes: int, source: int) -> None:
    resolve(None).comm.Irecv(bytearray(nbytes), source).Wait()


def message(nbytes: int) -> float:
    """Rank 0 sends to rank 1 after 3 seconds of work. Gives when each is through, as all of these do."""
    begin = now()
    if ddp.get_rank() == 0:
        work(3.0)
        send(nbytes, 1)
    else:
        receive(nbytes, 0)
    return now() - begin


def test_a_message_takes_latency_bandwidth_and_software() -> None:
    assert run_in_virtual_time(2, lambda: message(4000), FAR, FREE) == [3.0, 4.0]
    assert run_in_virtual_time(2, lambda: message(4000), NARROW, FREE) == pytest.approx([3.0, 3.004])
    slow = Software(0.5, 1e-3, 0.0)  # the sender's thread is at it for 4 s
    assert run_in_virtual_time(2, lambda: message(4000), Link(math.inf, 0.0), slow) == [7.0, 7.5]


def test_a_link_passes_one_message_after_the_other() -> None:
    """To one rank from two, and from one rank to two."""

    def to_rank_0() -> float:
        begin = now()
        if ddp.get_rank() == 0:
            for source in (1, 2):
                receive(4000, source)
        else:
            send(4000, 0)
        return now() - begin

    def from_rank_0() -> float:
        begin = now()
        if ddp.get_rank() == 0:
            for target in (1, 2):
                send(4000, target)
        else:
            receive(4000, 0)
        return now() - begin

    assert run_in_virtual_time(3, to_rank_0, NARROW, FREE)[0] == pytest.approx(0.008)
    assert run_in_virtual_time(3, from_rank_0, NARROW, FREE)[1:] == pytest.approx([0.004, 0.008])


@pytest.mark.parametrize("late", [0, 1, 2])
def test_all_have_waited_for_the_last_one(late: int) -> None:
    def body() -> float:
        comm, begin = resolve(None).comm, now()
        work(5.0 if ddp.get_rank() == late else 0.1 * ddp.get_rank())
        comm.Barrier()
        return now() - begin

    assert run_in_virtual_time(3, body, FAR, FREE) == [6.0] * 3


def test_nobody_sees_what_is_still_to_come() -> None:
    """Rank 1 contributes after 4 seconds, and what it sends is there a second later, whoever ran first."""

    def body() -> list[tuple[float, bool]]:
        comm, begin = resolve(None).comm, now()
        values, found = np.zeros(1), []
        if ddp.get_rank() == 1:
            work(4.0)
        request = comm.Iallreduce(values.copy(), values)
        while not found or not found[-1][1]:
            found.append((now() - begin, request.Test()))
            work(1.0)
        return found

    first, second = run_in_virtual_time(2, body, FAR, FREE)
    assert first == [(time, time >= 5.0) for time in (0.0, 1.0, 2.0, 3.0, 4.0, 5.0)]
    assert second == [(4.0, False), (5.0, True)]


def test_what_a_rank_has_posted_is_counted() -> None:
    def body() -> dict[str, Traffic]:
        before = traffic()
        comm, rank = resolve(None).comm, ddp.get_rank()
        comm.allgather("x" * 100)
        comm.Allgather(np.zeros(10, np.uint8), np.zeros(30, np.uint8))
        comm.Bcast(np.zeros(1000, np.uint8))
        comm.Allreduce(np.zeros(300, np.uint8), np.zeros(300, np.uint8))
        counts = [10 * rank] * 3  # to each
        received = [0, 10, 20]
        comm.Ialltoallv(
            [np.zeros(100, np.uint8), (counts, [0, 10 * rank, 20 * rank])],
            [np.zeros(100, np.uint8), (received, [0, 0, 10])],
        ).Wait()
        comm.Barrier()
        return {name: count for name, count in traffic().items() if name not in before}

    first, second, third = run_in_virtual_time(3, body, FAR, FREE)
    size = first["allgather"].sent // 2  # of a pickled text
    assert size > 100
    for found in (first, second, third):
        assert found["allgather"] == (1, 2 * size, 2 * size)
        assert found["Allgather"] == (1, 20, 20)
        assert found["Allreduce"] == (1, 400, 400)
        assert found["Barrier"] == (1, 0, 0)
    assert (first["Bcast"], second["Bcast"]) == ((1, 1000, 0), (1, 0, 1000))
    assert [found["Alltoallv"] for found in (first, second, third)] == [(1, 0, 30), (1, 20, 20), (1, 40, 10)]


def test_outside_there_is_no_virtual_time() -> None:
    for call in (now, traffic, lambda: work(1.0)):
        with pytest.raises(RuntimeError, match="only inside of run_in_virtual_time"):
            call()
        with pytest.raises(RuntimeError, match="only inside of run_in_virtual_time"):
            run_ranks(2, call)
    with pytest.raises(ValueError, match="at least two ranks, got 1"):
        run_in_virtual_time(1, now, FAR, FREE)


# --- a sum beside the formula -----------------------------------------------------------------------------------------


def sum_seconds(ranks: int, count: int, parameters: int, link: Link, software: Software) -> list[float]:
    """Of each rank, for the mean of one array of float32 with the header of a bucket of so many parameters."""

    def body() -> float:
        buffer = resolve(None).transport.allocate(count, np.float32, header=8 + parameters)
        buffer.array[:] = buffer.header[:] = 1 + ddp.get_rank() % 2
        begin = now()
        resolve(None).transport.start(buffer, divisor=None)
        resolve(None).transport.wait(buffer)
        odd = ranks // 2
        assert (buffer.header == ranks + odd).all()
        assert buffer.array.min() == buffer.array.max() == np.float32(ranks + 3 * odd) / np.float32(ranks + odd)
        return now() - begin

    return run_in_virtual_time(ranks, body, link, software)


SOFTWARE = {"free": FREE, "usual": Software(2e-5, 1e-10, 1e-6), "slow": Software(2e-5, 3e-9, 1e-5)}
CHUNK = chunks.CHUNK_BYTES // 4


@pytest.mark.parametrize("software", SOFTWARE.values(), ids=SOFTWARE)
@pytest.mark.parametrize("ranks", [2, 8, 64])
def test_a_sum_of_up_to_a_chunk_takes_what_is_predicted(ranks: int, software: Software) -> None:
    """To rounding: these arrays are cut into slices of one length."""
    for link in (Link(1e9, 1e-5), Link(1e8, 1e-3), Link(math.inf, 0.0)):
        for count in (16, 2048, 64 * 64, CHUNK):
            predicted = exchange_seconds(4 * count, ranks, link, software, 8 * 24)
            assert sum_seconds(ranks, count, 16, link, software) == pytest.approx([predicted] * ranks, rel=1e-9)


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_many_chunks_follow_one_another_as_predicted(ranks: int) -> None:
    """To 2 % where the link is what counts; 10 % where posting is, or three chunks under way are few for the way."""
    for count in (3001, 100_000, 2 * CHUNK, 3 * CHUNK, 10 * CHUNK + 999):
        for link, software, tolerance in (
            (Link(1e9, 1e-5), "free", 0.02),
            (Link(1e9, 1e-3), "free", 0.02),
            (Link(1e9, 1e-5), "usual", 0.02),
            (Link(1e9, 1e-3), "usual", 0.02),
            (Link(1e9, 1e-2), "usual", 0.02),
            (Link(1e9, 1e-2), "slow", 0.1),
            (Link(math.inf, 0.0), "usual", 0.1),
        ):
            predicted = exchange_seconds(4 * count, ranks, link, SOFTWARE[software], 8 * 9)
            found = sum_seconds(ranks, count, 1, link, SOFTWARE[software])
            assert found == pytest.approx([predicted] * ranks, rel=tolerance), (count, link, software)


@pytest.mark.parametrize("software", SOFTWARE.values(), ids=SOFTWARE)
@pytest.mark.parametrize(("ranks", "groups"), [(16, 2), (17, 2), (64, 4)])
def test_a_sum_of_groups_takes_what_is_predicted(monkeypatch, ranks: int, groups: int, software: Software) -> None:
    """One chunk to 7 %, several to 15 %, of groups of unlike size 12 and 25 %: of the rank that waits longest."""
    monkeypatch.setattr(chunks, "GROUPED", 16)
    assert chunks.count_groups(ranks) == groups
    for link in (Link(1e9, 1e-5), Link(1e8, 1e-3), Link(math.inf, 0.0)):
        alike = ranks % groups == 0
        cases = [(count, 0.07 if alike else 0.12) for count in (16, 64 * 64, CHUNK)]
        for count, tolerance in [*cases, (4 * CHUNK, 0.15 if alike else 0.25)]:
            predicted = exchange_seconds(4 * count, ranks, link, software, 8 * 24)
            found = sum_seconds(ranks, count, 16, link, software)
            assert max(found) == pytest.approx(predicted, rel=tolerance), (count, link)
