"""ASGD: gradient descent whose iterates are averaged."""

from collections.abc import Iterable
from typing import Any

from engine.optim.optimizer import Group, Optimizer
from engine.optim.options import check_lr, check_not_negative, check_path


class ASGD(Optimizer):
    """p = (1 - λη) p - η g;  ax += μ (p - ax);  then η = lr / (1 + λ lr t)^α and μ = 1 / max(1, t - t0).

    State: step, eta, mu, ax (the average). Polyak and Juditsky (1992), torch.optim.ASGD.
    Raises: ValueError for a negative lr or weight_decay.
    """

    scalar_state = ("eta", "mu")
    _now = (0.0, 1.0)  # η and μ of the step under way; the state holds those of the next

    def __init__(
        self,
        params: Iterable[Any],
        lr: Any = 1e-2,
        lambd: float = 1e-4,
        alpha: float = 0.75,
        t0: float = 1e6,
        weight_decay: float = 0,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
        capturable: bool = False,
    ) -> None:
        check_lr(lr)
        check_not_negative(weight_decay=weight_decay)
        check_path(foreach, None, capturable, differentiable)
        defaults = {
            "lr": lr,
            "lambd": lambd,
            "alpha": alpha,
            "t0": t0,
            "weight_decay": weight_decay,
            "foreach": foreach,
            "maximize": maximize,
            "differentiable": differentiable,
            "capturable": capturable,
        }
        super().__init__(params, defaults)

    device_algorithm = ("Asgd", ("ax",))

    def device_options(self, group: Group) -> dict[str, Any]:
        return {"a": group["lambd"], "b": group["alpha"], "c": group["t0"]}

    def start(self, group: Group) -> dict[str, float]:
        return {"ax": 0.0}

    def advance(self, group: Group, step: int, scalars: dict[str, Any]) -> None:
        lr = float(group["lr"])
        if step == 1:
            scalars["eta"][...] = lr
        self._now = (float(scalars["eta"][0]), float(scalars["mu"][0]))
        scalars["eta"][...] = lr / (1 + group["lambd"] * lr * step) ** group["alpha"]
        scalars["mu"][...] = 1 / max(1, step - group["t0"])

    def update(self, group: Group, step: int, p: Any, g: Any, s: dict[str, Any]) -> None:
        eta, mu = self._now
        if group["maximize"]:
            g = -g
        if group["weight_decay"] != 0:
            g = g + group["weight_decay"] * p
        p *= 1 - group["lambd"] * eta
        p -= g * eta
        average = s["ax"]
        if mu == 1:
            average[...] = p
        else:
            average += (p - average) * mu
