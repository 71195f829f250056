"""`GradBucket`: what a communication hook is given; and what may be a hook."""

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import engine
from ddp.execution.futures import Future
from ddp.transport import Buffer, headers
from engine.tensor import array_of

if TYPE_CHECKING:
    from ddp.gradients.bucket import Bucket

Hook = Callable[[Any, "GradBucket"], "Future[engine.Tensor]"]
"""Of the user's: hook(state, bucket)."""
BoundHook = Callable[["Bucket", float], Future[engine.Tensor]]
"""The same as a bucket calls it, with this rank's weight."""


class GradBucket:
    """What a hook is given: one bucket of gradients, full and not averaged."""

    def __init__(self, bucket: "Bucket", index: int, last: bool, weight: float) -> None:
        self._bucket = bucket
        self._index = index
        self._last = last
        self._weight = weight
        self._tensor = bucket.flat

    def index(self) -> int:
        """Its number, 0 for the one that is full first."""
        return self._index

    def is_last(self) -> bool:
        """Whether it is the last one of the step."""
        return self._last

    def buffer(self) -> engine.Tensor:
        """All gradients as one 1-D tensor, in the memory order of the parameters; what lies between them is 0."""
        return self._tensor

    def set_buffer(self, buffer: engine.Tensor) -> None:
        """Exchanges it, for the hooks that come after in a composition: a 1-D tensor with as many elements."""
        self._tensor = buffer

    def gradients(self) -> list[engine.Tensor]:
        """The gradient of each parameter, as a view into `buffer()` with the parameter's shape and strides.

        So an index means the same element as in the parameter, whatever its layout; `reshape` and `flatten` follow the
        shape. (PyTorch's are row-major always, hence permuted for channels-last parameters.)
        """
        if self._tensor is self._bucket.flat:
            return [view for _, view in self._bucket.members]
        start = self._tensor.storage_offset() - self._bucket.flat.storage_offset()
        return [
            self._tensor.as_strided(view.shape, view.stride(), start + view.storage_offset()).detach()
            for _, view in self._bucket.members
        ]

    def parameters(self) -> list[engine.Tensor]:
        """The parameters, in the same order."""
        return [parameter for parameter, _ in self._bucket.members]

    def weight(self) -> float:
        """What `DistributedDataParallel.set_gradient_weight` has set on this rank; 1 by default."""
        return self._weight

    def average(self, dtype: engine.dtype | None = None) -> Future[engine.Tensor]:
        """The weighted mean of `buffer()` over the ranks, in place, with what travels cast to `dtype`.

        Collective. It goes the way of gradients without a hook, the fastest there is.
        """
        target = self.buffer()
        if target is self._bucket.flat and dtype in (None, target.dtype):
            return self._mean(target, self._bucket.buffer)
        return self._mean(target, self._room("average", target.numel(), dtype or target.dtype))

    def mean(self, tensor: engine.Tensor, name: str) -> Future[engine.Tensor]:
        """The weighted mean of a tensor over the ranks, in place: for what a hook sends instead of the gradients.

        tensor: contiguous, alike in shape and dtype on every rank. name: of its memory in the transport, which stays
        with the bucket; two means under way at a time need two names. Collective.
        """
        return self._mean(tensor, self._room(name, tensor.numel(), tensor.dtype))

    def _mean(self, target: engine.Tensor, room: Buffer) -> Future[engine.Tensor]:
        own = room is self._bucket.buffer
        if not own:
            room.array[...] = array_of(target).reshape(-1)
        headers.write_weight(room.header, self._weight)
        self._bucket.transport.start(room, divisor=None)
        self._bucket.under_way.append(room)

        def finish() -> engine.Tensor:
            self._bucket.transport.wait(room)
            self._bucket.under_way.remove(room)
            if not own:
                array_of(target)[...] = room.array.reshape(tuple(target.shape))
            return target

        return Future(finish)

    def _room(self, name: str, count: int, dtype: engine.dtype) -> Buffer:
        """Memory of the transport, made once a bucket and use."""
        rooms, key = self._bucket.rooms, (name, count, dtype)
        if key not in rooms:
            rooms[key] = self._bucket.allocate(count, dtype.numpy, header=1)
        return rooms[key]


def host_array(hook: str, tensor: engine.Tensor) -> np.ndarray:
    """The array of a bucket in host memory, for a hook that computes there. Raises NotImplementedError for a GPU's."""
    if tensor.device.type != "cpu":
        raise NotImplementedError(
            f"{hook} computes in host memory, but the gradients are on {tensor.device}; fp16_compress_hook, "
            "bf16_compress_hook and quantization_perchannel_hook compress there"
        )
    return tensor.numpy()


def check_hook(hook: Any) -> None:
    """Raises TypeError unless `hook` can be called; ValueError for annotations that say it is something else."""
    if not callable(hook):
        raise TypeError("Communication hook must be callable.")
    signature = inspect.signature(hook)
    parameters = list(signature.parameters.values())
    wanted = {"bucket": GradBucket, "return": Future}
    found = {"bucket": parameters[1].annotation if len(parameters) > 1 else None, "return": signature.return_annotation}
    for what, annotation in found.items():
        kind = getattr(annotation, "__origin__", annotation)  # Future of Future[Tensor]
        if kind not in (inspect.Parameter.empty, Any, wanted[what]) and not isinstance(kind, str):
            raise ValueError(
                f"Communication hook: {what} annotation should be {wanted[what].__name__}, got {annotation}; "
                "a hook is hook(state, bucket) -> Future[Tensor]"
            )


def bound(hook: Hook, state: Any, buckets: Sequence["Bucket"]) -> BoundHook:
    """The hook as these buckets call it; they are in the order in which they are started."""

    def reduce(bucket: "Bucket", weight: float) -> Future[engine.Tensor]:
        index = buckets.index(bucket)
        future = hook(state, GradBucket(bucket, index, index == len(buckets) - 1, weight))
        if not isinstance(future, Future):
            raise RuntimeError(
                f"communication hook: callback must return a Future[Tensor], but got {type(future).__name__}"
            )
        return future

    return reduce
