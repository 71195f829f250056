"""NAdam: Adam with Nesterov momentum."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from engine.optim.moments import lerp_, track_square_
from engine.optim.optimizer import Group, Optimizer
from engine.optim.options import check_betas, check_lr, check_not_negative, check_path


def _momentum(group: Group, step: int) -> float:
    """μ_t = β1 (1 - 0.96^(t · momentum_decay) / 2)."""
    return group["betas"][0] * (1.0 - 0.5 * 0.96 ** (step * group["momentum_decay"]))


class NAdam(Optimizer):
    """m, v as in Adam;  p -= lr ((1 - μ_t) / (1 - Π μ) · g + μ_{t+1} / (1 - Π μ · μ_{t+1}) · m) / (sqrt(v̂) + eps).

    State: step, mu_product (Π μ), exp_avg (m), exp_avg_sq (v). Dozat (2016), torch.optim.NAdam.
    Raises: ValueError for options out of range.
    """

    scalar_state = ("mu_product",)

    def __init__(
        self,
        params: Iterable[Any],
        lr: Any = 2e-3,
        betas: Any = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum_decay: float = 4e-3,
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
        check_not_negative(weight_decay=weight_decay, momentum_decay=momentum_decay)
        check_path(foreach, None, capturable, differentiable)
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "momentum_decay": momentum_decay,
            "decoupled_weight_decay": decoupled_weight_decay,
            "maximize": maximize,
            "foreach": foreach,
            "capturable": capturable,
            "differentiable": differentiable,
        }
        super().__init__(params, defaults)

    device_algorithm = ("NAdam", ("exp_avg", "exp_avg_sq"))

    def device_options(self, group: Group) -> dict[str, Any]:
        beta1, beta2 = group["betas"]
        return {"a": beta1, "b": beta2, "c": group["momentum_decay"]}

    def start(self, group: Group) -> dict[str, float]:
        return {"exp_avg": 0.0, "exp_avg_sq": 0.0}

    def advance(self, group: Group, step: int, scalars: dict[str, Any]) -> None:
        scalars["mu_product"] *= _momentum(group, step)

    def update(self, group: Group, step: int, p: Any, g: Any, s: dict[str, Any]) -> None:
        lr, (beta1, beta2) = float(group["lr"]), group["betas"]
        if group["maximize"]:
            g = -g
        if group["weight_decay"] != 0:
            if group["decoupled_weight_decay"]:
                p *= 1 - lr * group["weight_decay"]
            else:
                g = g + group["weight_decay"] * p
        m, v, product = s["exp_avg"], s["exp_avg_sq"], s["mu_product"]
        lerp_(m, g, 1 - beta1)
        track_square_(v, g, beta2)
        denominator = v / (1 - beta2**step)
        np.sqrt(denominator, out=denominator)
        denominator += group["eps"]
        following = _momentum(group, step + 1)
        p -= g * (lr * (1.0 - _momentum(group, step)) / (1.0 - product)) / denominator
        p -= m * (lr * following / (1.0 - product * following)) / denominator
