"""A room: what ranks lay down round by round is read whole by all, however their paces differ."""

import os

import numpy as np
import pytest

from ddp.transport.pausing import pause
from ddp.transport.room import PLACE_BYTES, Room


def go_on(room: Room) -> None:
    looks = 0
    while not room.is_filled():
        pause(looks, room.spins)
        looks += 1


@pytest.mark.mpi(ranks=[1, 2, 3, 4])
def test_everybody_reads_what_all_have_laid_down(comm) -> None:
    room = Room(comm)
    delays = np.random.default_rng(comm.rank)
    for round_ in range(300):
        count = 1 + round_ % 40
        room.lay_down([np.full(count, comm.rank * 1000 + round_, np.int32)], (round_, comm.rank, round_ + 1))
        go_on(room)
        assert room.words() == [[round_, rank, round_ + 1] for rank in range(comm.size)]
        for rank, part in enumerate(room.parts(count, np.int32)):
            assert (part == rank * 1000 + round_).all()
        if delays.integers(10) == 0:
            os.sched_yield()
    room.close()


@pytest.mark.mpi(ranks=[2])
def test_a_place_is_as_large_as_it_says_and_is_read_from_anywhere(comm) -> None:
    room = Room(comm)
    values = np.arange(PLACE_BYTES // 8, dtype=np.float64) + comm.rank
    room.lay_down([values])
    go_on(room)
    assert np.array_equal(room.part(1, values.size, np.float64), np.arange(values.size) + 1)
    assert np.array_equal(room.part(0, 5, np.float64, 100), np.arange(100, 105))
    room.lay_down([values[:3], values[:0], values[3:5]], apart=64)
    go_on(room)
    for first, begin, end in ((0, 0, 3), (16, 3, 5)):
        assert np.array_equal(room.part(1, end - begin, np.float64, first), np.arange(begin, end) + 1)
    room.close()


@pytest.mark.mpi(ranks=[2])
def test_after_an_exception_in_the_midst_of_a_round_nothing_goes_on(comm) -> None:
    room = Room(comm)
    room.stop(KeyboardInterrupt())
    with pytest.raises(RuntimeError, match="KeyboardInterrupt ended it in the midst of a sum"):
        room.lay_down([np.ones(3)])
    room.close()
