"""Adam and AdamW."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from engine.optim.kernels import adam
from engine.optim.moments import lerp_, track_square_
from engine.optim.optimizer import Group, Optimizer
from engine.optim.options import check_betas, check_lr, check_not_negative, check_path
from engine.tensor import Tensor


class Adam(Optimizer):
    """m = lerp(m, g, 1 - β1);  v = β2 v + (1 - β2) g²;  p -= lr m̂ / (sqrt(v̂) + eps), with m̂ = m / (1 - β1^t), v̂
    likewise.

    Weight decay is added to g, or with `decoupled_weight_decay` p *= 1 - lr weight_decay before anything else. With
    `amsgrad` the largest v so far stands in the denominator. State: step, exp_avg, exp_avg_sq, max_exp_avg_sq. Kingma
    and Ba (2015), Reddi et al. (2018), torch.optim.Adam. Raises: ValueError for options out of range.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: Any = 1e-3,
        betas: Any = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        decoupled_weight_decay: bool = False,
    ) -> None:
        if isinstance(lr, Tensor) and foreach and not capturable:
            raise ValueError("lr as a Tensor is not supported for capturable=False and foreach=True")
        check_lr(lr)
        if not eps >= 0.0:
            raise ValueError(f"Invalid epsilon value: {eps}")
        betas = check_betas(betas)
        check_not_negative(weight_decay=weight_decay)
        check_path(foreach, fused, capturable, differentiable)
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "amsgrad": amsgrad,
            "maximize": maximize,
            "foreach": foreach,
            "capturable": capturable,
            "differentiable": differentiable,
            "fused": fused,
            "decoupled_weight_decay": decoupled_weight_decay,
        }
        super().__init__(params, defaults)

    device_algorithm = ("Adam", ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"))

    def device_options(self, group: Group) -> dict[str, Any]:
        beta1, beta2 = group["betas"]
        return {"a": beta1, "b": beta2}

    def start(self, group: Group) -> dict[str, float]:
        state = {"exp_avg": 0.0, "exp_avg_sq": 0.0}
        if group["amsgrad"]:
            state["max_exp_avg_sq"] = 0.0
        return state

    def update(self, group: Group, step: int, p: Any, g: Any, s: dict[str, Any]) -> None:
        lr, (beta1, beta2), decay = float(group["lr"]), group["betas"], group["weight_decay"]
        if group["maximize"]:
            g = -g
        if decay != 0:
            if group["decoupled_weight_decay"]:
                p *= 1 - lr * decay
            else:
                g = g + decay * p
        m, v = s["exp_avg"], s["exp_avg_sq"]
        lerp_(m, g, 1 - beta1)
        track_square_(v, g, beta2)
        if group["amsgrad"]:
            v = np.maximum(s["max_exp_avg_sq"], v, out=s["max_exp_avg_sq"])
        denominator = np.sqrt(v)
        denominator /= math.sqrt(1 - beta2**step)
        denominator += group["eps"]
        change = m * (lr / (1 - beta1**step))
        change /= denominator
        p -= change

    def fused(self, group: Group, step: int, p: np.ndarray, g: np.ndarray, s: dict[str, Any]) -> None:
        beta1, beta2 = group["betas"]
        adam(
            p,
            g,
            s["exp_avg"],
            s["exp_avg_sq"],
            step=step,
            lr=float(group["lr"]),
            beta1=beta1,
            beta2=beta2,
            eps=group["eps"],
            weight_decay=group["weight_decay"],
            decoupled=group["decoupled_weight_decay"],
            maximum=s.get("max_exp_avg_sq"),
            maximize=group["maximize"],
        )


class AdamW(Adam):
    """Adam with decoupled decay: p *= 1 - lr weight_decay, then Adam without. Loshchilov and Hutter (2019)."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: Any = 1e-3,
        betas: Any = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            amsgrad,
            foreach=foreach,
            maximize=maximize,
            capturable=capturable,
            differentiable=differentiable,
            fused=fused,
            decoupled_weight_decay=True,
        )

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:  # also after loading the state of an Adam
            group["decoupled_weight_decay"] = True
