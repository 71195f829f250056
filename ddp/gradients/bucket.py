"""A bucket at work: a buffer of the transport, the gradients that lie in it, and which of them are still to come."""

from collections.abc import Collection, Sequence
from contextlib import nullcontext
from itertools import compress
from typing import TYPE_CHECKING, Any

import numpy as np

import engine
from ddp.gradients.gathering import gather
from ddp.gradients.grad_bucket import BoundHook
from ddp.gradients.history import with_history_of
from ddp.gradients.plan import BucketLayout
from ddp.gradients.stage import FOLLOWING, Stage
from ddp.gradients.streams import Streams
from ddp.transport import Buffer, Transport, headers
from ddp.transport.headers import Header
from ddp.watching.progress import Channel, begin_wait, end_wait
from engine.autograd import graph
from engine.memory import backend
from engine.tensor import array_of

if TYPE_CHECKING:
    from ddp.execution.futures import Future


SILENCE = (0.0, 0.0, 0.0)  # of a rank that says nothing of its replica


class Bucket:
    """See the module. Making one is collective.

    layout: places of the parameters. parameters, names: of the whole model. as_view: whether `.grad` is to be the
    bucket's memory. shards: how many the sum is made of, on all ranks together; None: one a rank, in rank order.
    leave_unused: leave `.grad` alone where this rank had no gradient, even if another one had.
    """

    def __init__(
        self,
        transport: Transport,
        layout: BucketLayout,
        parameters: Sequence[engine.Tensor],
        names: Sequence[str],
        as_view: bool,
        shards: int | None = None,
        leave_unused: bool = False,
    ) -> None:
        self.transport = transport
        self.indices = [slot.index for slot in layout.slots]
        self.names = [names[index] for index in self.indices]
        self.parameters = owners = [parameters[index] for index in self.indices]
        size = len(self.indices)
        length = headers.length(size)
        self.buffer = transport.allocate(layout.count, owners[0].dtype.numpy, header=length, shards=shards)
        self._of_shards = np.zeros(length)  # headers of those that have come
        self.header = self.buffer  # the buffer whose header is used
        self.rooms: dict[tuple[str, int, engine.dtype], Buffer] = {}  # memory of the transport for hooks
        device = owners[0].device
        memory = engine.device("cpu") if shards is not None else device
        self.flat = engine.Tensor(self.buffer.array, backend.spec_of_array(self.buffer.array, memory))
        self._host: engine.Tensor | None = None  # where shards of gradients on a GPU are added up
        self.streams: Streams | None = None
        if memory is not device:
            self._host, self.flat = self.flat, self.flat.to(device)
            self.streams = Streams(device, {})
        elif device.type != "cpu":
            buffer: Any = self.buffer
            self.streams = Streams(device, buffer.streams)
        start = self.flat.storage_offset()  # the transport may hand out the middle of a larger block
        # detach: for the user no views, but their version counter is the bucket's, counted up once for all of them
        views = [self.flat.as_strided(slot.shape, slot.stride, start + slot.offset).detach() for slot in layout.slots]
        self.views = views
        self.members = list(zip(owners, views, strict=True))
        self.as_view = as_view
        self.layout_bytes = 0  # copied so far because a gradient was not laid out as its view
        self.fresh = bytearray(size)  # whether a gradient has come since the bucket was last reduced
        self.astray = False  # some gradients are not in their views
        self.stage = Stage.IDLE
        self.out_of_data = False  # this rank has no further batch
        self.state = SILENCE  # what the header says of this rank's replica
        self.told = Header(0.0)  # what all ranks said when the bucket was last reduced
        self.channel: Channel | None = None  # where the watchdog sees that it is waited for, under which label
        self.label = ""
        self.number = 0  # in the order in which buckets are started, from 1
        self.turn = 0  # its place among what was started in the channel
        self.expected = [1] * size  # gradients of each parameter in one backward
        self.missing = [1] * size  # those that have not come yet; below 0: more came than expected
        self.pending = 0  # the sum of those above 0
        self._fresh = np.frombuffer(self.fresh, np.uint8)
        self._own = bytes(size) if leave_unused else None  # which parameters this rank had a gradient of
        self.kept: dict[int, backend.Array] = {}  # gradients to be put back if no rank had a fresh one
        self._result: Future[engine.Tensor] | None = None  # of a hook
        self.under_way: list[Buffer] = []  # what a hook started of `rooms` and the buffer, and nobody has waited for

    def separate_header(self) -> None:
        """Collective: from now on a hook reduces the gradients, and the header travels without them."""
        self.header = self.allocate(0, np.float32, headers.length(len(self.members)))

    def allocate(self, count: int, dtype: Any, header: int) -> Buffer:
        """Collective: further memory of the transport."""
        with self.channel.beside("the making of memory for a hook") if self.channel is not None else nullcontext():
            return self.transport.allocate(count, dtype, header=header)

    def enter(self, stage: Stage) -> None:
        """The only way from one stage to the next."""
        assert stage in FOLLOWING[self.stage], f"a bucket that is {self.stage.name} cannot become {stage.name}"
        self.stage = stage

    # --- filling ------------------------------------------------------------------------------------------------------

    def begin(self, delay: bool) -> None:
        """A backward that is synchronised has begun. delay: the bucket is not to count as full before its end."""
        self.missing[:] = self.expected
        self.pending = sum(self.expected) + delay
        self.enter(Stage.FILLING)

    def learn(self) -> None:
        """From now on expect as many gradients as came in this backward."""
        self.expected = [before - missing for before, missing in zip(self.expected, self.missing, strict=True)]

    def count_in(self, accumulated: Collection[int]) -> None:
        """To the gradients of these parameters, given by id, something was added since they were last reduced."""
        for slot, (parameter, _) in enumerate(self.members):
            self.fresh[slot] |= id(parameter) in accumulated
        self.astray = True

    def restart(self) -> None:
        """The next shard to come is the first one of this rank."""
        assert self.buffer.shards is not None
        self.buffer.shards.restart()
        self._of_shards[:] = 0

    def start(self, weight: float, hook: BoundHook | None, last: bool = True) -> None:
        """Send it off, with every parameter's `.grad` in its view; or keep it, where further shards are to come."""
        # Where each parameter has told in this backward that its gradient is in its view, there is nothing to gather.
        if self.pending or self.astray or 0 in self.expected or 0 in self.fresh:
            if self.streams is None:
                gather(self)
            else:
                with self.streams.on_device():
                    gather(self)
                self.streams.note()
        incomplete = 0 in self.fresh
        said = Header(weight, 0, 0, incomplete, self.out_of_data, *self.state)
        headers.write(self.header.header, said, used=self._fresh if incomplete else 1)
        if self._own is not None:
            self._own = bytes(self.fresh)
        self._fresh.fill(0)
        self.astray = False
        if self.buffer.shards is not None:
            if self._host is not None:
                assert self.streams is not None
                self.streams.join()
                array_of(self._host)[...] = array_of(self.flat.detach().cpu())
            self.buffer.shards.add(weight)
            self.header.header[:] += self._of_shards
            self._of_shards[:] = self.header.header
        if last:
            self._send(weight, hook)
        else:
            self.enter(Stage.SUMMED)

    def give_up(self, weight: float, hook: BoundHook | None) -> None:
        """Send off the news that this rank's backward failed, and zeros.

        A hook that raised after it had started a sum is not called again: the other ranks have started that one only.
        """
        if not self.under_way:
            self.buffer.array[...] = 0
        headers.write(self.header.header, Header(weight, failed=1, failed_rank=self.transport.rank, incomplete=1))
        self._send(weight, None if self.under_way else hook)

    def shadow(self, weight: float, hook: BoundHook | None) -> None:
        """Send off zeros, of a rank that has no data, in place of whatever the bucket holds."""
        self.buffer.array[...] = 0
        headers.write(self.header.header, Header(weight, incomplete=1))
        self._send(weight, hook)

    def _send(self, weight: float, hook: BoundHook | None) -> None:
        if hook is not None:
            if self.streams is not None:
                self.streams.join()  # what a hook queues comes after every gradient
            self._result = hook(self, weight)  # if it raises, the header is not yet under way
        if self.channel is not None:
            self.turn = self.channel.contribute()
        self.transport.start(self.header, divisor=None)
        self.enter(Stage.FLYING)

    # --- emptying -----------------------------------------------------------------------------------------------------

    def wait(self) -> str | None:
        """Returns when the mean is there: whose backward failed, in words, or None.

        Raises ValueError, on every rank, when all weights are 0; and what a hook's future raises. The bucket is summed
        then, too: nobody may wait for it again.
        """
        if self.channel is None:
            self._wait()
        else:
            begin_wait(self.channel, self.turn, self.label)
            try:
                self._wait()
            finally:
                end_wait()
        told = self.told = headers.read(self.header.header)
        if told.failed:
            return f"rank {told.failed_rank:g}" if told.failed == 1 else f"{told.failed:g} ranks"
        if not told.weight:
            raise ValueError("DistributedDataParallel: the gradients of all ranks have weight 0, so there is no mean")
        return None

    def _wait(self) -> None:
        self.transport.wait(self.header)
        self.enter(Stage.SUMMED)
        if self._host is not None:
            with engine.no_grad():
                self.flat.copy_(self._host)
        if self._result is not None:
            result, self._result = self._result, None
            self._take(result)

    def _take(self, result: "Future[engine.Tensor]") -> None:
        """What a hook made of the bucket."""
        reduced = result.wait()
        if not isinstance(reduced, engine.Tensor) or reduced.numel() != self.flat.numel():
            got = f"{list(reduced.shape)}" if isinstance(reduced, engine.Tensor) else type(reduced).__name__
            raise RuntimeError(
                f"communication hook: expected the future of a Tensor of {self.flat.numel()} elements, got {got}"
            )
        if reduced.data_ptr() != self.flat.data_ptr():
            array_of(self.flat)[...] = array_of(reduced.detach().reshape(-1))

    def hand_out(self) -> None:
        """Lets every parameter that some rank had a gradient for have the mean as its `.grad`."""
        members = self.members
        if self.told.incomplete:
            used = headers.users(self.header.header).tolist()
            if self._own is not None:
                used = [ranks and here for ranks, here in zip(used, self._own, strict=True)]
            for slot, gradient in self.kept.items():
                if not used[slot]:
                    array_of(members[slot][1])[...] = gradient
            self.kept.clear()
            members = list(compress(members, used))
        if not graph.gradients_are(self.parameters, self.views):
            for parameter, view in members:
                if parameter.grad is not view:
                    self._hand_out(parameter, view)
        graph.increment_version(self.flat)

    def _hand_out(self, parameter: engine.Tensor, mean: engine.Tensor) -> None:
        gradient = parameter.grad
        if gradient is not None and gradient.requires_grad:  # backward(create_graph=True)
            parameter.grad = with_history_of(gradient, mean)
        elif self.as_view:
            parameter.grad = mean
        elif gradient is None:
            parameter.grad = mean.clone()
        else:
            gradient.copy_(mean)

    def ranks_out_of_data(self) -> int:
        """How many ranks had no further batch when the bucket was last reduced."""
        return int(self.told.out_of_data)

    def users(self) -> dict[int, int]:
        """By index of the parameter: how many ranks had a gradient of it when the bucket was last reduced."""
        return dict(zip(self.indices, map(int, headers.users(self.header.header).tolist()), strict=True))

    def forget_end_of_data(self) -> None:
        """What ranks said of their data counts no more."""
        self.told = self.told._replace(out_of_data=0)

    def local_gradients(self) -> list[tuple[str, engine.Tensor]]:
        """Name and parameter of the gradients to which something was added since the bucket was last reduced."""
        return [
            (name, parameter)
            for name, (parameter, _), fresh in zip(self.names, self.members, self.fresh, strict=True)
            if fresh and parameter.grad is not None
        ]

    def forget(self) -> None:
        """After a backward that failed: nothing in the bucket counts any more. Waits for what a hook left under way."""
        while self.under_way:
            self.transport.wait(self.under_way[0])
            del self.under_way[0]
        self._fresh[:] = 0
        self.kept.clear()
        self._result = None
        self.stage = Stage.IDLE
