"""`trace`: every operator call with its dispatch key, shapes, strides and time; as a list, a table, or a
Chrome/Perfetto file.

It costs nothing when it is off: entering it makes plans anew, wrapped in a clock, and leaving it throws them away.
"""

import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from time import perf_counter
from types import FunctionType
from typing import Any, Self

from engine import dispatch
from engine.dispatch import Operator
from engine.namespaces import OPERATORS
from engine.plan import Plan
from engine.recording import OperatorNode
from engine.spec import Spec
from engine.tensor import Tensor


@dataclass(frozen=True, slots=True)
class Call:
    """One call at one dispatch key. Strides in elements, times in seconds.

    `key` is "CPU", "CUDA" or "Meta" for a kernel; "Autograd" for a call that was recorded, around the kernel it is
    redispatched to, and for a backward step (`operator` is then the node, as in MulBackward0); "CompositeImplicit" for
    a public function that is made of other operators, around those.
    """

    operator: str
    key: str
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


def _composites() -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """(where, name, function): functions of `engine` and methods of Tensor that are no row of the operator table."""
    import engine

    functions = {
        name: function
        for name, function in vars(engine.ops).items()
        if isinstance(function, FunctionType) and not name.startswith("_") and name not in OPERATORS
    }
    known = set(functions.values())
    for where in (engine, engine.ops, Tensor):
        for name, function in list(vars(where).items()):
            if isinstance(function, FunctionType) and function in known:
                yield where, name, function


class trace:
    """Collects the operator calls made inside the `with` block, on every thread.

    with engine.trace() as calls:
        step()
    print(calls.table())
    calls.save_chrome("step.json")  # for chrome://tracing or ui.perfetto.dev

    Raises: RuntimeError when one is active already.
    """

    _active = False

    def __new__(cls, input: Tensor | None = None) -> Any:
        """`engine.trace(matrix)` is the sum of its diagonal, which PyTorch has under this name."""
        if input is None:
            return super().__new__(cls)
        from engine.ops.einsum import trace as trace_of_matrix

        return trace_of_matrix(input)

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

    def _timed_recorder(self, operator: Operator, count: int, mask: int) -> Callable[..., None]:
        """What records calls for backward; its entry goes before that of the kernel, which ran already."""
        record = self._write_recorder(operator, count, mask)

        def timed(plan: Plan, inputs: Any, outputs: Any, residuals: Any) -> None:
            record(plan, inputs, outputs, residuals)
            self._keep(operator.name, "Autograd", plan.input_specs, plan.outs, self.calls[-1].began)
            self.calls.insert(len(self.calls) - 2, self.calls.pop())

        return timed

    def _composite(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def traced(*arguments: Any, **options: Any) -> Any:
            place, began = len(self.calls), perf_counter()
            result = function(*arguments, **options)
            made = {call.operator for call in self.calls[place:] if call.key not in ("Autograd", "CompositeImplicit")}
            if made and name not in made:
                given = [value._spec for value in arguments if isinstance(value, Tensor)]
                found = [
                    value._spec
                    for value in (result if isinstance(result, tuple | list) else [result])
                    if isinstance(value, Tensor)
                ]
                self._keep(name, "CompositeImplicit", given, found, began)
                self.calls.insert(place, self.calls.pop())
            return result

        return traced

    def __enter__(self) -> Self:
        if trace._active:
            raise RuntimeError("trace: another trace is active; leave it first")
        trace._active = True
        self._direct = {operator: operator.direct for operator in OPERATORS.values()}
        self._backward = OperatorNode.apply
        self._wrapper = dispatch.plan_wrapper
        self._write_recorder = dispatch.write_recorder
        self._replaced = list(_composites())
        for where, name, function in self._replaced:
            setattr(where, name, self._composite(name, function))
        dispatch.write_recorder = self._timed_recorder
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
            operator.forget_calls()
        return self

    def __exit__(self, *_: object) -> None:
        trace._active = False
        OperatorNode.apply = self._backward  # type: ignore[method-assign]
        dispatch.plan_wrapper = self._wrapper
        dispatch.write_recorder = self._write_recorder
        for where, name, function in self._replaced:
            setattr(where, name, function)
        for operator in OPERATORS.values():
            operator.direct = self._direct.get(operator)
            operator.forget_calls()

    def table(self, most: int = 40) -> str:
        """Operators by their own time, without that of the calls inside them: calls, total and mean time, share."""
        totals: dict[tuple[str, str], list[float]] = {}
        for call, seconds in zip(self.calls, self._own_seconds(), strict=True):
            entry = totals.setdefault((call.operator, call.key), [0.0, 0.0])
            entry[0] += 1
            entry[1] += seconds
        whole = sum(entry[1] for entry in totals.values()) or 1.0
        lines = [f"{'operator':<32}{'key':<10}{'calls':>8}{'total ms':>12}{'mean µs':>12}{'share':>8}"]
        ranked = sorted(totals.items(), key=lambda item: -item[1][1])
        for (name, key), (count, seconds) in ranked[:most]:
            share = seconds / whole
            mean = seconds / count * 1e6
            lines.append(f"{name:<32}{key:<10}{count:>8.0f}{seconds * 1e3:>12.3f}{mean:>12.2f}{share:>8.1%}")
        return "\n".join(lines)

    def _own_seconds(self) -> list[float]:
        own = [call.seconds for call in self.calls]
        open_calls: list[int] = []
        order = sorted(range(len(own)), key=lambda i: (self.calls[i].thread, self.calls[i].began, -own[i]))
        for place in order:
            call = self.calls[place]
            while open_calls and not _inside(call, self.calls[open_calls[-1]]):
                open_calls.pop()
            if open_calls:
                own[open_calls[-1]] -= call.seconds
            open_calls.append(place)
        return own

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


def _inside(call: Call, other: Call) -> bool:
    return call.thread == other.thread and call.began + call.seconds <= other.began + other.seconds
