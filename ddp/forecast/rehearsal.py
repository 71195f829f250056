"""A backward of a model in virtual time, with the Reducer that a job would have: what its sums add to its own work."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import engine
import engine.nn as nn
from ddp.forecast.network import Link, Software
from ddp.forecast.virtual_time import NO_TRAFFIC, Traffic, now, run_in_virtual_time, traffic, work
from ddp.gradients.bucket import Bucket
from ddp.gradients.reducer import Reducer
from ddp.training.parallel import DistributedDataParallel
from ddp.transport.chunks import MpiBuffer

BACKWARDS = 2  # the first, after which buckets are planned anew, and one like all that follow


class Rehearsal(NamedTuple):
    """What a rank has seen of it.

    buckets: after how many seconds of its own work each was full, its bytes and those of its header. seconds: of all of
    backward. memory: bytes that its transport keeps for the buckets. making, first, another: what it has posted while
    the wrapper was made, in the first backward, and in another one, by kind of collective.
    """

    buckets: list[tuple[float, int, int]]
    seconds: float
    memory: int
    making: dict[str, Traffic]
    first: dict[str, Traffic]
    another: dict[str, Traffic]


def rehearse(
    sizes: Sequence[int],
    seconds: float,
    ranks: int,
    link: Link,
    software: Software,
    bucket_cap_mb: float | None = None,
) -> list[Rehearsal]:
    """Of each rank. sizes: elements of the parameters, in the order of forward. seconds: that a rank works before each
    gradient. bucket_cap_mb: see `DistributedDataParallel`.

    Raises: what `run_in_virtual_time` raises.
    """

    def step() -> Rehearsal:
        model = _Model(sizes, seconds)
        net = DistributedDataParallel(model, bucket_cap_mb=bucket_cap_mb)
        posted, spent, watch = [traffic()], 0.0, _Watch(model)
        for _ in range(BACKWARDS):
            net.live_reducer().observer = watch
            loss, watch.full, model.worked, begin = net(), [], 0.0, now()
            loss.backward()
            spent = now() - begin
            posted.append(traffic())
        buffers: list[Any] = [bucket.buffer for bucket in net.live_reducer().buckets.all]
        first, another = (_less(after, before) for before, after in pairwise(posted))
        return Rehearsal(watch.full, spent, sum(map(_memory, buffers)), posted[0], first, another)

    return run_in_virtual_time(ranks, step, link, software)


class _Model(nn.Module):
    """Parameters of these sizes, before whose gradients backward works for so many seconds. worked: so far."""

    def __init__(self, sizes: Sequence[int], seconds: float) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(engine.zeros(size)) for size in sizes])
        self.seconds = seconds
        self.worked = 0.0

    def forward(self) -> engine.Tensor:
        total = engine.zeros(())
        for weight in self.weights:
            total = total + _Work.apply(weight, self).sum()
        return total


class _Work(engine.autograd.Function):
    """Backward of a layer takes its time."""

    @staticmethod
    def forward(ctx: Any, weight: engine.Tensor, model: _Model) -> engine.Tensor:
        ctx.model = model
        return weight * 1

    @staticmethod
    def backward(ctx: Any, gradient: engine.Tensor) -> tuple[engine.Tensor, None]:
        work(ctx.model.seconds)
        ctx.model.worked += ctx.model.seconds
        return gradient, None


@dataclass(slots=True)
class _Watch:
    """When buckets were full, by the model's own work."""

    model: _Model
    full: list[tuple[float, int, int]] = field(default_factory=list)

    def bucket_filled(self, bucket: Bucket) -> None:
        """See `ddp.gradients.observer`."""
        self.full.append((self.model.worked, bucket.buffer.array.nbytes, bucket.buffer.header.nbytes))

    def bucket_handed_out(self, bucket: Bucket) -> None:
        """See `ddp.gradients.observer`."""

    def backward_ended(self, reducer: Reducer) -> None:
        """See `ddp.gradients.observer`."""


def _less(after: dict[str, Traffic], before: dict[str, Traffic]) -> dict[str, Traffic]:
    since = {name: count.less(before.get(name, NO_TRAFFIC)) for name, count in after.items()}
    return {name: count for name, count in since.items() if count.calls}


def _memory(buffer: MpiBuffer) -> int:
    """Bytes of its arrays, and 8 for each number of how its chunks are cut."""
    numbers = {id(one): len(one) for chunk in buffer.chunks for cut in chunk[3:] for one in cut}
    alone = 0 if buffer.summation is not None else buffer.array.nbytes
    headers = buffer.ahead.nbytes + buffer.everyones.nbytes + buffer.before.nbytes + buffer.total.nbytes
    return headers + alone + 8 * sum(numbers.values())
