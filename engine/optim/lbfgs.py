"""L-BFGS: a quasi-Newton method with limited memory."""

from collections.abc import Callable, Iterable
from typing import Any

import engine
from engine.autograd.modes import enable_grad, no_grad
from engine.optim.line_search import Point, strong_wolfe
from engine.optim.optimizer import Optimizer
from engine.optim.options import check_lr
from engine.tensor import Tensor


class LBFGS(Optimizer):
    """Steps along -H g, where H approximates the inverse Hessian from the last `history_size` changes of g and p.

    One parameter group. `step(closure)` runs up to `max_iter` iterations; the closure clears the gradients, computes
    the loss, calls backward and returns the loss. A complex number counts as two real ones. State, of the first
    parameter: func_evals, n_iter, d, t, old_dirs, old_stps, ro, H_diag, al, prev_flat_grad, prev_loss. Nocedal
    (1980), torch.optim.LBFGS. Raises: ValueError for a negative lr or several groups; RuntimeError for another line
    search than "strong_wolfe".
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: Any = 1,
        max_iter: int = 20,
        max_eval: int | None = None,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
        history_size: int = 100,
        line_search_fn: str | None = None,
    ) -> None:
        check_lr(lr)
        defaults = {
            "lr": lr,
            "max_iter": max_iter,
            "max_eval": max_iter * 5 // 4 if max_eval is None else max_eval,
            "tolerance_grad": tolerance_grad,
            "tolerance_change": tolerance_change,
            "history_size": history_size,
            "line_search_fn": line_search_fn,
        }
        super().__init__(params, defaults)
        if len(self.param_groups) != 1:
            raise ValueError("LBFGS doesn't support per-parameter options (parameter groups)")

    @property
    def _params(self) -> list[Tensor]:
        return self.param_groups[0]["params"]

    def _flat_gradient(self) -> Tensor:
        """All gradients in a row, in logical order; zeros where there is none; complex ones as pairs of numbers."""
        gradients = (engine.zeros_like(each) if each.grad is None else each.grad.detach() for each in self._params)
        return engine.cat([_real(each).reshape(-1) for each in gradients])

    def _move(self, step: float, direction: Tensor) -> None:
        at = 0
        for param in self._params:
            real = _real(param)
            size = real.numel()
            real.add_(direction[at : at + size].view(real.shape), alpha=step)
            at += size

    def step(self, closure: Callable[[], Any]) -> Any:  # type: ignore[override]
        """One call of L-BFGS; returns the loss of the first evaluation."""
        group = self.param_groups[0]
        lr = float(group["lr"])
        max_eval, tolerance_change = group["max_eval"], group["tolerance_change"]
        if group["line_search_fn"] not in (None, "strong_wolfe"):
            raise RuntimeError("only 'strong_wolfe' is supported")
        evaluate = enable_grad()(closure)
        state = self.state[self._params[0]]
        state.setdefault("func_evals", 0)
        state.setdefault("n_iter", 0)
        first_loss = evaluate()
        loss, evaluations = float(first_loss), 1
        state["func_evals"] += 1
        with no_grad():
            gradient = self._flat_gradient()
            if _largest(gradient) <= group["tolerance_grad"]:
                return first_loss
            iteration = 0
            while iteration < group["max_iter"]:
                iteration += 1
                state["n_iter"] += 1
                self._update_direction(state, gradient, group["history_size"])
                direction: Tensor = state["d"]
                state["prev_flat_grad"] = gradient.clone()
                previous_loss = state["prev_loss"] = loss
                step = lr if state["n_iter"] > 1 else min(1.0, 1.0 / float(gradient.abs().sum())) * lr
                state["t"] = step
                slope = float(gradient.dot(direction))
                if slope > -tolerance_change:
                    break
                used = 0
                if group["line_search_fn"] is not None:
                    point, used = self._search(
                        evaluate, Point(0.0, loss, gradient, slope), step, direction, max_eval - evaluations
                    )
                    loss, gradient, step = point.loss, point.gradient, point.step
                    state["t"] = step
                    self._move(step, direction)
                else:
                    self._move(step, direction)
                    if iteration != group["max_iter"]:  # the last point is evaluated by the next call
                        loss, used = float(evaluate()), 1
                        gradient = self._flat_gradient()
                evaluations += used
                state["func_evals"] += used
                if (
                    evaluations >= max_eval
                    or _largest(gradient) <= group["tolerance_grad"]
                    or _largest(direction) * step <= tolerance_change
                    or abs(loss - previous_loss) < tolerance_change
                ):
                    break
        return first_loss

    def _update_direction(self, state: dict[str, Any], gradient: Tensor, history_size: int) -> None:
        """Sets state["d"] to -H g by the two-loop recursion, after adding the last change to the history."""
        if state["n_iter"] == 1:
            state.update(d=-gradient, old_dirs=[], old_stps=[], ro=[], H_diag=1.0)
            return
        changes, steps, ro = state["old_dirs"], state["old_stps"], state["ro"]
        change = gradient - state["prev_flat_grad"]
        moved = state["d"] * float(state["t"])
        product = change.dot(moved)
        if float(product) > 1e-10:
            if len(changes) == history_size:
                for history in (changes, steps, ro):
                    history.pop(0)
            changes.append(change)
            steps.append(moved)
            ro.append(1.0 / product)
            state["H_diag"] = product / change.dot(change)
        factors = state.setdefault("al", [None] * history_size)
        direction = -gradient
        for at in reversed(range(len(changes))):
            factors[at] = steps[at].dot(direction) * ro[at]
            direction.add_(changes[at], alpha=-float(factors[at]))
        direction.mul_(state["H_diag"])
        for at in range(len(changes)):
            direction.add_(steps[at], alpha=float(factors[at] - changes[at].dot(direction) * ro[at]))
        state["d"] = direction

    def _search(
        self, evaluate: Callable[[], Any], start: Point, step: float, direction: Tensor, max_evaluations: int
    ) -> tuple[Point, int]:
        saved = [param.detach().clone() for param in self._params]

        def at(step: float) -> Point:
            self._move(step, direction)
            loss = float(evaluate())
            gradient = self._flat_gradient()
            for param, value in zip(self._params, saved, strict=True):
                param.copy_(value)
            return Point(step, loss, gradient, float(gradient.dot(direction)))

        return strong_wolfe(at, start, step, _largest(direction), max_evaluations=max_evaluations)


def _real(x: Tensor) -> Tensor:
    return engine.view_as_real(x) if x.is_complex() else x


def _largest(x: Tensor) -> float:
    return float(x.abs().max())
