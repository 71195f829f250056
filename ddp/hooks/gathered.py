"""Hooks whose messages cannot be summed on the way: every rank gets those of all, and sums them in rank order.

Blockwise 8-bit quantisation and top-k sparsification. With N ranks each receives N - 1 messages, so they pay for few
ranks or slow networks.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

import engine
from ddp.collectives import wire
from ddp.execution.futures import Future
from ddp.gradients.grad_bucket import GradBucket, host_array
from ddp.groups.group import resolve
from ddp.groups.process_group import ProcessGroup
from engine.memory.backend import spec_of_array
from engine.memory.guard import on_gpu_of
from engine.ops.buckets import cuda as buckets
from engine.tensor import array_of

_LARGEST = 127  # of int8; -128 is not used, so that -x is as exact as x


def quantization_pertensor_hook(process_group: ProcessGroup | None, bucket: GradBucket) -> Future[engine.Tensor]:
    """The mean over the ranks of gradients rounded to 8 bits, with one scale for the whole bucket."""
    return quantization_perchannel_hook(process_group, bucket, bucket_size=max(bucket.buffer().numel(), 1))


def quantization_perchannel_hook(
    process_group: ProcessGroup | None, bucket: GradBucket, bucket_size: int = 512
) -> Future[engine.Tensor]:
    """The mean over the ranks of gradients rounded to 8 bits, with a scale for each block of `bucket_size` elements.

    A block is sent as int8 of its largest magnitude / 127, so an error is at most 1/254 of that, and 0 stays 0. A block
    with an infinity or NaN becomes NaN. Source: Dettmers (2016), 8-Bit Approximations for Parallelism in Deep Learning,
    with the blocks of Dettmers et al. (2022), 8-bit Optimizers via Block-wise Quantization; PyTorch's hook of this name
    has a zero point, too. Over the process group's communicator, in bucket order. Gradients on a GPU are rounded and
    summed there, with the same bits; the host carries the messages.
    """
    if bucket.buffer().is_cuda:
        return _quantized_on_gpu(resolve(process_group), bucket, bucket_size)
    flat = bucket.buffer().numpy()
    rows = -(-flat.size // bucket_size)
    blocks = np.zeros((rows, bucket_size), np.float32)
    blocks.reshape(-1)[: flat.size] = flat
    scales = np.abs(blocks).max(1, initial=0) / np.float32(_LARGEST)
    with np.errstate(invalid="ignore"):  # NaN in int8 is anything; its block's scale is NaN
        levels = np.rint(blocks / np.where(scales > 0, scales, 1)[:, None]).astype(np.int8)
    parts = [np.array([bucket.weight()]).view(np.uint8), scales.view(np.uint8), levels.reshape(-1).view(np.uint8)]
    received = _gather(resolve(process_group), np.concatenate(parts))

    def finish() -> engine.Tensor:
        total, weights = np.zeros_like(blocks), 0.0
        with np.errstate(invalid="ignore"):  # 0 times infinity
            for message in received():
                weight = float(message[:8].view(np.float64)[0])
                if weight:
                    scale = message[8 : 8 + 4 * rows].view(np.float32) * np.float32(weight)
                    total += message[8 + 4 * rows :].view(np.int8).reshape(rows, bucket_size) * scale[:, None]
                    weights += weight
        flat[...] = total.reshape(-1)[: flat.size] / np.float32(weights or 1)
        return bucket.buffer()

    return Future(finish)


def _quantized_on_gpu(group: ProcessGroup, bucket: GradBucket, bucket_size: int) -> Future[engine.Tensor]:
    buffer = bucket.buffer()
    with on_gpu_of(array_of(buffer)):
        scales, levels = buckets.quantise(array_of(buffer), bucket_size)
        rows = scales.size
        parts = [wire.elements(_tensor(part)).view(np.uint8) for part in (scales, levels)]
    parts.insert(0, np.array([bucket.weight()]).view(np.uint8))
    end = sum(part.size for part in parts)
    parts.append(np.zeros(-end % 8, np.uint8))  # the next rank's scales begin at a multiple of their size
    received = _gather(group, np.concatenate(parts))

    def finish() -> engine.Tensor:
        messages = received()
        weights = [float(message[:8].view(np.float64)[0]) for message in messages]
        with on_gpu_of(array_of(buffer)):
            everyone = engine.empty(messages.shape, dtype=engine.uint8, device=buffer.device)
            wire.store(everyone, messages)
            split = [(own[8 : 8 + 4 * rows].view(np.float32), own[8 + 4 * rows : end]) for own in array_of(everyone)]
            all_levels = [each.view(np.int8) for _, each in split]
            buckets.dequantised_mean([each for each, _ in split], all_levels, weights, bucket_size, array_of(buffer))
        return bucket.buffer()

    return Future(finish)


def _tensor(array: Any) -> engine.Tensor:
    return engine.Tensor(array, spec_of_array(array, engine.device("cuda", int(array.device.id))))


class TopKState:
    """What `topk_hook` remembers: what each rank has not sent yet.

    ratio: share of a bucket's elements that a rank sends in a step, above 0 and at most 1; one element at least.
    Raises ValueError for another ratio.
    """

    def __init__(self, process_group: ProcessGroup | None = None, ratio: float = 0.01) -> None:
        if not 0 < ratio <= 1:
            raise ValueError(f"TopKState: expected a ratio above 0 and at most 1, got {ratio}")
        self.process_group = process_group
        self.ratio = ratio
        self.error_dict: dict[int, np.ndarray] = {}  # by bucket: what was not sent so far


def topk_hook(state: TopKState, bucket: GradBucket) -> Future[engine.Tensor]:
    """The mean over the ranks of each one's largest elements; the others wait and are added to its next gradients.

    Source: Lin et al. (2018), Deep Gradient Compression (without its momentum correction); Stich, Cordonnier and Jaggi
    (2018), Sparsified SGD with Memory. Over the process group's communicator, in bucket order.
    """
    flat = host_array("topk_hook", bucket.buffer())
    wide = np.dtype(np.float64 if flat.dtype == np.float64 else np.float32)
    count = max(1, int(flat.size * state.ratio)) if flat.size else 0
    weight = bucket.weight()
    values = flat.astype(wide)
    if weight:  # a rank of weight 0 is not part of the mean: what it has not sent is kept for later
        error = state.error_dict.get(bucket.index())
        if error is not None:
            values += error
    chosen = np.argpartition(np.abs(values), flat.size - count)[flat.size - count :].astype(np.int64)
    sent = values[chosen]
    if weight:
        values[chosen] = 0
        state.error_dict[bucket.index()] = values
    parts = [np.array([weight]).view(np.uint8), chosen.view(np.uint8), sent.view(np.uint8)]
    received = _gather(resolve(state.process_group), np.concatenate(parts))

    def finish() -> engine.Tensor:
        total, weights = np.zeros(flat.size, wide), 0.0
        for message in received():
            weight = float(message[:8].view(np.float64)[0])
            if weight:  # a rank names an element once, so this adds each of its values
                total[message[8 : 8 + 8 * count].view(np.int64)] += message[8 + 8 * count :].view(wide) * wide.type(
                    weight
                )
                weights += weight
        flat[...] = total / wide.type(weights or 1)
        return bucket.buffer()

    return Future(finish)


def _gather(group: ProcessGroup, message: np.ndarray) -> Callable[[], np.ndarray]:
    """Collective: sends bytes to all; the function returned gives those of every rank, (ranks, bytes), when they are
    there.
    """
    if group.comm is None or group.size() == 1:
        return lambda: message[None]
    everyone = np.empty((group.size(), message.size), np.uint8)
    request = group.comm.Iallgather(message, everyone)

    def wait() -> np.ndarray:
        with group.meeting("the exchange of compressed gradients"):
            request.Wait()
        return everyone

    return wait
