"""Reducer: gathers gradients in buckets and sums a bucket over the ranks as soon as it is full, while backward goes on.

A bucket is one flat buffer of the transport. Each parameter has a view in it with the parameter's own strides (row-major where those are not dense),
and that view *is* its `.grad`: the engine writes the first gradient of a backward straight into it (`engine.autograd.graph.set_gradient_destination`)
and adds later ones in place. A listener on each AccumulateGrad node counts the bucket's gradients down.

Buckets are started in index order on every rank, whatever order gradients come in, so all ranks issue the same sequence of sums. What is not full when
backward ends is started then: a parameter without gradient takes part with zeros. The header of a bucket counts, for each parameter, the ranks that
had a gradient; where none had, `.grad` is left as it was (None stays None), so an optimizer does not move a parameter that nobody used.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import engine
from ddp.buckets import BucketLayout, compute_bucket_assignment, plan_bucket
from ddp.transport import Transport
from engine.autograd import graph


class Bucket:
    """A buffer of the transport, the views of its parameters, and how many gradients are still to come."""

    __slots__ = ("buffer", "indices", "layout", "pending", "started", "views")

    def __init__(self, transport: Transport, layout: BucketLayout, dtype: engine.dtype) -> None:
        self.layout = layout
        self.indices = [slot.index for slot in layout.slots]
        self.buffer = transport.allocate(layout.count, dtype.numpy, header=len(layout.slots))
        flat = engine.from_numpy(self.buffer.array)
        start = flat.storage_offset()  # the transport may hand out the middle of a larger block
        self.views = [flat.as_strided(slot.shape, slot.stride, start + slot.offset) for slot in layout.slots]
        self.pending = 0
        self.started = False

    def nbytes(self) -> int:
        """Bytes of the flat buffer."""
        return self.buffer.array.nbytes


class Reducer:
    """See the module. `parameters`: (name, parameter) of everything to be reduced, without duplicates, alike on every rank."""

    def __init__(
        self,
        parameters: Sequence[tuple[str, engine.Tensor]],
        transport: Transport,
        limits: Sequence[int],
        gradient_as_bucket_view: bool,
    ) -> None:
        self.names = [name for name, _ in parameters]
        self.parameters = [parameter for _, parameter in parameters]
        self.transport = transport
        self.as_view = gradient_as_bucket_view
        self.synchronize = True  # False inside no_sync: gradients only accumulate
        self.buckets = self._make_buckets(limits)
        self._place = {index: (bucket, slot) for bucket in self.buckets for slot, index in enumerate(bucket.indices)}
        self._active = False  # between the first gradient of a backward and its end
        self._ready: set[int] = set()
        self._cursor = 0  # the next bucket to start
        self._handles = [graph.register_gradient_listener(parameter, self._listener(index)) for index, parameter in enumerate(self.parameters)]
        if self.as_view:
            for index, parameter in enumerate(self.parameters):
                bucket, slot = self._place[index]
                graph.set_gradient_destination(parameter, bucket.views[slot])

    def _make_buckets(self, limits: Sequence[int]) -> list[Bucket]:
        """Buckets in the order in which they are likely to fill: backward reaches the last registered parameters first."""
        sizes = [parameter.numel() * parameter.element_size() for parameter in self.parameters]
        kinds = [(parameter.dtype, parameter.device) for parameter in self.parameters]
        order = list(range(len(sizes)))[::-1]
        assignment, _ = compute_bucket_assignment([sizes[i] for i in order], [kinds[i] for i in order], limits, order)
        shapes = [tuple(parameter.shape) for parameter in self.parameters]
        strides = [tuple(parameter.stride()) for parameter in self.parameters]
        return [
            Bucket(self.transport, plan_bucket(indices, shapes, strides, kinds[indices[0]][0].itemsize), kinds[indices[0]][0]) for indices in assignment
        ]

    def _listener(self, index: int) -> Any:
        def gradient_is_ready() -> None:
            if self.synchronize:
                self._mark_ready(index)

        return gradient_is_ready

    def _begin(self) -> None:
        """The first gradient of a backward that is to be synchronised."""
        self._active = True
        self._ready.clear()
        self._cursor = 0
        for bucket in self.buckets:
            bucket.pending = len(bucket.indices)
            bucket.started = False
        graph.queue_callback(self._finish)

    def _mark_ready(self, index: int) -> None:
        if not self._active:
            self._begin()
        if index in self._ready:
            raise RuntimeError(
                f"DistributedDataParallel: a second gradient arrived for parameter {self.names[index]!r} in one backward, after its bucket may have been "
                "summed; a parameter used by re-entrant checkpoints several times needs use_reentrant=False"
            )
        self._ready.add(index)
        bucket, _ = self._place[index]
        bucket.pending -= 1
        if bucket.pending == 0:
            self._start_full_buckets()
        else:
            self.transport.poll()

    def _start_full_buckets(self) -> None:
        while self._cursor < len(self.buckets) and self.buckets[self._cursor].pending == 0:
            self._start(self.buckets[self._cursor])
            self._cursor += 1

    def _start(self, bucket: Bucket) -> None:
        for slot, index in enumerate(bucket.indices):
            gradient, view = self.parameters[index].grad, bucket.views[slot]
            used = index in self._ready and gradient is not None
            bucket.buffer.header[slot] = used
            if not used:
                self._stash_unused(bucket, slot, index)
            elif gradient is not view:
                self._copy_in(index, gradient, view)
        self.transport.start(bucket.buffer, divisor=float(self.transport.size))
        bucket.started = True

    def _stash_unused(self, bucket: Bucket, slot: int, index: int) -> None:
        """Zeros for a parameter without a gradient of this backward.

        A gradient that lies in the bucket from earlier (accumulated under no_sync, or averaged and not zeroed) is real and takes part.
        """
        gradient = self.parameters[index].grad
        if gradient is None:
            bucket.views[slot].zero_()
            return
        bucket.buffer.header[slot] = 1
        if gradient is not bucket.views[slot]:
            self._copy_in(index, gradient, bucket.views[slot])

    def _copy_in(self, index: int, gradient: engine.Tensor, view: engine.Tensor) -> None:
        if gradient.dtype is not view.dtype:
            raise TypeError(f"DistributedDataParallel: gradient of {self.names[index]!r}: expected {view.dtype}, got {gradient.dtype}")
        with engine.no_grad():
            view.copy_(gradient)
        if self.as_view:
            self.parameters[index].grad = view

    def _finish(self) -> None:
        """End of backward: start what is not full, wait for everything, hand out the results."""
        self._active = False
        for bucket in self.buckets[self._cursor :]:
            self._start(bucket)
        for bucket in self.buckets:
            self.transport.wait(bucket.buffer)
            for slot, index in enumerate(bucket.indices):
                if bucket.buffer.header[slot] == 0:
                    continue  # used on no rank
                parameter, view = self.parameters[index], bucket.views[slot]
                if self.as_view:
                    if parameter.grad is not view:
                        parameter.grad = view
                    graph.increment_version(view)
                elif parameter.grad is None:
                    parameter.grad = view.clone()
                else:
                    with engine.no_grad():
                        parameter.grad.copy_(view)

    def bucket_bytes(self) -> list[int]:
        """Bytes of each bucket, in the order in which they are started."""
        return [bucket.nbytes() for bucket in self.buckets]

    def remove(self) -> None:
        """Takes the listeners off the parameters, so that another Reducer may serve them."""
        for handle in self._handles:
            handle.remove()
        for parameter in self.parameters:
            with suppress(RuntimeError):
                graph.set_gradient_destination(parameter, None)
