"""`trace`: every operator call with its dispatch key, shapes, strides and time; as a list, a table, or a
Chrome/Perfetto file.

It costs nothing when it is off: entering it makes plans anew, wrapped in a clock, and leaving it throws them away.
"""

import json
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Self

from engine import dispatch
from engine.dispatch import OPERATORS, OperatorNode, Plan
from engine.spec import Spec


@dataclass(frozen=True, slots=True)
class Call:
    """One operator call, or one backward step of an operator. Strides in elements, times in seconds."""

    operator: str
    key: str  # "CPU", "CUDA" or "Meta" for a kernel, "Autograd" for a backward step
    shapes: tuple[tuple[int, ...], ...]
    strides: tuple[tuple[int, ...], ...]
    out_shapes: tuple[tuple[int, ...], ...]
    out_strides: tuple[tuple[int, ...], ...]
    began: float
    seconds: float
    thread: int


class _TimedPlan:
    """A plan whose `run` keeps a record of each call; everything else is the plan's own."""

    def __init__(self, plan: Plan, keep: Callable[..., None]) -> None:
        self._plan = plan
        self._keep = keep

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plan, name)

    def run(self, *arrays: Any) -> Any:
        began = perf_counter()
        result = self._plan.run(*arrays)
        plan = self._plan
        key = {"cpu": "CPU", "cuda": "CUDA", "meta": "Meta"}[plan.outs[0].device.type if plan.outs else "cpu"]
        self._keep(plan.operator.name, key, plan.input_specs, plan.outs, began)
        return result


class trace:
    """Collects the operator calls made inside the `with` block, on every thread.

    with engine.trace() as calls:
        step()
    print(calls.table())
    calls.save_chrome("step.json")  # for chrome://tracing or ui.perfetto.dev

    Raises: RuntimeError when one is active already.
    """

    _active = False

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def _keep(
        self, operator: str, key: str, inputs: Sequence[Spec | None], outputs: Sequence[Spec | None], began: float
    ) -> None:
        seconds = perf_counter() - began
        given = [spec for spec in inputs if spec is not None and spec.number is None]
        made = [spec for spec in outputs if spec is not None]
        self.calls.append(
            Call(
                operator,
                key,
                tuple(tuple(spec.shape) for spec in given),
                tuple(spec.stride for spec in given),
                tuple(tuple(spec.shape) for spec in made),
                tuple(spec.stride for spec in made),
                began,
                seconds,
                threading.get_ident(),
            )
        )

    def __enter__(self) -> Self:
        if trace._active:
            raise RuntimeError("trace: another trace is active; leave it first")
        trace._active = True
        self._direct = {operator: operator.direct for operator in OPERATORS.values()}
        self._backward = OperatorNode.apply
        self._wrapper = dispatch.plan_wrapper
        keep, backward = self._keep, self._backward

        def timed_backward(
            node: OperatorNode, gradients: list[Any], recorded: bool, edges: Any = None
        ) -> Sequence[Any]:
            began = perf_counter()
            results = backward(node, gradients, recorded, edges)
            keep(node.name(), "Autograd", node.output_specs, node.input_specs, began)
            return results

        OperatorNode.apply = timed_backward  # type: ignore[method-assign, assignment]
        dispatch.plan_wrapper = lambda plan: _TimedPlan(plan, keep)  # type: ignore[assignment, return-value]
        for operator in OPERATORS.values():
            operator.direct = None
            operator.plans.clear()
        return self

    def __exit__(self, *_: object) -> None:
        trace._active = False
        OperatorNode.apply = self._backward  # type: ignore[method-assign]
        dispatch.plan_wrapper = self._wrapper
        for operator in OPERATORS.values():
            operator.direct = self._direct.get(operator)
            operator.plans.clear()

    def table(self, most: int = 40) -> str:
        """Operators by total time: calls, total and mean time, share."""
        totals: dict[tuple[str, str], list[float]] = {}
        for call in self.calls:
            entry = totals.setdefault((call.operator, call.key), [0.0, 0.0])
            entry[0] += 1
            entry[1] += call.seconds
        whole = sum(entry[1] for entry in totals.values()) or 1.0
        lines = [f"{'operator':<32}{'key':<10}{'calls':>8}{'total ms':>12}{'mean µs':>12}{'share':>8}"]
        ranked = sorted(totals.items(), key=lambda item: -item[1][1])
        for (name, key), (count, seconds) in ranked[:most]:
            share = seconds / whole
            mean = seconds / count * 1e6
            lines.append(f"{name:<32}{key:<10}{count:>8.0f}{seconds * 1e3:>12.3f}{mean:>12.2f}{share:>8.1%}")
        return "\n".join(lines)

    def save_chrome(self, path: str | os.PathLike[str]) -> None:
        """Writes the calls as trace events (JSON), readable by chrome://tracing and Perfetto."""
        events = [
            {
                "name": call.operator,
                "cat": call.key,
                "ph": "X",
                "ts": call.began * 1e6,
                "dur": call.seconds * 1e6,
                "pid": os.getpid(),
                "tid": call.thread,
                "args": {
                    "shapes": call.shapes,
                    "strides": call.strides,
                    "out_shapes": call.out_shapes,
                    "out_strides": call.out_strides,
                },
            }
            for call in self.calls
        ]
        Path(path).write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))
