"""Rates that rise and fall, with momentum falling and rising: CyclicLR and OneCycleLR. Smith (2017, 2018)."""

import math
from collections.abc import Callable
from typing import Any

from engine.optim.lr_scheduler.base import LRScheduler, Rate, one_per_group, require_optimizer, set_option, state_of
from engine.optim.optimizer import Optimizer


class _WithMomentum(LRScheduler):
    """A schedule that also moves momentum, or beta1 where the optimizer has betas."""

    use_beta1: bool

    def _start_momentum(self, base: Any, highest: Any, last_epoch: int) -> None:
        defaults = self.optimizer.defaults
        if "momentum" not in defaults and "betas" not in defaults:
            raise ValueError("optimizer must support momentum or beta1 with `cycle_momentum` option enabled")
        self.use_beta1 = "betas" in defaults
        self.base_momentums = one_per_group("base_momentum", self.optimizer, base)
        self.max_momentums = one_per_group("max_momentum", self.optimizer, highest)
        if last_epoch == -1:
            groups = zip(self.max_momentums, self.base_momentums, self.optimizer.param_groups, strict=True)
            for high, low, group in groups:
                self._set_momentum(group, high)
                group["max_momentum"] = high
                group["base_momentum"] = low

    def _set_momentum(self, group: dict[str, Any], momentum: float) -> None:
        if self.use_beta1:
            group["betas"] = (momentum, *group["betas"][1:])
        else:
            group["momentum"] = momentum


