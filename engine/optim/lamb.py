"""LAMB: Adam whose steps have the norm of their parameter, for large batches."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from engine.optim.moments import lerp_, norm, ratio, track_square_
from engine.optim.optimizer import Group, Optimizer
from engine.optim.options import check_betas, check_lr, check_not_negative


class LAMB(Optimizer):
    """m, v as in Adam;  r = m̂ / (sqrt(v̂) + eps) + wd p;  p -= lr (|p| / |r|) r, the norms over each parameter.

    The quotient is 1 where a norm is 0. State: step, exp_avg (m), exp_avg_sq (v). You et al. (2020), Large Batch
    Optimization for Deep Learning: Training BERT in 76 minutes, algorithm 2 with φ(z) = z. Raises: ValueError for
    options out of range.
    """

    whole = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: Any = 1e-3,
        betas: Any = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
    ) -> None:
        check_lr(lr)
        check_not_negative(epsilon=eps)
        betas = check_betas(betas)
        check_not_negative(weight_decay=weight_decay)
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    def start(self, group: Group) -> dict[str, float]:
        return {"exp_avg": 0.0, "exp_avg_sq": 0.0}

    def update(self, group: Group, step: int, p: Any, g: Any, s: dict[str, Any]) -> None:
        beta1, beta2 = group["betas"]
        m, v = s["exp_avg"], s["exp_avg_sq"]
        lerp_(m, g, 1 - beta1)
        track_square_(v, g, beta2)
        denominator = v / (1 - beta2**step)
        np.sqrt(denominator, out=denominator)
        denominator += group["eps"]
        direction = m / (1 - beta1**step)
        direction /= denominator
        direction += group["weight_decay"] * p
        direction *= (float(group["lr"]) * ratio(norm(p), norm(direction))).astype(p.dtype)
        p -= direction
