"""Adagrad."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from engine.optim.optimizer import Group, Optimizer
from engine.optim.options import check_lr, check_not_negative, check_path
from engine.optim.rows import refusal


class Adagrad(Optimizer):
    """v += g²;  p -= lr / (1 + (t - 1) lr_decay) · g / (sqrt(v) + eps).

    State: step, sum. Duchi et al. (2011), torch.optim.Adagrad.
    Raises: ValueError for negative options.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: Any = 1e-2,
        lr_decay: float = 0,
        weight_decay: float = 0,
        initial_accumulator_value: float = 0,
        eps: float = 1e-10,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        check_lr(lr)
        check_not_negative(
            lr_decay=lr_decay,
            weight_decay=weight_decay,
            initial_accumulator_value=initial_accumulator_value,
            epsilon=eps,
        )
        check_path(foreach, fused, differentiable=differentiable)
        defaults = {
            "lr": lr,
            "lr_decay": lr_decay,
            "eps": eps,
            "weight_decay": weight_decay,
            "initial_accumulator_value": initial_accumulator_value,
            "foreach": foreach,
            "maximize": maximize,
            "differentiable": differentiable,
            "fused": fused,
        }
        super().__init__(params, defaults)

    device_algorithm = ("Adagrad", ("sum",))

    def device_options(self, group: Group) -> dict[str, Any]:
        return {"a": group["lr_decay"]}

    def start(self, group: Group) -> dict[str, float]:
        return {"sum": group["initial_accumulator_value"]}

    def check_rows(self, group: Group) -> None:
        if group["weight_decay"] != 0:
            raise refusal(self, " with weight_decay")

    def update(self, group: Group, step: int, p: Any, g: Any, s: dict[str, Any]) -> None:
        if group["maximize"]:
            g = -g
        if group["weight_decay"] != 0:
            g = g + group["weight_decay"] * p
        v = s["sum"]
        v += g * g
        denominator = np.sqrt(v)
        denominator += group["eps"]
        change = g * (float(group["lr"]) / (1 + (step - 1) * group["lr_decay"]))
        change /= denominator
        p -= change
