"""SyncBatchNorm: batch norm whose statistics are those of the batch of all ranks together."""

from typing import Any

import numpy as np

import engine
import engine.nn as nn
from ddp.groups.group import is_initialized, resolve
from ddp.groups.process_group import ProcessGroup
from engine.autograd import Function
from engine.autograd.function import once_differentiable
from engine.memory import backend
from engine.nn.norm import BatchNorm
from engine.tensor import array_of


class SyncBatchNorm(BatchNorm):
    """`BatchNorm1d`, `2d` or `3d` over the batches of all ranks; in eval mode, and without a process group, the same.

    Shapes: (N, C, d...), with N of its own on each rank, which may be 0; channels-last inputs stay channels-last.
    process_group: the ranks; default all. Gradients of weight and bias are local, as any; wrap the model in
    DistributedDataParallel to average them. Source: torch.nn.SyncBatchNorm, which is for GPUs only.

    Where no rank has any value, statistics stay as they are. Without running statistics, eval mode normalises by those
    of this rank's batch, as BatchNorm does.

    Raises ValueError for fewer than 2 axes, and when there is only one value a channel on all ranks together.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: ProcessGroup | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype)
        self.process_group = process_group

    def _check_input_dim(self, input: engine.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")

    def forward(self, input: engine.Tensor) -> engine.Tensor:
        """Collective in training mode, and only there."""
        if not is_initialized() or not self.training:
            return super().forward(input)
        group = resolve(self.process_group)
        if group.size() == 1:
            return super().forward(input)
        self._check_input_dim(input)
        if input.shape[1] != self.num_features:
            raise ValueError(f"SyncBatchNorm: expected {self.num_features} channels, got {input.shape[1]}")
        output, mean, variance, count = _Normalize.apply(input, self.weight, self.bias, self.eps, group)
        if self.track_running_stats:
            self._update_running(mean, variance, count)
        return output

    def _update_running(self, mean: engine.Tensor, variance: engine.Tensor, count: int) -> None:
        seen = self.num_batches_tracked
        assert self.running_mean is not None
        assert self.running_var is not None
        assert seen is not None
        with engine.no_grad():
            seen.add_(1)
            if not count:
                return
            momentum = 1.0 / float(seen) if self.momentum is None else self.momentum
            for running, new in ((self.running_mean, mean), (self.running_var, variance * (count / (count - 1)))):
                running.mul_(1 - momentum).add_(new.to(running.dtype) * momentum)

    @classmethod
    def convert_sync_batchnorm(cls, module: nn.Module, process_group: ProcessGroup | None = None) -> nn.Module:
        """`module` with each batch norm in it replaced by a SyncBatchNorm that has its parameters and statistics."""
        if isinstance(module, BatchNorm) and not isinstance(module, cls):
            converted = cls(
                module.num_features,
                module.eps,
                module.momentum,
                module.affine,
                module.track_running_stats,
                process_group,
            )
            for members in ("_parameters", "_buffers"):
                getattr(converted, members).update(getattr(module, members))
            converted.training = module.training
            return converted
        for name, child in module.named_children():
            setattr(module, name, cls.convert_sync_batchnorm(child, process_group))
        return module


class _Normalize(Function):
    """(x - mean) / sqrt(variance + eps) · weight + bias, with mean and variance over all ranks; also gives those."""

    @staticmethod
    def forward(
        ctx: Any,
        input: engine.Tensor,
        weight: engine.Tensor | None,
        bias: engine.Tensor | None,
        eps: float,
        group: ProcessGroup,
    ) -> tuple[engine.Tensor, engine.Tensor, engine.Tensor, int]:
        wide = _single_precision(input)
        local_count = input.numel() // input.shape[1] if input.numel() else 0
        local_mean = _channel_sums(wide) / max(local_count, 1)
        local_spread = _channel_sums((wide - _along_channels(local_mean, wide)).square())
        count, mean, spread = _combine(group, local_count, local_mean, local_spread)
        if count == 1:
            raise ValueError(
                "Expected more than 1 value per channel when training, got input size "
                f"{list(input.shape)} on this rank and {count} in all"
            )
        variance = spread / max(count, 1)
        inverse = 1 / (variance + eps).sqrt()
        output = (wide - _along_channels(mean, wide)) * _along_channels(inverse, wide)
        if weight is not None:
            output = output * _along_channels(_single_precision(weight), wide)
        if bias is not None:
            output = output + _along_channels(_single_precision(bias), wide)
        ctx.save_for_backward(input, weight, mean, inverse)
        ctx.group, ctx.count = group, max(count, 1)
        ctx.mark_non_differentiable(mean, variance)
        return output.to(input.dtype), mean, variance, count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: engine.Tensor, *_: Any) -> tuple[Any, ...]:
        input, weight, mean, inverse = ctx.saved_tensors
        wide = _single_precision(gradient)
        centred = _single_precision(input) - _along_channels(mean, wide)
        own = engine.stack([_channel_sums(wide), _channel_sums(wide * centred)])
        slope = None
        if ctx.needs_input_grad[0]:
            # every rank takes part, also one whose batch is empty
            if own.is_cuda:
                everyones, _total = _gather_on_device(ctx.group, own.double().reshape(-1), 0)
                average, average_centred = (everyones.sum(0) / ctx.count).reshape(own.shape).to(wide.dtype)
            else:
                summed = _gather(ctx.group, own.double().numpy()).sum(0)
                average, average_centred = engine.from_numpy(summed / ctx.count).to(wide.dtype)
            slope = wide - _along_channels(average, wide)
            slope = slope - centred * _along_channels(average_centred * inverse.square(), wide)
            factor = inverse if weight is None else inverse * _single_precision(weight)
            slope = (slope * _along_channels(factor, wide)).to(input.dtype)
        weight_slope = (own[1] * inverse).to(weight.dtype) if ctx.needs_input_grad[1] else None
        bias_slope = own[0].to(weight.dtype) if ctx.needs_input_grad[2] else None
        return slope, weight_slope, bias_slope, None, None


def _combine(
    group: ProcessGroup, count: int, mean: engine.Tensor, spread: engine.Tensor
) -> tuple[int, engine.Tensor, engine.Tensor]:
    """Number of values a channel, mean, and sum of squared distances from it, over all ranks: the same bits everywhere.

    Source: Chan, Golub and LeVeque, Updating formulae and a pairwise algorithm for computing sample variances (1979).
    """
    if mean.is_cuda:
        return _combine_on_device(group, count, mean, spread)
    own = np.concatenate([[count], mean.double().numpy(), spread.double().numpy()])
    parts = _gather(group, own)
    counts = parts[:, :1]
    means, spreads = np.split(parts[:, 1:], 2, axis=1)
    total = counts.sum()
    combined = (counts * means).sum(0) / max(total, 1)
    spread_ = (spreads + counts * (means - combined) ** 2).sum(0)
    return int(total), engine.from_numpy(combined).to(mean.dtype), engine.from_numpy(spread_).to(mean.dtype)


def _gather(group: ProcessGroup, own: np.ndarray) -> np.ndarray:
    """Every rank's float64 array, stacked in rank order."""
    assert group.comm is not None
    parts = np.empty((group.size(), *own.shape))
    with group.meeting("the statistics of SyncBatchNorm"):
        group.comm.Allgather(np.ascontiguousarray(own), parts)
    return parts