class CyclicLR(_WithMomentum):
    """From base_lr to max_lr in `step_size_up` steps, back in `step_size_down`, over and over.

    The height of a cycle stays ("triangular"), halves with each ("triangular2"), shrinks by gamma^step ("exp_range"),
    or is scaled by `scale_fn` of the cycle or of the step. Raises: ValueError for an unknown mode, lists of other
    lengths than the groups, or an optimizer without momentum.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        base_lr: Any,
        max_lr: Any,
        step_size_up: int = 2000,
        step_size_down: int | None = None,
        mode: str = "triangular",
        gamma: float = 1.0,
        scale_fn: Callable[[float], float] | None = None,
        scale_mode: str = "cycle",
        cycle_momentum: bool = True,
        base_momentum: Any = 0.8,
        max_momentum: Any = 0.9,
        last_epoch: int = -1,
    ) -> None:
        self.optimizer = require_optimizer(optimizer)
        base_lrs = one_per_group("base_lr", optimizer, base_lr)
        self.max_lrs = one_per_group("max_lr", optimizer, max_lr)
        if mode not in ("triangular", "triangular2", "exp_range") and scale_fn is None:
            raise ValueError("mode is invalid and scale_fn is None")
        if last_epoch == -1:
            for lr, group in zip(base_lrs, optimizer.param_groups, strict=True):
                set_option(group, "lr", lr)
        down = step_size_up if step_size_down is None else step_size_down
        self.total_size = float(step_size_up) + float(down)
        self.step_ratio = float(step_size_up) / self.total_size
        self.mode = mode
        self.gamma = gamma
        self._scale_fn_custom = scale_fn
        self.scale_mode = scale_mode if scale_fn is not None else "iterations" if mode == "exp_range" else "cycle"
        self.cycle_momentum = cycle_momentum
        if cycle_momentum:
            self._start_momentum(base_momentum, max_momentum, last_epoch)
        super().__init__(optimizer, last_epoch)
        self.base_lrs = base_lrs

    def scale_fn(self, x: float) -> float:
        """The height of cycle (or step) `x`."""
        if self._scale_fn_custom is not None:
            return self._scale_fn_custom(x)
        if self.mode == "triangular2":
            return 1 / (2.0 ** (x - 1))
        return self.gamma**x if self.mode == "exp_range" else 1.0

    def get_lr(self) -> list[Rate]:
        cycle = math.floor(1 + self.last_epoch / self.total_size)
        x = 1.0 + self.last_epoch / self.total_size - cycle
        share = x / self.step_ratio if x <= self.step_ratio else (x - 1) / (self.step_ratio - 1)
        scale = self.scale_fn(cycle if self.scale_mode == "cycle" else self.last_epoch)
        if self.cycle_momentum:
            groups = zip(self.base_momentums, self.max_momentums, self.optimizer.param_groups, strict=True)
            for low, high, group in groups:
                self._set_momentum(group, high - (high - low) * share * scale)
        return [low + (high - low) * share * scale for low, high in zip(self.base_lrs, self.max_lrs, strict=True)]

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "_scale_fn_custom": state_of(self._scale_fn_custom)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict({name: value for name, value in state_dict.items() if name != "_scale_fn_custom"})
        custom = state_dict["_scale_fn_custom"]
        if custom is not None and self._scale_fn_custom is not None:
            self._scale_fn_custom.__dict__.update(custom)


def _cosine(start: float, end: float, share: float) -> float:
    return end + (start - end) / 2.0 * (math.cos(math.pi * share) + 1)


def _linear(start: float, end: float, share: float) -> float:
    return (end - start) * share + start


class OneCycleLR(_WithMomentum):
    """Up from max_lr / div_factor to max_lr, then down to initial lr / final_div_factor; momentum the other way round.

    `three_phase` comes down to the initial rate first. Raises: ValueError for options that do not fit, and for more
    steps than `total_steps` (or epochs · steps_per_epoch).
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: Any,
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = True,
        base_momentum: Any = 0.85,
        max_momentum: Any = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        last_epoch: int = -1,
    ) -> None:
        self.optimizer = require_optimizer(optimizer)
        self.total_steps = _total_steps(total_steps, epochs, steps_per_epoch)
        if not isinstance(pct_start, float) or not 0 <= pct_start <= 1:
            raise ValueError(f"Expected float between 0 and 1 pct_start, but got {pct_start}")
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(f"anneal_strategy must be one of 'cos' or 'linear', instead got {anneal_strategy}")
        self._anneal_func_type = anneal_strategy
        rising = float(pct_start * self.total_steps) - 1
        # (last step, options of the rates and of the momenta between which the phase goes)
        self._schedule_phases = [(rising, "initial_lr", "max_lr", "max_momentum", "base_momentum")]
        if three_phase:
            falling = float(2 * pct_start * self.total_steps) - 2
            self._schedule_phases += [
                (falling, "max_lr", "initial_lr", "base_momentum", "max_momentum"),
                (float(self.total_steps - 1), "initial_lr", "min_lr", "max_momentum", "max_momentum"),
            ]
        else:
            self._schedule_phases += [
                (float(self.total_steps - 1), "max_lr", "min_lr", "base_momentum", "max_momentum")
            ]
        highest = one_per_group("max_lr", optimizer, max_lr)
        if last_epoch == -1:
            for group, lr in zip(optimizer.param_groups, highest, strict=True):
                group["initial_lr"] = lr / div_factor
                group["max_lr"] = lr
                group["min_lr"] = group["initial_lr"] / final_div_factor
        self.cycle_momentum = cycle_momentum
        if cycle_momentum:
            self._start_momentum(base_momentum, max_momentum, last_epoch)
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Rate]:
        step = self.last_epoch
        if step > self.total_steps:
            raise ValueError(f"Tried to step {step} times. The specified number of total steps is {self.total_steps}")
        anneal = _cosine if self._anneal_func_type == "cos" else _linear
        first = 0.0
        for phase in self._schedule_phases[:-1]:
            if step <= phase[0]:
                break
            first = phase[0]
        else:
            phase = self._schedule_phases[-1]
        last, lr_from, lr_to, momentum_from, momentum_to = phase
        share = (step - first) / (last - first)
        groups = self.optimizer.param_groups
        if self.cycle_momentum:
            for group in groups:
                self._set_momentum(group, anneal(group[momentum_from], group[momentum_to], share))
        return [anneal(group[lr_from], group[lr_to], share) for group in groups]


def _total_steps(total_steps: int | None, epochs: int | None, steps_per_epoch: int | None) -> int:
    if total_steps is None and (epochs is None or steps_per_epoch is None):
        raise ValueError("You must define either total_steps OR (epochs AND steps_per_epoch)")
    given = (
        {"total_steps": total_steps}
        if total_steps is not None
        else {"epochs": epochs, "steps_per_epoch": steps_per_epoch}
    )
    total = 1
    for name, value in given.items():
        if not isinstance(value, int) or value <= 0:
            raise ValueError(f"Expected positive integer {name}, but got {value}")
        total *= value
    return total
