"""What the tests of ddp share."""

from collections.abc import Iterator
from typing import Any

import pytest

import ddp


@pytest.fixture(scope="module")
def group() -> Iterator[ddp.ProcessGroup]:
    """The world of this file's job."""
    ddp.init_process_group()
    yield ddp.groups.group.resolve(None)
    ddp.destroy_process_group()


@pytest.fixture
def comm() -> Any:
    """All ranks of this file's job, to mpi4py."""
    from mpi4py import MPI

    return MPI.COMM_WORLD
