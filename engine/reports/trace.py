"""`trace`: every operator call with its dispatch key, shapes, strides and time; as a list, a table, or a
Chrome/Perfetto file.

It costs nothing when it is off (`engine.calls.listening`).
"""

import json
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import takewhile
from pathlib import Path
from time import perf_counter
from types import FunctionType
from typing import Any, Self

from engine.autograd.modes import state
from engine.calls import listening
from engine.calls.listening import BACKWARD, FUNCTION, KERNEL, Handler
from engine.calls.namespaces import OPERATORS
from engine.rules.spec import Spec
from engine.tensor import Tensor


@dataclass(frozen=True, slots=True)
class Call:
    """One call at one dispatch key. Strides in elements, times in seconds; `depth`: how many others it is inside of.

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
    depth: int = 0

    def with_layouts(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec | None]) -> "Call":
        """The same, of tensors like these."""
        given = [spec for spec in inputs if spec is not None and spec.number is None]
        made = [spec for spec in outputs if spec is not None]
        return replace(
            self,
            shapes=tuple(tuple(spec.shape) for spec in given),
            strides=tuple(spec.stride for spec in given),
            out_shapes=tuple(tuple(spec.shape) for spec in made),
            out_strides=tuple(spec.stride for spec in made),
        )


_KEYS = {"cpu": "CPU", "cuda": "CUDA", "meta": "Meta"}


@cache
def _composites() -> frozenset[Any]:
    """Functions of `engine` and methods of Tensor that are no row of the operator table."""
    from engine import ops

    return frozenset(
        function
        for name, function in vars(ops).items()
        if isinstance(function, FunctionType) and not name.startswith("_") and name not in OPERATORS
    )


class trace:
    """Collects the operator calls made inside the `with` block, on this thread and those of its backward.

    with engine.trace() as calls:
        step()
    print(calls.table())
    print(calls.listing())
    calls.save_chrome("step.json")  # for chrome://tracing or ui.perfetto.dev

    Raises: RuntimeError when one is active already.
    """

    def __new__(cls, input: Tensor | None = None) -> Any:
        """`engine.trace(matrix)` is the sum of its diagonal, which PyTorch has under this name."""
        if input is None:
            return super().__new__(cls)
        from engine.ops.matmul.einsum import trace as trace_of_matrix

        return trace_of_matrix(input)

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._open = 0  # calls that are under way

    @staticmethod
    def is_active() -> bool:
        """Whether this thread is inside of one."""
        return any(isinstance(each, trace) for each in state.listeners)

    def __enter__(self) -> Self:
        if trace.is_active():
            raise RuntimeError("trace: another trace is active; leave it first")
        listening.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        listening.remove(self)

    def __call__(self, key: str, target: Any) -> Handler | None:
        """As a listener: what is called in place of a target."""
        if key is FUNCTION:
            return partial(self._function, target) if target in _composites() else None
        if key is BACKWARD and not target.next_edges:
            return None  # a leaf, which only keeps its gradient
        return partial(self._timed, key, target)

    def _function(self, function: Any, proceed: Callable[..., Any], /, *arguments: Any, **options: Any) -> Any:
        """A function is told where it is made of operators, none of which has its name."""
        name, place = function.__name__, len(self.calls)
        result = self._within(name, "CompositeImplicit", proceed, *arguments, **options)
        made = {call.operator for call in self.calls[place + 1 :] if call.key not in ("Autograd", "CompositeImplicit")}
        if made and name not in made:
            found = result if isinstance(result, tuple | list) else [result]
            specs = [[each._spec for each in values if isinstance(each, Tensor)] for values in (arguments, found)]
            self.calls[place] = self.calls[place].with_layouts(*specs)
        else:
            del self.calls[place]
            self.calls[place:] = [replace(call, depth=call.depth - 1) for call in self.calls[place:]]
        return result

    def _timed(self, key: str, target: Any, proceed: Callable[..., Any], /, *arguments: Any) -> Any:
        place = len(self.calls)
        if key is BACKWARD:
            result = self._within(target.name(), "Autograd", proceed, *arguments)
            specs = target.output_specs, target.input_specs
        else:
            device_type = target.outs[0].device.type if target.outs else "cpu"
            key = _KEYS[device_type] if key is KERNEL else "Autograd"
            result = self._within(target.operator.name, key, proceed, *arguments)
            specs = target.input_specs, target.outs
        self.calls[place] = self.calls[place].with_layouts(*specs)
        return result

    def _within(self, operator: str, key: str, proceed: Callable[..., Any], /, *arguments: Any, **options: Any) -> Any:
        """Calls, with an entry before those of what is called."""
        place = self.begin(operator, key)
        try:
            return proceed(*arguments, **options)
        finally:
            self.end(place)

    def begin(self, operator: str, key: str) -> int:
        """An entry that goes on until `end` of what this returns; those that begin meanwhile are inside of it."""
        self.calls.append(Call(operator, key, (), (), (), (), perf_counter(), 0.0, threading.get_ident(), self._open))
        self._open += 1
        return len(self.calls) - 1

    def end(self, place: int) -> None:
        """The entry is over."""
        call = self.calls[place]
        self._open = call.depth
        self.calls[place] = replace(call, seconds=perf_counter() - call.began)

    def listing(self) -> str:
        """The calls in order, a line each, those inside of others with an indent: `[call] op=[mm], key=[AutogradCPU]`.

        As a dispatcher prints them: with the device in the key, a function made of operators with that of the first of
        them.
        """
        lines = []
        for place, call in enumerate(self.calls):
            deeper = (each.depth > call.depth for each in self.calls[place + 1 :])
            inside = self.calls[place + 1 : place + 1 + len(list(takewhile(bool, deeper)))]
            kernel = next((each.key for each in inside if each.key in _KEYS.values()), call.key)
            recorded = call.key == "Autograd" or (
                call.key == "CompositeImplicit" and self.calls[place + 1].key == "Autograd"
            )
            key = f"Autograd{kernel.removeprefix('Autograd')}" if recorded else kernel
            lines.append(f"{'  ' * call.depth}[call] op=[{call.operator}], key=[{key}]")
        return "\n".join(lines)

    def table(self, most: int = 40) -> str:
        """Operators by their own time, without that of the calls inside them: calls, total and mean time, share."""
        totals: dict[tuple[str, str], list[float]] = {}
        for call, seconds in zip(self.calls, self.own_seconds(), strict=True):
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

    def own_seconds(self) -> list[float]:
        """Of each call, without those inside of it."""
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
