"""RAdam: Adam with a rectified variance."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from engine.optim.moments import lerp_, track_square_
from engine.optim.optimizer import Group, Optimizer
from engine.optim.options import check_betas, check_lr, check_not_negative, check_path


class RAdam(Optimizer):
    """m, v as in Adam;  p -= lr r m̂ sqrt(1 - β2^t) / (sqrt(v) + eps), or p -= lr m̂ while v varies too much.

    r follows from the length ρ_t of the average: sqrt((ρ_t - 4)(ρ_t - 2) ρ_∞ / ((ρ_∞ - 4)(ρ_∞ - 2) ρ_t)), if ρ_t > 5.
    State: step, exp_avg, exp_avg_sq. Liu et al. (2020), torch.optim.RAdam. Raises: ValueError for options out of range.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: Any = 1e-3,
        betas: Any = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        decoupled_weight_decay: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
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
            "maximize": maximize,
            "foreach": foreach,
            "capturable": capturable,
            "decoupled_weight_decay": decoupled_weight_decay,
            "differentiable": differentiable,
        }
        super().__init__(params, defaults)

    device_algorithm = ("RAdam", ("exp_avg", "exp_avg_sq"))

    def device_options(self, group: Group) -> dict[str, Any]:
        beta1, beta2 = group["betas"]
        return {"a": beta1, "b": beta2}

    def start(self, group: Group) -> dict[str, float]:
        return {"exp_avg": 0.0, "exp_avg_sq": 0.0}

    def update(self, group: Group, step: int, p: Any, g: Any, s: dict[str, Any]) -> None:
        lr, (beta1, beta2) = float(group["lr"]), group["betas"]
        if group["maximize"]:
            g = -g
        if group["weight_decay"] != 0:
            if group["decoupled_weight_decay"]:
                p *= 1 - lr * group["weight_decay"]
            else:
                g = g + group["weight_decay"] * p
        m, v = s["exp_avg"], s["exp_avg_sq"]
        lerp_(m, g, 1 - beta1)
        track_square_(v, g, beta2)
        correction = 1 - beta2**step
        longest = 2 / (1 - beta2) - 1
        length = longest - 2 * step * beta2**step / correction
        change = m / (1 - beta1**step)
        change *= lr
        if length > 5.0:
            denominator = np.sqrt(v)
            denominator += group["eps"]
            change *= math.sqrt(correction) / denominator
            change *= math.sqrt((length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length))
        p -= change