def _combine_on_device(
    group: ProcessGroup, count: int, mean: engine.Tensor, spread: engine.Tensor
) -> tuple[int, engine.Tensor, engine.Tensor]:
    """The same on a GPU. The host learns the number of values from the other hosts, so that none waits for a device."""
    own = engine.cat([engine.full((1,), float(count), dtype=engine.float64, device=mean.device), mean, spread])
    parts, total = _gather_on_device(group, own, count)
    counts, means, spreads = parts[:, :1], parts[:, 1 : 1 + len(mean)], parts[:, 1 + len(mean) :]
    combined = (counts * means).sum(0) / max(total, 1)
    spread_ = (spreads + counts * (means - combined).square()).sum(0)
    return total, combined.to(mean.dtype), spread_.to(mean.dtype)


def _gather_on_device(group: ProcessGroup, own: engine.Tensor, count: int) -> tuple[engine.Tensor, int]:
    """Every rank's float64 values on the GPU, stacked in rank order; and the sum of all counts.

    A gathering is a sum to which each rank contributes its own row.
    """
    transport = group.transport_on(own.device)
    values = own.numel()
    room = group.device_room("SyncBatchNorm", own.device, group.size() * values, np.float64, header=1)
    room.array[...] = 0
    room.array[group.rank * values : (group.rank + 1) * values] = array_of(own.detach())
    room.header[0] = count
    transport.start(room)
    with group.meeting("the statistics of SyncBatchNorm"):
        transport.wait(room)
    parts = room.array.reshape(group.size(), values).copy()  # the next layer uses the same memory
    return engine.Tensor(parts, backend.spec_of_array(parts, own.device)), int(room.header[0])


def _single_precision(tensor: engine.Tensor) -> engine.Tensor:
    """Half precision as float32; what is wider as it is."""
    return tensor.float() if tensor.element_size() < 4 else tensor


def _channel_sums(tensor: engine.Tensor) -> engine.Tensor:
    return tensor.sum([dim for dim in range(tensor.dim()) if dim != 1])


def _along_channels(values: engine.Tensor, like: engine.Tensor) -> engine.Tensor:
    return values.reshape(1, -1, *[1] * (like.dim() - 2))
