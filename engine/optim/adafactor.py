"""Adafactor: second moments of matrices kept as row and column means."""

import math
from collections.abc import Iterable
from typing import Any

from engine.autograd.modes import enable_grad, no_grad
from engine.optim.optimizer import Closure, Optimizer
from engine.optim.options import check_lr, check_not_negative, check_path
from engine.tensor import Tensor


class Adafactor(Optimizer):
    """p -= α u / max(1, rms(u) / d) with u = g / sqrt(v), α = max(eps2, rms(p)) · min(lr, 1/sqrt(t)).

    v is an average with weight t^beta2_decay for the new value: of g² where a parameter has one axis or none, else
    the outer product of the row and column means of g² over the mean of the rows'. State: step; row_var and col_var,
    or variance. Shazeer and Stern (2018), torch.optim.Adafactor.
    Raises: ValueError for options out of range.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: Any = 1e-2,
        beta2_decay: float = -0.8,
        eps: tuple[float | None, float] = (None, 1e-3),
        d: float = 1.0,
        weight_decay: float = 0.0,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
    ) -> None:
        check_lr(lr)
        check_path(foreach)
        if beta2_decay > 0:
            raise ValueError(f"beta2_decay should be <= 0 but is: {beta2_decay}")
        if eps[0] is not None and eps[0] < 0:
            raise ValueError(f"epsilon1 should be >= 0 but is: {eps[0]}")
        if eps[1] < 0:
            raise ValueError(f"epsilon2 should be >= 0 but is: {eps[1]}")
        if d < 1:
            raise ValueError(f"Clipping threshold d should be >= 1 but is: {d}")
        check_not_negative(weight_decay=weight_decay)
        defaults = {
            "lr": lr,
            "beta2_decay": beta2_decay,
            "eps": eps,
            "d": d,
            "weight_decay": weight_decay,
            "foreach": foreach,
            "maximize": maximize,
        }
        super().__init__(params, defaults)

    def step(self, closure: Closure | None = None) -> Any:
        """One update of every parameter with a gradient."""
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        with no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter.is_complex():
                        raise RuntimeError("Adafactor does not support complex parameters")
                    if parameter.grad is not None:
                        self._update_one(group, parameter, parameter.grad)
        return loss

    def _update_one(self, group: dict[str, Any], parameter: Tensor, gradient: Tensor) -> None:
        state = self.state[parameter]
        if not state:
            self._start_one(state, parameter)
        state["step"] += 1
        count = float(state["step"])
        lr, (eps1, eps2) = float(group["lr"]), group["eps"]
        if eps1 is None:
            from engine.rules.dtypes import finfo

            eps1 = finfo(parameter.dtype).eps
        if group["maximize"]:
            gradient = -gradient
        weight = count ** group["beta2_decay"]
        alpha = max(eps2, _rms(parameter)) * min(lr, 1 / math.sqrt(count))
        if group["weight_decay"] != 0:
            parameter.mul_(1 - lr * group["weight_decay"])
        if parameter.ndim > 1:
            state["row_var"].lerp_(gradient.square().mean(-1, keepdim=True), weight)
            state["col_var"].lerp_(gradient.square().mean(-2, keepdim=True), weight)
            estimate = state["row_var"] @ state["col_var"]
            estimate = estimate / state["row_var"].mean(-2, keepdim=True).clamp(min=eps1)
        else:
            state["variance"].lerp_(gradient.square(), weight)
            estimate = state["variance"]
        change = gradient / estimate.clamp(min=eps1 * eps1).sqrt()
        parameter.add_(change, alpha=-alpha / max(1.0, _rms(change) / group["d"]))

    def _start_one(self, state: dict[str, Any], parameter: Tensor) -> None:
        state["step"] = parameter.new_zeros(())
        if parameter.ndim > 1:
            state["row_var"] = parameter.new_zeros((*parameter.shape[:-1], 1))
            state["col_var"] = parameter.new_zeros((*parameter.shape[:-2], 1, parameter.shape[-1]))
        else:
            state["variance"] = parameter.new_zeros(parameter.shape)


def _rms(tensor: Tensor) -> float:
    return float(tensor.norm(2)) / math.sqrt(tensor.numel())
