"""Communication hooks: what is done with a bucket of gradients instead of averaging it as it is.

A hook is `hook(state, bucket) -> Future[Tensor]`; `DistributedDataParallel.register_comm_hook` puts it to work. It is
called in the same order on every rank, as soon as a bucket is full. The tensor has the elements of `bucket.buffer()`
and takes their place; dividing by the number of ranks is up to the hook.

Here: `allreduce_hook`, and hooks that send float32 gradients in half the bytes. Source: default_hooks.py of
torch.distributed.algorithms.ddp_comm_hooks. The sum of the compressed gradients is made in float32 and rounded once.
"""

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import engine
from ddp.futures import Future
from ddp.group import ProcessGroup
from ddp.transport import Buffer

if TYPE_CHECKING:
    from ddp.gathering import Bucket

Hook = Callable[[Any, "GradBucket"], "Future[engine.Tensor]"]


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
        """Exchanges it, for the hooks that come after in a composition."""
        self._tensor = buffer

    def gradients(self) -> list[engine.Tensor]:
        """The gradient of each parameter, as a view with the parameter's strides (PyTorch's are row-major always)."""
        return [view for _, view in self._bucket.members]

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
        room = self._room(target, dtype or target.dtype)
        if room is not self._bucket.buffer:
            room.array[...] = target.numpy()
        room.header[0] = self._weight
        self._bucket.transport.start(room, divisor=None)

        def finish() -> engine.Tensor:
            self._bucket.transport.wait(room)
            if room is not self._bucket.buffer:
                target.numpy()[...] = room.array
            return target

        return Future(finish)

    def _room(self, target: engine.Tensor, dtype: engine.dtype) -> Buffer:
        """Memory of the transport for as many elements: the bucket itself, or made once a bucket and dtype."""
        if target is self._bucket.flat and dtype is target.dtype:
            return self._bucket.buffer
        rooms = self._bucket.rooms
        if dtype not in rooms:
            rooms[dtype] = self._bucket.transport.allocate(self._bucket.flat.numel(), dtype.numpy, header=1)
        return rooms[dtype]


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
        if kind not in (inspect.Parameter.empty, wanted[what]) and not isinstance(kind, str):
            raise ValueError(
                f"Communication hook: {what} annotation should be {wanted[what].__name__}, got {annotation}; "
                "a hook is hook(state, bucket) -> Future[Tensor]"
            )


def allreduce_hook(process_group: ProcessGroup | None, bucket: GradBucket) -> Future[engine.Tensor]:
    """The mean over the ranks: the same numbers as without a hook."""
    return bucket.average()


def fp16_compress_hook(process_group: ProcessGroup | None, bucket: GradBucket) -> Future[engine.Tensor]:
    """The mean over the ranks of gradients rounded to float16; what is larger than 65504 becomes infinite."""
    return bucket.average(engine.float16)


def bf16_compress_hook(process_group: ProcessGroup | None, bucket: GradBucket) -> Future[engine.Tensor]:
    """The mean over the ranks of gradients rounded to bfloat16."""
    return bucket.average(engine.bfloat16)


def fp16_compress_wrapper(hook: Hook) -> Hook:
    """`hook`, given float16 gradients; its result is cast back."""
    return _compress_wrapper(hook, engine.float16)


def bf16_compress_wrapper(hook: Hook) -> Hook:
    """`hook`, given bfloat16 gradients; its result is cast back."""
    return _compress_wrapper(hook, engine.bfloat16)


def _compress_wrapper(hook: Hook, dtype: engine.dtype) -> Hook:
    def compressed(state: Any, bucket: GradBucket) -> Future[engine.Tensor]:
        full = bucket.buffer()
        bucket.set_buffer(full.to(dtype))

        def decompress(future: Future[engine.Tensor]) -> engine.Tensor:
            full.copy_(future.value())
            return full

        return hook(state, bucket).then(decompress)

    return compressed
