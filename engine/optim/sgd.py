"""Stochastic gradient descent, with momentum."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from engine.optim.optimizer import Group, Optimizer
from engine.optim.options import check_lr, check_not_negative, check_path
from engine.optim.rows import refusal


class SGD(Optimizer):
    """g += weight_decay p;  b = g at first, then momentum b + (1 - dampening) g;  p -= lr b.

    Nesterov: p -= lr (g + momentum b). State: momentum_buffer, with momentum only. Sutskever et al. (2013),
    torch.optim.SGD. Raises: ValueError for negative options, or nesterov without momentum or with dampening.
    """

    counts_steps = False

    def __init__(
        self,
        params: Iterable[Any],
        lr: Any = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        check_lr(lr)
        check_not_negative(momentum=momentum, weight_decay=weight_decay)
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("Nesterov momentum requires a momentum and zero dampening")
        check_path(foreach, fused, differentiable=differentiable)
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "maximize": maximize,
            "foreach": foreach,
            "differentiable": differentiable,
            "fused": fused,
        }
        super().__init__(params, defaults)

    device_algorithm = ("Sgd", ("momentum_buffer",))

    def device_options(self, group: Group) -> dict[str, Any]:
        return {"a": group["momentum"], "b": 1 - group["dampening"], "one": group["nesterov"]}

    def start(self, group: Group) -> dict[str, float]:
        return {"momentum_buffer": 0.0} if group["momentum"] != 0 else {}

    def check_rows(self, group: Group) -> None:
        if group["momentum"] != 0 or group["weight_decay"] != 0:
            raise refusal(self, " with momentum or weight_decay")

    def update(self, group: Group, step: int, p: Any, g: Any, s: dict[str, Any]) -> None:
        momentum, decay = group["momentum"], float(group["weight_decay"])
        if group["maximize"]:
            g = -g
        if decay != 0:
            g = g + decay * p
        if momentum != 0:
            b = s["momentum_buffer"]
            if step == 1:
                b[...] = g
            else:
                b *= momentum
                b += g * (1 - group["dampening"]) if group["dampening"] else g
            g = g + momentum * b if group["nesterov"] else b
        p -= float(group["lr"]) * g

    def fused(self, group: Group, step: int, p: np.ndarray, g: np.ndarray, s: dict[str, Any]) -> None:
        from engine.optim.kernels import sgd

        sgd(
            p,
            g,
            s.get("momentum_buffer"),
            lr=float(group["lr"]),
            momentum=group["momentum"],
            dampening=group["dampening"],
            weight_decay=float(group["weight_decay"]),
            nesterov=group["nesterov"],
            maximize=group["maximize"],
            first_step=step == 1,
        )
