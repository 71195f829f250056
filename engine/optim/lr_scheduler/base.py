"""`LRScheduler`: writes each group's learning rate once an epoch (or step). A subclass writes `get_lr`.

Most rules are recursive, as in PyTorch: the next rate follows from the one in the group, so that schedulers can be
chained.
"""

import types
import warnings
from typing import Any

from engine.calls.listening import heard
from engine.optim.optimizer import Optimizer
from engine.tensor import Tensor

Rate = Any  # a float, or a tensor with one element


def set_option(group: dict[str, Any], name: str, value: Rate) -> None:
    """Sets a group's option; where it is a tensor, its value, so that it stays the same tensor."""
    if isinstance(group[name], Tensor):
        group[name].fill_(float(value))
    else:
        group[name] = value


def options_of(optimizer: Optimizer, name: str) -> list[Rate]:
    """An option of every group; tensors are copied."""
    values = [group[name] for group in optimizer.param_groups]
    return [value.clone() if isinstance(value, Tensor) else value for value in values]


def one_per_group(name: str, optimizer: Optimizer, value: Any) -> list[Rate]:
    """`value` as a list with an entry for each group. Raises ValueError for a list of another length."""
    groups = len(optimizer.param_groups)
    if not isinstance(value, list | tuple):
        return [value] * groups
    if len(value) != groups:
        raise ValueError(
            f"{name} must have the same length as optimizer.param_groups. {name} has {len(value)} values, "
            f"param_groups has {groups}."
        )
    return list(value)


def require_optimizer(optimizer: Any) -> Optimizer:
    """`optimizer` itself. Raises TypeError if it is something else."""
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"{type(optimizer).__name__} is not an Optimizer")
    return optimizer


class LRScheduler:
    """Base class of the schedulers.

    Args: optimizer: whose groups' "lr" is written; last_epoch: the epoch to continue after, -1 to begin.
    Raises: TypeError for anything but an optimizer; KeyError when continuing without "initial_lr" in the groups.
    """

    last_epoch: int
    _last_lr: list[Rate]
    _is_initial = False

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        self.optimizer = require_optimizer(optimizer)
        for number, group in enumerate(optimizer.param_groups):
            if last_epoch == -1:
                lr = group["lr"]
                group.setdefault("initial_lr", lr.clone() if isinstance(lr, Tensor) else lr)
            elif "initial_lr" not in group:
                raise KeyError(
                    f"param 'initial_lr' is not specified in param_groups[{number}] when resuming scheduler with "
                    "last_epoch >= 0; load the optimizer's state first"
                )
        self.base_lrs = options_of(optimizer, "initial_lr")
        self.last_epoch = last_epoch
        self._initial_step()

    def _initial_step(self) -> None:
        """Sets the rates of the first epoch."""
        self._step_count = 0
        self._is_initial = True
        try:
            self.step()
        finally:
            del self._is_initial

    def get_lr(self) -> list[Rate]:
        """The rate of each group in epoch `last_epoch`; `step` calls it."""
        raise NotImplementedError(f"{type(self).__name__} defines no get_lr()")

    def _get_closed_form_lr(self) -> list[Rate]:
        """The rates of epoch `last_epoch` from the initial ones, where a rule has such a form."""
        return self.get_lr()

    def get_last_lr(self) -> list[Rate]:
        """The rates set last."""
        return self._last_lr

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if "step" in cls.__dict__:
            cls.step = heard(cls.__dict__["step"])  # type: ignore[method-assign]

    @heard
    def step(self, epoch: int | None = None) -> None:
        """Goes on by one epoch (or, deprecated, to `epoch`) and sets the rates. Call it after `optimizer.step()`."""
        if self._step_count == 1 and not self.optimizer._opt_called:
            warnings.warn(
                "Detected call of `lr_scheduler.step()` before `optimizer.step()`. You should call them in the "
                "opposite order, or the first value of the learning rate schedule is skipped.",
                stacklevel=2,
            )
        self._step_count += 1
        self._update_lr(epoch)

    def _update_lr(self, epoch: int | None = None) -> None:
        if epoch is None:
            self.last_epoch += 1
            rates = self.get_lr()
        else:
            self.last_epoch = epoch
            rates = self._get_closed_form_lr()
        self._set(rates)

    def _set(self, rates: list[Rate]) -> None:
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            set_option(group, "lr", rate)
        self._last_lr = options_of(self.optimizer, "lr")

    def _rates(self) -> list[Rate]:
        """The rates as they are."""
        return options_of(self.optimizer, "lr")

    def _scaled(self, factor: float) -> list[Rate]:
        """The rates as they are, times `factor`."""
        return [group["lr"] * factor for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Everything but the optimizer. Of functions only the attributes of callable objects are kept."""
        return {name: value for name, value in self.__dict__.items() if name != "optimizer"}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over what `state_dict` gave."""
        self.__dict__.update(state_dict)


def state_of(function: Any) -> dict[str, Any] | None:
    """The attributes of a callable object; None for a plain function, which has no state."""
    return None if function is None or isinstance(function, types.FunctionType) else function.__dict__.copy()
