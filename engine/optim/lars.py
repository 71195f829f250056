"""LARS: SGD with momentum whose rate is set for each parameter by norms, for large batches."""

from collections.abc import Iterable
from typing import Any

from engine.optim.moments import norm, ratio
from engine.optim.optimizer import Group, Optimizer
from engine.optim.options import check_lr, check_not_negative


class LARS(Optimizer):
    """λ = η |p| / (|g| + wd |p|);  v = momentum v + lr λ (g + wd p);  p -= v, the norms over each parameter.

    λ is 1 where a norm is 0, and in groups with a `trust_coefficient` (η) of 0, as biases and normalisation usually
    have it. State: momentum_buffer (v). You, Gitman and Ginsburg (2017), Large Batch Training of Convolutional
    Networks, algorithm 1. Raises: ValueError for options out of range.
    """

    whole = True
    counts_steps = False

    def __init__(
        self,
        params: Iterable[Any],
        lr: Any = 1.0,
        momentum: float = 0.9,
        weight_decay: float = 0,
        trust_coefficient: float = 0.001,
    ) -> None:
        check_lr(lr)
        check_not_negative(momentum=momentum, weight_decay=weight_decay, trust_coefficient=trust_coefficient)
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "trust_coefficient": trust_coefficient,
        }
        super().__init__(params, defaults)

    def start(self, group: Group) -> dict[str, float]:
        return {"momentum_buffer": 0.0}

    def update(self, group: Group, step: int, p: Any, g: Any, s: dict[str, Any]) -> None:
        decay, trust, v = group["weight_decay"], group["trust_coefficient"], s["momentum_buffer"]
        rate: Any = float(group["lr"])
        if trust:
            size, slope = norm(p), norm(g)
            rate = (rate * ratio(trust * size, (slope + decay * size) * (slope > 0))).astype(p.dtype)
        v *= group["momentum"]
        v += rate * (g + decay * p if decay else g)
        p -= v
