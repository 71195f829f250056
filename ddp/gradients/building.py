"""Which buckets a model's gradients have: planned for an order of its parameters, made, and exchanged for others."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext

import engine
from ddp.gradients.bucket import Bucket
from ddp.gradients.plan import BucketLayout, plan_buckets
from ddp.transport import Transport
from ddp.watching.progress import Channel


class BucketBuilder:
    """Of these parameters, each with its name; the other arguments are those of `ddp.gradients.reducer.Reducer`."""

    def __init__(
        self,
        parameters: Sequence[tuple[str, engine.Tensor]],
        transports: Mapping[engine.device, Transport],
        limits: Sequence[int],
        as_view: bool,
        delayed: Sequence[engine.Tensor],
        shards: int | None,
        leave_unused: bool,
    ) -> None:
        self._names = [name for name, _ in parameters]
        self._parameters = [parameter for _, parameter in parameters]
        self._transports = transports
        self._limits = limits
        self._as_view = as_view
        self._delayed = {id(parameter) for parameter in delayed}
        self._shards = shards
        self._leave_unused = leave_unused

    def plan(self, order: Sequence[int]) -> list[BucketLayout]:
        """Buckets of the parameters in this order; those that are delayed come last, among themselves."""
        keys = [(parameter.dtype, parameter.device, id(parameter) in self._delayed) for parameter in self._parameters]
        layouts = plan_buckets(self._parameters, keys, self._limits, order)
        return sorted(layouts, key=lambda layout: keys[layout.slots[0].index][2])

    def make(self, layouts: Sequence[BucketLayout], channel: Channel | None) -> list[Bucket]:
        """Collective: allocates what is planned. channel: where the watchdog sees that it is waited for."""
        devices = [self._parameters[layout.slots[0].index].device for layout in layouts]
        with channel.beside("the making of gradient buckets") if channel is not None else nullcontext():
            return [
                Bucket(
                    self._transports[device],
                    layout,
                    self._parameters,
                    self._names,
                    self._as_view,
                    self._shards,
                    self._leave_unused,
                )
                for device, layout in zip(devices, layouts, strict=True)
            ]

    def exchange(self, before: list[Bucket], layouts: list[BucketLayout], channel: Channel | None) -> list[Bucket]:
        """Collective: buckets of these layouts, with the gradients that lie in the old ones."""
        places = {index: bucket.leave(slot) for bucket in before for slot, index in enumerate(bucket.indices)}
        buckets = self.make(layouts, channel)
        for bucket in buckets:
            for slot, index in enumerate(bucket.indices):
                bucket.take_over(slot, places[index])
        buckets[0].take_over_end_of_data(before[0])
        return buckets


def watch(buckets: Sequence[Bucket], channel: Channel) -> None:
    """Let the watchdog know from now on which bucket is waited for."""
    for number, bucket in enumerate(buckets, 1):
        bucket.channel = channel
        bucket.number = number
        whose = bucket.names[0] if len(bucket.names) == 1 else f"{bucket.names[0]} to {bucket.names[-1]}"
        bucket.label = f"gradient bucket {number} of {len(buckets)} ({whose})"
