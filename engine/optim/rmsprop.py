"""RMSprop."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from engine.optim.moments import lerp_, track_square_
from engine.optim.optimizer import Group, Optimizer
from engine.optim.options import check_lr, check_not_negative, check_path


class RMSprop(Optimizer):
    """v = α v + (1 - α) g²;  p -= lr g / (sqrt(v) + eps).

    `centered` subtracts the square of the running mean of g from v; with momentum b = momentum b + g / (...), p -= lr
    b. State: step, square_avg, momentum_buffer, grad_avg. Hinton (2012), Graves (2013), torch.optim.RMSprop. Raises:
    ValueError for negative options.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: Any = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum: float = 0,
        centered: bool = False,
        capturable: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        check_lr(lr)
        check_not_negative(epsilon=eps, momentum=momentum, weight_decay=weight_decay, alpha=alpha)
        check_path(foreach, None, capturable, differentiable)
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "alpha": alpha,
            "eps": eps,
            "centered": centered,
            "weight_decay": weight_decay,
            "capturable": capturable,
            "foreach": foreach,
            "maximize": maximize,
            "differentiable": differentiable,
        }
        super().__init__(params, defaults)

    device_algorithm = ("RmsProp", ("square_avg", "momentum_buffer", "grad_avg"))

    def device_options(self, group: Group) -> dict[str, Any]:
        return {"a": group["alpha"], "b": group["momentum"]}

    def start(self, group: Group) -> dict[str, float]:
        state = {"square_avg": 0.0}
        if group["momentum"] > 0:
            state["momentum_buffer"] = 0.0
        if group["centered"]:
            state["grad_avg"] = 0.0
        return state

    def update(self, group: Group, step: int, p: Any, g: Any, s: dict[str, Any]) -> None:
        lr, alpha = float(group["lr"]), group["alpha"]
        if group["maximize"]:
            g = -g
        if group["weight_decay"] != 0:
            g = g + group["weight_decay"] * p
        v = s["square_avg"]
        track_square_(v, g, alpha)
        if group["centered"]:
            lerp_(s["grad_avg"], g, 1 - alpha)
            v = v - s["grad_avg"] * s["grad_avg"]
        denominator = np.sqrt(v)
        denominator += group["eps"]
        if group["momentum"] > 0:
            b = s["momentum_buffer"]
            b *= group["momentum"]
            b += g / denominator
            p -= lr * b
        else:
            change = lr * g
            change /= denominator
            p -= change
