"""Ranks with unequal numbers of batches: those that are through take part in the others' steps until all are.

Before each step of one of them, all ranks vote. A rank that has no more data answers with that, and then does what the
others are about to do: it follows their buffers and adds nothing to their gradients. Source: torch.distributed
.algorithms.join.
"""

import warnings
from typing import NamedTuple

import numpy as np

from ddp.gradients.reducer import Reducer
from ddp.groups.process_group import ProcessGroup
from ddp.training.buffers import Buffers

_MANY_STEPS = 1000  # after which a rank that shadows says so, as PyTorch's does


class Vote(NamedTuple):
    """What the ranks agree on before a step: each entry is the largest of theirs."""

    active: int
    """1 + the highest rank that still has data; 0 when none has."""
    synchronize: int
    """Whether gradients will be averaged."""
    buffers: int
    """Whether buffers will be taken over, from the highest active rank."""
    joined: int
    """Whether a rank has no more data."""


class Join:
    """The votes of one `DistributedDataParallel.join` context."""

    def __init__(self, group: ProcessGroup, throw_on_early_termination: bool) -> None:
        self._group = group
        self._throw = throw_on_early_termination
        self.root: int | None = None  # the highest rank that took part in the last step
        self.steps = 0  # shadowed

    def before_step(self, synchronize: bool, buffers: bool) -> Vote:
        """Collective: this rank has data. Raises RuntimeError when another has none and that is to be an error."""
        vote = self._cast(Vote(self._group.rank + 1, synchronize, buffers, 0))
        if self._throw and vote.joined:
            raise RuntimeError("Detected at least one rank that exhausted inputs. Throwing across all ranks.")
        return vote

    def before_shadow_step(self) -> Vote | None:
        """Collective: this rank has no more data. None when nobody has."""
        vote = self._cast(Vote(0, 0, 0, 1))
        if not vote.active:
            return None
        if self._throw:
            raise RuntimeError(f"Rank {self._group.rank} exhausted all inputs.")
        self.steps += 1
        if self.steps == _MANY_STEPS:
            warnings.warn(
                f"Detected uneven input skew of greater than {_MANY_STEPS}. This means that rank {self._group.rank} "
                f"has at least {_MANY_STEPS} fewer inputs than other currently-active ranks. This level of skew could "
                "lead to performance degradation during training.",
                stacklevel=2,
            )
        return vote

    def take_part(self, reducer: Reducer, buffers: Buffers, weight: float) -> None:
        """Collective: this rank has no more data, and follows the others until nobody has. weight: of its zeros."""
        while (vote := self.before_shadow_step()) is not None:
            if vote.buffers:
                buffers.take_over(vote.active - 1)
            if vote.synchronize:
                reducer.shadow(weight)

    def _cast(self, own: Vote) -> Vote:
        votes = np.array(own, np.int64)
        if self._group.comm is not None:
            from mpi4py import MPI

            with self._group.meeting("the vote of join()"):
                self._group.comm.Allreduce(MPI.IN_PLACE, votes, MPI.MAX)
        vote = Vote(*votes.tolist())
        if vote.active:
            self.root = vote.active - 1
        return vote
