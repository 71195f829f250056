"""What DistributedDataParallel asks of a `ddp.Job`."""

from collections.abc import Callable
from typing import TYPE_CHECKING, ParamSpec, Protocol, TypeVar

if TYPE_CHECKING:
    from ddp.training.parallel import DistributedDataParallel

P = ParamSpec("P")
T = TypeVar("T")


class JobOfShards(Protocol):
    """Made of so many shards, which the ranks carry between them."""

    num_shards: int
    step: int

    def problem(self, net: "DistributedDataParallel") -> Exception | None:
        """Why the job cannot train this module."""
        ...

    def between(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Collective: calls what is no step, and again where a rank is lost meanwhile."""
        ...

    def enter(self, net: "DistributedDataParallel") -> None:
        """The module is wrapped."""
        ...
