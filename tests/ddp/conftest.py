"""What the tests of ddp share."""

from collections.abc import Iterator

import pytest

import ddp


@pytest.fixture(scope="module")
def group() -> Iterator[ddp.ProcessGroup]:
    """The world of this file's job."""
    ddp.init_process_group()
    yield ddp.group.resolve(None)
    ddp.destroy_process_group()
