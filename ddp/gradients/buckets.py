"""The buckets of a model: planned for an order of its parameters, made, exchanged for others; and what they tell."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from typing import NamedTuple

import engine
from ddp.gradients.bucket import Bucket
from ddp.gradients.plan import BucketLayout, plan_buckets
from ddp.transport import Transport, headers
from ddp.watching.progress import Channel
from engine.autograd import graph


class Place(NamedTuple):
    """A parameter in a bucket: the view of its gradient, how many gradients a backward has of it, and how many ranks
    had one in the last.
    """

    view: engine.Tensor
    expected: int
    users: float


class Buckets:
    """Of these parameters, each with its name; the arguments are those of `ddp.gradients.reducer.Reducer`.

    Making it is collective. The first plan is for the order of registration, backwards.
    """

    def __init__(
        self,
        parameters: Sequence[tuple[str, engine.Tensor]],
        transport: Transport | Mapping[engine.device, Transport],
        limits: Sequence[int],
        as_view: bool,
        delayed: Sequence[engine.Tensor],
        shards: int | None,
        leave_unused: bool,
    ) -> None:
        self._names = [name for name, _ in parameters]
        self._parameters = [parameter for _, parameter in parameters]
        self._transports = transport if isinstance(transport, Mapping) else {parameters[0][1].device: transport}
        self.transport = next(iter(self._transports.values()))
        self.poll = self.transport.poll if len(self._transports) == 1 else self._poll_all
        self.limits = limits
        self._as_view = as_view
        self._delayed = {id(parameter) for parameter in delayed}
        self._shards = shards
        self._leave_unused = leave_unused
        self._channel: Channel | None = None  # of the watchdog
        self._layouts = self._plan([*reversed(range(len(parameters)))])
        self.all = self._make()
        """In the order in which they are started."""
        self.same_use = True
        """Whether the ranks used the same parameters in every backward that `note_use` was told of."""
        self._used: list[bool] | None = None  # which ones, in the last

    def _plan(self, order: Sequence[int]) -> list[BucketLayout]:
        """Buckets of the parameters in this order; those that are delayed come last, among themselves."""
        keys = [(parameter.dtype, parameter.device, id(parameter) in self._delayed) for parameter in self._parameters]
        layouts = plan_buckets(self._parameters, keys, self.limits, order)
        return sorted(layouts, key=lambda layout: keys[layout.slots[0].index][2])

    def _make(self) -> list[Bucket]:
        """Collective: allocates what is planned."""
        devices = [self._parameters[layout.slots[0].index].device for layout in self._layouts]
        with self._channel.beside("the making of gradient buckets") if self._channel is not None else nullcontext():
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
                for device, layout in zip(devices, self._layouts, strict=True)
            ]

    def _poll_all(self) -> None:
        """Of a model with parameters on several devices."""
        for transport in self._transports.values():
            transport.poll()

    def follow(self, order: Sequence[int]) -> bool:
        """Collective: exchanges them for buckets in this order of the parameters, with the gradients that lie in them.

        Whether that is another one.
        """
        layouts = self._plan(order)
        if layouts == self._layouts:
            return False
        before, self._layouts = self.all, layouts
        places = {index: _leave(bucket, slot) for bucket in before for slot, index in enumerate(bucket.indices)}
        self.all = self._make()
        for bucket in self.all:
            for slot, index in enumerate(bucket.indices):
                _take_over(bucket, slot, places[index])
        self.all[0].out_of_data, self.all[0].told = before[0].out_of_data, before[0].told
        if self._channel is not None:
            self.watch(self._channel)
        return True

    def watch(self, channel: Channel) -> None:
        """Let the watchdog know from now on which bucket is waited for."""
        self._channel = channel
        for number, bucket in enumerate(self.all, 1):
            bucket.channel = channel
            bucket.number = number
            whose = bucket.names[0] if len(bucket.names) == 1 else f"{bucket.names[0]} to {bucket.names[-1]}"
            bucket.label = f"gradient bucket {number} of {len(self.all)} ({whose})"

    def count_in(self, accumulated: Collection[int]) -> None:
        """To the gradients of these parameters, given by id, something was added since they were last reduced."""
        for bucket in self.all:
            bucket.count_in(accumulated)

    def local_gradients(self) -> list[tuple[str, engine.Tensor]]:
        """Name and parameter of the gradients that are not averaged, since something was added under no_sync."""
        found = []
        for bucket in self.all:
            if 1 in bucket.fresh:
                found += bucket.local_gradients()
        return found

    def expect_reached(self) -> None:
        """Only gradients of parameters to which the backward leads that is going on."""
        reached = graph.are_reached(self._parameters)
        for bucket in self.all:
            bucket.expected = [int(reached[index]) for index in bucket.indices]

    def note_use(self) -> None:
        """Of which parameters some rank had a gradient, in the backward that has ended."""
        used, before = [bool(ranks) for ranks in self.users()], self._used
        self.same_use, self._used = self.same_use and before in (None, used), used

    def users(self) -> list[int]:
        """For each parameter, how many ranks had a gradient of it in the last backward."""
        found = {index: users for bucket in self.all for index, users in bucket.users().items()}
        return [found[index] for index in range(len(self._parameters))]

    def sizes(self) -> list[int]:
        """Bytes of each."""
        return [bucket.buffer.array.nbytes for bucket in self.all]

    @property
    def layout_bytes(self) -> int:
        """Bytes copied so far because a gradient was not laid out as its view in a bucket."""
        return sum(bucket.layout_bytes for bucket in self.all)

    # --- the end of a rank's data: the first bucket's header tells of it ----------------------------------------------

    def announce_end_of_data(self, out_of_data: bool) -> None:
        """From now on the first bucket says whether this rank has no further batch; see `ranks_out_of_data`."""
        self.all[0].out_of_data = out_of_data

    def forget_end_of_data(self) -> None:
        """What ranks said in the last backward counts no more."""
        self.all[0].forget_end_of_data()

    def ranks_out_of_data(self) -> int:
        """How many ranks said in the last backward that they have no further batch."""
        return self.all[0].ranks_out_of_data()


def _leave(bucket: Bucket, slot: int) -> Place:
    """What the next bucket of a parameter has to know."""
    return Place(bucket.members[slot][1], bucket.expected[slot], float(headers.users(bucket.header.header)[slot]))


def _take_over(bucket: Bucket, slot: int, place: Place) -> None:
    """A gradient that lay at this place of another bucket lies here from now on."""
    parameter, view = bucket.members[slot]
    bucket.expected[slot] = place.expected
    headers.users(bucket.header.header)[slot] = place.users
    if parameter.grad is place.view:
        view.copy_(place.view)
        parameter.grad = view
