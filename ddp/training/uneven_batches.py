"""Uneven inputs without a context: a loader that goes on until the last rank is out of data.

A rank whose batches have run out gets its last one again, and its gradients do not count: the loop runs equally often
on all ranks, and with it optimizers, schedulers and whatever else is in it. (`DistributedDataParallel.join`, PyTorch's
way, waits outside the loop, so that optimizer states drift apart.) "This is my last batch" travels in the header of the
first bucket, so that all ranks stop after the same step and no message is sent for it.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from engine.autograd.node import RemovableHandle

if TYPE_CHECKING:
    from ddp.training.parallel import DistributedDataParallel

T = TypeVar("T")
_MOST_WITHOUT_BACKWARD = 1000  # repeated batches, before the loop is taken for one that does not train


class uneven(Generic[T]):
    """An iterable over the batches of `loader`, as many on every rank as the rank with most of them has.

        for batch in ddp.uneven(loader, net):  # nothing else changes
            optimizer.zero_grad()
            loss_fn(net(batch)).backward()
            optimizer.step()

    While `standing_in` is true the batch is a repeated one (a rank that never had any gets one of another rank): skip
    it in metrics. Its gradients are dropped, so that the mean is over the ranks that have data, each with its
    `set_gradient_weight`; accumulation under `no_sync` may span the end of data. Buffers (batch norm statistics) follow
    the lowest rank that has data. A SyncBatchNorm sees repeated batches in its statistics.

    Each iteration is collective: one backward a step, under `no_sync` or not, alike on all ranks. With several `nets`
    the first one says when it is over. Iterating is for training; break out of it on all ranks or none.

    Raises RuntimeError when a rank that is out of data sees no backward come.
    """

    def __init__(self, loader: Iterable[T], net: "DistributedDataParallel", *nets: "DistributedDataParallel") -> None:
        if any(one.job is not None for one in (net, *nets)):
            raise ValueError("uneven: the shards of a job have equally many batches on every rank (ddp.ShardSampler)")
        self.loader = loader
        self.nets = [net, *nets]
        self.standing_in = False
        self._root = 0  # the rank whose buffers count
        self._outs_seen = 0
        self._hooks: list[RemovableHandle] = []

    def __iter__(self) -> Iterator[T]:
        first, group = self.nets[0], self.nets[0].process_group
        reducers = [net.live_reducer() for net in self.nets]
        batches = iter(self.loader)
        batch: Any = next(batches, _NONE)
        having = [rank for rank, has in enumerate(group.exchange(batch is not _NONE)) if has]
        if not having:
            return
        if len(having) < group.size() and group.comm is not None:
            with group.meeting("a batch for the ranks without one"):
                lent = group.objects().bcast(batch if group.rank == having[0] else None, having[0])
            batch = lent if batch is _NONE else batch
        self._root, self._outs_seen = having[0], 0
        for net in self.nets:
            net.follow_batches(self)
        for reducer in reducers:
            reducer.buckets.forget_end_of_data()
        waiting = 0
        stands_in = group.rank not in having
        try:
            while True:
                following: Any = _NONE if stands_in else next(batches, _NONE)
                self._stand_in(stands_in)
                for reducer in reducers:
                    reducer.buckets.announce_end_of_data(following is _NONE)
                before = first.forwards, reducers[0].backwards
                yield batch
                if reducers[0].buckets.ranks_out_of_data() == group.size():
                    break
                waiting = waiting + 1 if stands_in and reducers[0].backwards == before[1] else 0
                if waiting and (first.forwards == before[0] or waiting > _MOST_WITHOUT_BACKWARD):
                    raise RuntimeError(
                        f"uneven: rank {group.rank} is out of data, and its loop runs no backward through the wrapped "
                        "module, so it would never learn when the others are; iterate over the loader itself where "
                        "nothing is trained"
                    )
                stands_in = following is _NONE
                batch = batch if stands_in else following
            if self._root != 0:
                for net in self.nets:
                    net.take_over_buffers(self._root)
        finally:
            self._stand_in(False)
            for net in self.nets:
                net.follow_batches(None)
            for reducer in reducers:
                reducer.buckets.announce_end_of_data(False)

    def root(self) -> int:
        """The rank whose buffers count in this step; collective after a step in which a rank ran out of data."""
        root = self._root  # also where it stands in now: what it has is of its last own batch
        outs = self.nets[0].live_reducer().buckets.ranks_out_of_data()
        if outs != self._outs_seen:
            self._outs_seen = outs
            idle = self.nets[0].process_group.exchange(self.standing_in)
            self._root = idle.index(False) if False in idle else root
        return root

    def _stand_in(self, stands_in: bool) -> None:
        if stands_in and not self.standing_in:
            parameters = [parameter for net in self.nets for parameter in net.live_reducer().parameters]
            self._hooks = [parameter.gradient_edge()[0].register_prehook(_drop) for parameter in parameters]
        elif not stands_in:
            for hook in self._hooks:
                hook.remove()
            self._hooks.clear()
        self.standing_in = stands_in
        for net in self.nets:
            net.stand_in(stands_in)


_NONE = object()  # no batch


def _drop(gradients: tuple[Any, ...]) -> tuple[None, ...]:
    """Hook of a leaf: no gradient comes."""
    return (None,) * len(gradients)
