"""Several schedulers for one optimizer: one after another (SequentialLR) or all at once (ChainedScheduler)."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from engine.optim.lr_scheduler.base import LRScheduler, options_of, set_option
from engine.optim.lr_scheduler.plateau import ReduceLROnPlateau
from engine.optim.optimizer import Optimizer


class _Combined(LRScheduler):
    """What both share: checks and state."""

    _schedulers: list[LRScheduler]

    def _take(self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None) -> Optimizer:
        name = type(self).__name__
        if len(schedulers) < 1:
            raise ValueError(f"{name} expects at least one scheduler, but got no scheduler.")
        optimizer = optimizer or schedulers[0].optimizer
        for number, scheduler in enumerate(schedulers):
            if not hasattr(scheduler, "optimizer"):
                raise TypeError(f"{name} at index {number} should have `optimizer` as its attribute.")
            if isinstance(scheduler, ReduceLROnPlateau):
                raise ValueError(
                    f"{name} does not support `ReduceLROnPlateau` scheduler as it requires additional kwargs to be "
                    f"specified when calling `step`, but got one at index {number} in the given schedulers "
                    "sequence."
                )
            if scheduler.optimizer is not optimizer:
                raise ValueError(
                    f"{name} expects all schedulers to belong to the same optimizer, but got scheduler "
                    f"{type(scheduler).__name__} at index {number}, which belongs to another "
                    f"{type(optimizer).__name__}."
                )
        self._schedulers = list(schedulers)
        return optimizer

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "_schedulers": [scheduler.state_dict() for scheduler in self._schedulers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict({name: value for name, value in state_dict.items() if name != "_schedulers"})
        for scheduler, state in zip(self._schedulers, state_dict["_schedulers"], strict=True):
            scheduler.load_state_dict(state)


class SequentialLR(_Combined):
    """The first scheduler until the first milestone, then the second from its start, and so on.

    Raises: ValueError unless there is one milestone less than schedulers, all of them for `optimizer`.
    """

    def __init__(
        self, optimizer: Optimizer, schedulers: list[LRScheduler], milestones: list[int], last_epoch: int = -1
    ) -> None:
        self.optimizer = self._take(schedulers, optimizer)
        if len(milestones) != len(schedulers) - 1:
            raise ValueError(
                "Sequential Schedulers expects number of schedulers provided to be one more than the number of "
                f"milestone points, but got number of schedulers {len(schedulers)} and the number of milestones to "
                f"be equal to {len(milestones)}"
            )
        self._milestones = milestones
        self.last_epoch = last_epoch + 1
        # making the schedulers has moved the rates already: start again from the initial ones, with the first only
        for group in optimizer.param_groups:
            set_option(group, "lr", group["initial_lr"])
        _undo(self._schedulers)
        first = self._schedulers[bisect_right(milestones, 0)]
        first._initial_step()
        self._last_lr = first.get_last_lr()

    def step(self) -> None:  # type: ignore[override]
        self.last_epoch += 1
        number = bisect_right(self._milestones, self.last_epoch)
        scheduler = self._schedulers[number]
        if number > 0 and self._milestones[number - 1] == self.last_epoch:
            scheduler._update_lr(0)
        else:
            scheduler.step()
        self._last_lr = scheduler.get_last_lr()


def _undo(schedulers: list[LRScheduler]) -> None:
    """Takes back one epoch of each scheduler, within combined ones too."""
    for scheduler in schedulers:
        if isinstance(scheduler, _Combined):
            _undo(scheduler._schedulers)
        else:
            scheduler.last_epoch -= 1


class ChainedScheduler(_Combined):
    """All schedulers at every step. Raises ValueError unless all have the same optimizer."""

    def __init__(self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None) -> None:
        self.optimizer = self._take(schedulers, optimizer)
        self._last_lr = options_of(self.optimizer, "lr")

    def step(self) -> None:  # type: ignore[override]
        for scheduler in self._schedulers:
            scheduler.step()
        self._last_lr = options_of(self.optimizer, "lr")
