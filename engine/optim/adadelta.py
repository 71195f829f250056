"""Adadelta."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from engine.optim.moments import track_square_
from engine.optim.optimizer import Group, Optimizer
from engine.optim.options import check_lr, check_not_negative, check_path


class Adadelta(Optimizer):
    """v = ρ v + (1 - ρ) g²;  d = sqrt(u + eps) / sqrt(v + eps) · g;  u = ρ u + (1 - ρ) d²;  p -= lr d.

    State: step, square_avg (v), acc_delta (u). Zeiler (2012), torch.optim.Adadelta. Raises: ValueError for options out
    of range.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: Any = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0,
        foreach: bool | None = None,
        *,
        capturable: bool = False,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        check_lr(lr)
        if not 0.0 <= rho <= 1.0:
            raise ValueError(f"Invalid rho value: {rho}")
        check_not_negative(epsilon=eps, weight_decay=weight_decay)
        check_path(foreach, None, capturable, differentiable)
        defaults = {
            "lr": lr,
            "rho": rho,
            "eps": eps,
            "weight_decay": weight_decay,
            "maximize": maximize,
            "capturable": capturable,
            "foreach": foreach,
            "differentiable": differentiable,
        }
        super().__init__(params, defaults)

    device_algorithm = ("Adadelta", ("square_avg", "acc_delta"))

    def device_options(self, group: Group) -> dict[str, Any]:
        return {"a": group["rho"]}

    def start(self, group: Group) -> dict[str, float]:
        return {"square_avg": 0.0, "acc_delta": 0.0}

    def update(self, group: Group, step: int, p: Any, g: Any, s: dict[str, Any]) -> None:
        rho, eps = group["rho"], group["eps"]
        if group["maximize"]:
            g = -g
        if group["weight_decay"] != 0:
            g = g + group["weight_decay"] * p
        v, u = s["square_avg"], s["acc_delta"]
        track_square_(v, g, rho)
        change = np.sqrt(u + eps)
        change /= np.sqrt(v + eps)
        change *= g
        track_square_(u, change, rho)
        p -= float(group["lr"]) * change
