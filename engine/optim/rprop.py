"""Rprop: steps from the signs of gradients."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from engine.optim.optimizer import Group, Optimizer
from engine.optim.options import check_lr, check_path


class Rprop(Optimizer):
    """Each element's step grows by η+ while its gradient keeps its sign and shrinks by η- when that changes; p -=
    sign(g) step.

    State: step, prev (the gradient before, 0 after a change of sign), step_size (starting at lr, within `step_sizes`).
    Riedmiller and Braun (1993), torch.optim.Rprop. Raises: ValueError unless 0 < η- < 1 < η+.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: Any = 1e-2,
        etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50),
        *,
        capturable: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        check_lr(lr)
        if not 0.0 < etas[0] < 1.0 < etas[1]:
            raise ValueError(f"Invalid eta values: {etas[0]}, {etas[1]}")
        check_path(foreach, None, capturable, differentiable)
        defaults = {
            "lr": lr,
            "etas": etas,
            "step_sizes": step_sizes,
            "foreach": foreach,
            "maximize": maximize,
            "differentiable": differentiable,
            "capturable": capturable,
        }
        super().__init__(params, defaults)

    device_algorithm = ("Rprop", ("prev", "step_size"))

    def device_options(self, group: Group) -> dict[str, Any]:
        (smaller, larger), (least, most) = group["etas"], group["step_sizes"]
        return {"a": smaller, "b": larger, "c": least, "d": most}

    def start(self, group: Group) -> dict[str, float]:
        return {"prev": 0.0, "step_size": float(group["lr"])}

    def update(self, group: Group, step: int, p: Any, g: Any, s: dict[str, Any]) -> None:
        smaller, larger = group["etas"]
        if group["maximize"]:
            g = -g
        agreement = g * s["prev"]
        factor = np.ones_like(agreement)
        factor[agreement > 0] = larger
        factor[agreement < 0] = smaller
        size = s["step_size"]
        size *= factor
        np.clip(size, *group["step_sizes"], out=size)
        g = g.copy()
        g[agreement < 0] = 0
        p -= np.sign(g) * size
        s["prev"][...] = g
