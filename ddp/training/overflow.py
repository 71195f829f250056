"""One verdict on overflow for all ranks: `engine.amp.GradScaler` skips a step on all of them or on none.

Averaged gradients are the same on every rank, infinities and NaN included, so nothing needs saying after a backward of
DistributedDataParallel. Where an optimizer sees gradients of its own rank only, `agree_on_overflow` sums the verdicts.
"""

from functools import partial

import engine
from ddp.collectives import all_reduce
from ddp.collectives.reductions import ReduceOp
from ddp.groups.group import resolve
from ddp.groups.process_group import ProcessGroup
from engine.optim import Optimizer


def sum_found_inf(group: ProcessGroup | None, found_inf: engine.Tensor) -> None:
    """`found_inf`, a 0-dim float32 tensor that is 1 where this rank saw an overflow, becomes the largest of all ranks.

    Collective.
    """
    all_reduce(found_inf, ReduceOp.MAX, group)


def agree_on_overflow(optimizer: Optimizer, group: ProcessGroup | None = None) -> None:
    """From now on a `GradScaler` that unscales or steps `optimizer` asks all ranks of the group for their verdicts.

    For parameters whose gradients are not averaged (experts, shards, adapters of one rank). Each such `unscale_` or
    `step` is then collective. ZeroRedundancyOptimizer and PostLocalSGDOptimizer do it by themselves.

        agree_on_overflow(optimizer)
        scaler.step(optimizer)  # on all ranks, or on none
    """
    optimizer.agree_on_found_inf = partial(sum_found_inf, resolve(group))  # type: ignore[attr-defined]
