"""What DistributedDataParallel asks of a `ddp.Job`."""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ddp.training.parallel import DistributedDataParallel


class JobOfShards(Protocol):
    """Made of so many shards, which the ranks carry between them."""

    num_shards: int
    step: int

    def problem(self, net: "DistributedDataParallel") -> Exception | None:
        """Why the job cannot train this module."""
        ...

    def enter(self, net: "DistributedDataParallel") -> None:
        """The module is wrapped."""
        ...
