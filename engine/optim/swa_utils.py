"""Averages of weights over training: `AveragedModel`, its schedule `SWALR`, and `update_bn`. Izmailov et al. (2018)."""

import math
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from itertools import chain
from typing import Any

import engine
from engine.autograd.modes import no_grad
from engine.nn.module import Module
from engine.nn.norm import BatchNorm
from engine.optim.lr_scheduler.base import LRScheduler, Rate, one_per_group
from engine.optim.optimizer import Optimizer
from engine.tensor import Tensor

Average = Callable[[Tensor, Tensor, Any], Tensor]  # (average, new value, count of averages before) -> new average
Averages = Callable[[Sequence[Tensor], Sequence[Tensor], Any], None]  # the same for lists, in place


def get_swa_avg_fn() -> Average:
    """The mean of all values so far."""
    return lambda averaged, current, count: averaged + (current - averaged) / (count + 1)


def get_ema_avg_fn(decay: float = 0.999) -> Average:
    """decay · average + (1 - decay) · value. Raises: ValueError for a decay outside [0, 1]."""
    if not 0.0 <= decay <= 1.0:
        raise ValueError(f"Invalid decay value {decay} provided. Please provide a value in [0,1] range.")
    return lambda averaged, current, count: decay * averaged + (1 - decay) * current


def _over_lists(average: Average) -> Averages:
    def update(averaged: Sequence[Tensor], current: Sequence[Tensor], count: Any) -> None:
        with no_grad():
            for mean, value in zip(averaged, current, strict=True):
                mean.copy_(average(mean, value, count))

    return update


def get_swa_multi_avg_fn() -> Averages:
    """`get_swa_avg_fn` for lists."""
    return _over_lists(get_swa_avg_fn())


def get_ema_multi_avg_fn(decay: float = 0.999) -> Averages:
    """`get_ema_avg_fn` for lists."""
    return _over_lists(get_ema_avg_fn(decay))


class AveragedModel(Module):
    """A copy of a model whose parameters are averages of the model's, updated by `update_parameters`.

    avg_fn, multi_avg_fn: how; the mean of all by default. use_buffers: buffers are averaged, too, else copied.
    State: module, and n_averaged, the count of updates.
    """

    n_averaged: Tensor

    def __init__(
        self,
        model: Module,
        device: Any = None,
        avg_fn: Average | None = None,
        multi_avg_fn: Averages | None = None,
        use_buffers: bool = False,
    ) -> None:
        super().__init__()
        if avg_fn is not None and multi_avg_fn is not None:
            raise ValueError("AveragedModel: expected avg_fn or multi_avg_fn, not both")
        self.module = deepcopy(model)
        if device is not None:
            self.module = self.module.to(device)
        self.register_buffer("n_averaged", engine.tensor(0, dtype=engine.int64, device=device))
        self.avg_fn = avg_fn
        self.multi_avg_fn = multi_avg_fn
        self.use_buffers = use_buffers

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the averaged model computes."""
        return self.module(*args, **kwargs)

    @no_grad()
    def update_parameters(self, model: Module) -> None:
        """Takes the model's values into the averages; the first time copies them."""
        pairs = zip(self.module.parameters(), model.parameters(), strict=True)
        buffers = zip(self.module.buffers(), model.buffers(), strict=True)
        if self.use_buffers:
            pairs, buffers = chain(pairs, buffers), iter(())  # type: ignore[assignment]
        averaged, current = [], []
        for own, other in pairs:
            averaged.append(own.detach())
            current.append(other.detach().to(own.device))
        if self.n_averaged == 0:
            for mean, value in zip(averaged, current, strict=True):
                mean.copy_(value)
        else:
            update = self.multi_avg_fn or _over_lists(self.avg_fn or get_swa_avg_fn())
            update(averaged, current, self.n_averaged)
        for kept, buffer in buffers:
            kept.detach().copy_(buffer.detach())
        self.n_averaged += 1


@no_grad()
def update_bn(loader: Iterable[Any], model: Module, device: Any = None) -> None:
    """Computes the running statistics of a model's batch norms anew, as means over a loader's batches.

    A batch is the input, or a list or tuple that begins with it.
    """
    layers = [module for module in model.modules() if isinstance(module, BatchNorm)]
    if not layers:
        return
    momenta = [layer.momentum for layer in layers]
    was_training = model.training
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # a cumulative average
    model.train()
    for batch in loader:
        input = batch[0] if isinstance(batch, list | tuple) else batch
        model(input if device is None else input.to(device))
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
    model.train(was_training)


def _linear(t: float) -> float:
    return t


def _cosine(t: float) -> float:
    return (1 - math.cos(math.pi * t)) / 2


_STRATEGIES = {"linear": _linear, "cos": _cosine}


class SWALR(LRScheduler):
    """From the rates as they are to `swa_lr` over `anneal_epochs` epochs, along a cosine or a line, then constant.

    Raises: ValueError for an unknown strategy or negative epochs.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        swa_lr: Any,
        anneal_epochs: int = 10,
        anneal_strategy: str = "cos",
        last_epoch: int = -1,
    ) -> None:
        for rate, group in zip(one_per_group("swa_lr", optimizer, swa_lr), optimizer.param_groups, strict=True):
            group["swa_lr"] = rate
        if anneal_strategy not in _STRATEGIES:
            raise ValueError(f"anneal_strategy must be one of 'cos' or 'linear', instead got {anneal_strategy}")
        if not isinstance(anneal_epochs, int) or anneal_epochs < 0:
            raise ValueError(f"anneal_epochs must be equal or greater than 0, got {anneal_epochs}")
        self._anneal_strategy = anneal_strategy
        self.anneal_epochs = anneal_epochs
        super().__init__(optimizer, last_epoch)

    def _progress(self, step: int) -> float:
        return _STRATEGIES[self._anneal_strategy](max(0, min(1, step / max(1, self.anneal_epochs))))

    def get_lr(self) -> list[Rate]:
        step = self._step_count - 1
        if self.anneal_epochs == 0:
            step = max(1, step)
        before, now = self._progress(step - 1), self._progress(step)
        rates = []
        for group in self.optimizer.param_groups:
            lr, target = group["lr"], group["swa_lr"]
            start = target if before == 1 else (lr - before * target) / (1 - before)
            rates.append(target * now + start * (1 - now))
        return rates
