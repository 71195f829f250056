"""Memory that the ranks of a node share, and what must not be taken for it."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddp.transport import segments


@pytest.mark.mpi(ranks=[1, 2, 4])
def test_every_rank_sees_what_the_others_write(comm) -> None:
    mapping, length = segments.map_segments(comm, 5000)
    mapping[comm.rank * length] = comm.rank + 1
    comm.barrier()
    assert [mapping[rank * length] for rank in range(comm.size)] == list(range(1, comm.size + 1))
    comm.barrier()


@pytest.mark.mpi(ranks=[1, 2, 4])
def test_a_file_that_took_the_place_of_the_memory_is_not_written_to(
    comm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 raises when the others know the path: the number of its descriptor goes to the next file it opens."""
    source = tmp_path / "train.py"
    source.write_text("print()\n")
    made = segments._memory_file

    @contextlib.contextmanager
    def closed_at_once(nbytes: int) -> Iterator[Any]:
        with made(nbytes) as file:
            number = int(file.path.rpartition("/")[2])
            other = os.open(source, os.O_RDWR)
            os.dup2(other, number)
            os.close(other)
            yield file

    monkeypatch.setattr(segments, "_memory_file", closed_at_once)
    with pytest.raises(RuntimeError, match=r"rank 0 cannot map .*: rank 0 has closed it"):
        segments.map_segments(comm, 5000)
    comm.barrier()
    assert source.read_text() == "print()\n"
