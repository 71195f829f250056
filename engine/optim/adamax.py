"""Adamax: Adam with the infinity norm."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from engine.optim.moments import lerp_
from engine.optim.optimizer import Group, Optimizer
from engine.optim.options import check_betas, check_lr, check_not_negative, check_path


class Adamax(Optimizer):
    """m = lerp(m, g, 1 - β1);  u = max(β2 u, |g| + eps);  p -= lr / (1 - β1^t) · m / u.

    State: step, exp_avg (m), exp_inf (u). Kingma and Ba (2015), torch.optim.Adamax. Raises: ValueError for options out
    of range.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: Any = 2e-3,
        betas: Any = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        capturable: bool = False,
    ) -> None:
        check_lr(lr)
        check_not_negative(epsilon=eps)
        betas = check_betas(betas)
        check_not_negative(weight_decay=weight_decay)
        check_path(foreach, None, capturable, differentiable)
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "foreach": foreach,
            "maximize": maximize,
            "differentiable": differentiable,
            "capturable": capturable,
        }
        super().__init__(params, defaults)

    device_algorithm = ("Adamax", ("exp_avg", "exp_inf"))

    def device_options(self, group: Group) -> dict[str, Any]:
        beta1, beta2 = group["betas"]
        return {"a": beta1, "b": beta2}

    def start(self, group: Group) -> dict[str, float]:
        return {"exp_avg": 0.0, "exp_inf": 0.0}

    def update(self, group: Group, step: int, p: Any, g: Any, s: dict[str, Any]) -> None:
        beta1, beta2 = group["betas"]
        if group["maximize"]:
            g = -g
        if group["weight_decay"] != 0:
            g = g + group["weight_decay"] * p
        m, u = s["exp_avg"], s["exp_inf"]
        lerp_(m, g, 1 - beta1)
        u *= beta2
        np.maximum(u, np.abs(g) + group["eps"], out=u)
        change = m * (float(group["lr"]) / (1 - beta1**step))
        change /= u
        p -= change
