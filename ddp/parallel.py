"""DistributedDataParallel: one model, a replica on every rank, gradients averaged during backward."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import engine
import engine.nn as nn
from ddp.agreement import TensorLayout, check_agreement
from ddp.buckets import DEFAULT_CAP_BYTES, FIRST_CAP_BYTES
from ddp.collectives import broadcast
from ddp.group import ProcessGroup, resolve
from ddp.reducer import Reducer
from engine.report import name_parameters


class DistributedDataParallel(nn.Module):
    """Wraps `module` so that after backward every rank holds the mean of all ranks' gradients.

    At construction the ranks check that their models agree (name, shape, strides and dtype of every parameter and buffer; all ranks raise if not) and
    take over the values of rank 0. Gradients are views into buckets with their parameters' strides; a bucket is summed as soon as it is full, while
    backward goes on (`ddp.reducer`).

    Args:
        module: the model, on its device already.
        broadcast_buffers: before each training forward, buffers (batch norm statistics) become those of rank 0.
        process_group: the ranks; default all.
        bucket_cap_mb: MiB a bucket holds; by default 25, and 1 for the first, so that communication starts early.
        gradient_as_bucket_view: with False, `.grad` is memory of its own and a copy is made in and out of the bucket (PyTorch's default; here the
            default is True).
        find_unused_parameters: accepted for compatibility; unused parameters never block here and are found by the bucket headers.
        init_sync: with False the models are not compared or broadcast.
    Raises: RuntimeError when no parameter requires grad or the module is wrapped already; ValueError when models differ between ranks, or for
        device_ids, which have no meaning here.
    """

    def __init__(
        self,
        module: nn.Module,
        device_ids: Any = None,
        output_device: Any = None,
        dim: int = 0,
        broadcast_buffers: bool = True,
        init_sync: bool = True,
        process_group: ProcessGroup | None = None,
        bucket_cap_mb: float | None = None,
        find_unused_parameters: bool = False,
        gradient_as_bucket_view: bool = True,
        static_graph: bool = False,
    ) -> None:
        super().__init__()
        if device_ids or output_device is not None:
            raise ValueError("DistributedDataParallel: device_ids and output_device are not supported; move the module to its device, one a rank")
        if any(isinstance(child, DistributedDataParallel) for child in module.modules()):
            raise RuntimeError("DistributedDataParallel: the module is, or contains, a DistributedDataParallel already; wrap it once, outermost")
        if bucket_cap_mb is not None and bucket_cap_mb <= 0:
            raise ValueError(f"DistributedDataParallel: expected a positive bucket_cap_mb, got {bucket_cap_mb}")
        trainable = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
        if not trainable:
            raise RuntimeError("DistributedDataParallel is not needed when a module doesn't have any parameter that requires a gradient.")
        name_parameters(trainable)
        self.module = module
        self.process_group = resolve(process_group)
        self.broadcast_buffers = broadcast_buffers
        self.require_backward_grad_sync = True
        if init_sync:
            self._synchronize_models()
        cap = None if bucket_cap_mb is None else int(bucket_cap_mb * 1024 * 1024)
        limits = [FIRST_CAP_BYTES, DEFAULT_CAP_BYTES] if cap is None else [cap]
        self.reducer = Reducer(trainable, self.process_group.transport, limits, gradient_as_bucket_view)

    def _synchronize_models(self) -> None:
        """Collective: all ranks hold the same model afterwards, or all raise."""
        for what, tensors in (("parameters", self.module.named_parameters()), ("buffers", self.module.named_buffers())):
            layouts = [TensorLayout(name, tuple(t.shape), tuple(t.stride()), str(t.dtype)) for name, t in tensors]
            check_agreement(layouts, self.process_group.exchange, what)
        if self.process_group.size() > 1:
            for tensor in [*self.module.parameters(), *self.module.buffers()]:
                broadcast(tensor, self.process_group.ranks[0], self.process_group)

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        """Runs the module."""
        if self.broadcast_buffers and self.training and self.require_backward_grad_sync and engine.is_grad_enabled() and self.process_group.size() > 1:
            for buffer in self.module.buffers():
                broadcast(buffer, self.process_group.ranks[0], self.process_group)
        return self.module(*inputs, **keywords)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside only accumulate local gradients; the next one outside averages the sums.

        What counts is where backward runs (in PyTorch, where forward ran).
        """
        before = self.require_backward_grad_sync
        self.require_backward_grad_sync = self.reducer.synchronize = False
        try:
            yield
        finally:
            self.require_backward_grad_sync = self.reducer.synchronize = before
