"""`ReduceLROnPlateau`: lower the rate when a metric stops improving."""

import math
from typing import Any

from engine.optim.lr_scheduler.base import LRScheduler, one_per_group, options_of, require_optimizer, set_option
from engine.optim.optimizer import Optimizer


class ReduceLROnPlateau(LRScheduler):
    """lr · factor after more than `patience` epochs without improvement of the metric given to `step`.

    An improvement beats the best value by `threshold` (relative or absolute); after a reduction `cooldown` epochs do
    not count. Raises: ValueError for factor >= 1, an unknown mode, or min_lr of another length than the groups.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: Any = 0,
        eps: float = 1e-8,
    ) -> None:
        if factor >= 1.0:
            raise ValueError("Factor should be < 1.0.")
        if mode not in ("min", "max"):
            raise ValueError(f"mode {mode} is unknown!")
        if threshold_mode not in ("rel", "abs"):
            raise ValueError(f"threshold mode {threshold_mode} is unknown!")
        self.optimizer = require_optimizer(optimizer)
        self.factor = factor
        self.min_lrs = one_per_group("min_lr", optimizer, min_lr)
        self.default_min_lr = None if isinstance(min_lr, list | tuple) else min_lr
        self.mode = mode
        self.mode_worse = math.inf if mode == "min" else -math.inf
        self.patience = patience
        self.threshold = threshold
        self.threshold_mode = threshold_mode
        self.cooldown = cooldown
        self.eps = eps
        self.last_epoch = 0
        self._last_lr = options_of(optimizer, "lr")
        self._reset()

    def _reset(self) -> None:
        """Forgets the best value."""
        self.best = self.mode_worse
        self.cooldown_counter = 0
        self.num_bad_epochs = 0

    def step(self, metrics: Any, epoch: int | None = None) -> None:  # type: ignore[override]
        """Takes the metric of an epoch (a number or a tensor with one element) and lowers the rate if it is time."""
        current = float(metrics)
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        if self._is_better(current, self.best):
            self.best = current
            self.num_bad_epochs = 0
        else:
            self.num_bad_epochs += 1
        if self.in_cooldown:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            self._reduce_lr()
            self.cooldown_counter = self.cooldown
            self.num_bad_epochs = 0
        self._last_lr = options_of(self.optimizer, "lr")

    @property
    def in_cooldown(self) -> bool:
        """Whether epochs without improvement do not count at the moment."""
        return self.cooldown_counter > 0

    def _is_better(self, value: float, best: float) -> bool:
        sign = 1 if self.mode == "max" else -1
        relative = self.threshold_mode == "rel"
        bound = best * (1.0 + sign * self.threshold) if relative else best + sign * self.threshold
        return value > bound if self.mode == "max" else value < bound

    def _reduce_lr(self) -> None:
        groups = self.optimizer.param_groups
        if len(groups) != len(self.min_lrs):
            if self.default_min_lr is None:
                raise RuntimeError(
                    f"The number of param groups in the `optimizer` ({len(groups)}) differs from when "
                    f"`ReduceLROnPlateau` was initialized ({len(self.min_lrs)}), usually due to a new param group "
                    "being added to the optimizer. Please modify the `min_lrs` field to match the length of the "
                    "`optimizer` param groups."
                )
            self.min_lrs = [self.default_min_lr] * len(groups)
        for group, lowest in zip(groups, self.min_lrs, strict=True):
            before = float(group["lr"])
            after = max(before * self.factor, lowest)
            if before - after > self.eps:
                set_option(group, "lr", after)
