"""SparseAdam: Adam for tables whose gradients are sparse."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from engine.optim.optimizer import Group, Optimizer
from engine.optim.options import check_lr
from engine.tensor import Tensor


class SparseAdam(Optimizer):
    """m += (1 - β₁)(g - m);  v += (1 - β₂)(g² - v);  p -= lr √(1 - β₂ᵗ) / (1 - β₁ᵗ) · m / (√v + eps), in the rows that
    have a gradient; the others, and their state, stay as they are. t counts the steps of the whole table.

    State: step, exp_avg, exp_avg_sq. Source: torch.optim.SparseAdam.
    Raises: ValueError for options out of range; RuntimeError in `step` for a gradient that is dense.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: Any = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        maximize: bool = False,
    ) -> None:
        check_lr(lr)
        if not eps > 0:
            raise ValueError(f"Invalid epsilon value: {eps}")
        for number, beta in enumerate(betas):
            if not 0 <= beta < 1:
                raise ValueError(f"Invalid beta parameter at index {number}: {beta}")
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "maximize": maximize})

    def start(self, group: Group) -> dict[str, float]:
        return {"exp_avg": 0.0, "exp_avg_sq": 0.0}

    def check_rows(self, group: Group) -> None:
        """Every group will do."""

    def step_group(self, group: Group) -> None:
        for parameter in group["params"]:
            if isinstance(parameter.grad, Tensor):
                raise RuntimeError("SparseAdam does not support dense gradients, please consider Adam instead")
        super().step_group(group)

    def update(self, group: Group, step: int, p: Any, g: Any, s: dict[str, Any]) -> None:
        beta1, beta2 = group["betas"]
        m, v = s["exp_avg"], s["exp_avg_sq"]
        if group["maximize"]:
            g = -g
        m += (g - m) * (1 - beta1)
        v += (g * g - v) * (1 - beta2)
        size = float(group["lr"]) * (1 - beta2**step) ** 0.5 / (1 - beta1**step)
        p -= size * (m / (np.sqrt(v) + group["eps"]))
