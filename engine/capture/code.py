"""From a recording to one straight-line function, written out as namedtuple writes its classes.

A slot is a local variable, dropped after its last use, so that memory is freed as early as can be and a gradient that
goes to its leaf is held by nobody else, which lets AccumulateGrad take it without a copy.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from engine import dispatch
from engine.autograd import gradients
from engine.autograd.modes import state
from engine.autograd.node import Edge, Node
from engine.autograd.task import GraphTask
from engine.capture.recorder import Constant, Event, External, Group, Known, Shell, Slot, Wrapped
from engine.spec import Spec
from engine.tensor import Tensor

_INLINE = (bool, type(None))


class Writer:
    """Writes the function `replay(p0, p1, ...)` of the argument tensors. The methods named like kinds of events write
    these.
    """

    def __init__(self, arguments: int) -> None:
        self._arguments = arguments
        self._lines: list[str] = []
        self._indent = "    "
        self._names: dict[int, str] = {}
        self._used: set[int] = set()  # slots whose array somebody needs
        self._task = False  # whether the backward being written stores gradients
        self.namespace: dict[str, Any] = {
            "Tensor": Tensor,
            "begin": _begin,
            "end": _end,
            "fail": _fail,
            "leave": _leave,
            "fit": gradients.fit,
            "add_into": gradients.add_into,
            "read_grad": _read_grad,
            "write_at": _write_at,
            "result": _result,
        }

    def write(self, events: Sequence[Event], result: Any) -> Callable[..., Any]:
        """The function; it returns what the structure `result` says."""
        last = self._last_uses(events, result)
        for slot in range(self._arguments):
            if slot in self._used:
                self._line(f"t{slot} = p{slot}._array")
        for place, event in enumerate(events):
            self._dying = last.get(place, set()) - set(range(self._arguments))
            if event.kind == "begin_backward":
                self._task = any(each.kind == "accumulate" for each in self._within(events, place))
            getattr(self, f"_{event.kind}")(event)
            made = {slot.number for slot in event.results if slot is not None}
            for number in sorted(self._dying | (made - self._used)):
                self._line(f"t{number} = None")
        self._line(f"return {self._result(result)}")
        parameters = ", ".join(f"p{slot}" for slot in range(self._arguments))
        source = "\n".join([f"def replay({parameters}):", *self._lines])
        exec(compile(source, "<captured step>", "exec"), self.namespace)
        replay: Callable[..., Any] = self.namespace["replay"]
        setattr(replay, "source", source)  # noqa: B010 - functions have no such attribute for mypy
        return replay

    def _within(self, events: Sequence[Event], begin: int) -> Sequence[Event]:
        end = begin
        while events[end].kind != "end_backward":
            end += 1
        return events[begin:end]

    def _last_uses(self, events: Sequence[Event], result: Any) -> dict[int, set[int]]:
        """Place of an event -> slots that nobody needs after it."""
        last: dict[int, int] = {}
        for place, event in enumerate(events):
            for atom in event.arguments:
                for number in _slots_in(atom):
                    last[number] = place
        for number in _slots_in(result):
            last[number] = len(events)
        self._used = set(last)
        dying: dict[int, set[int]] = {}
        for number, place in last.items():
            dying.setdefault(place, set()).add(number)
        return dying

    # --- expressions --------------------------------------------------------------------------------------------------

    def _line(self, text: str) -> None:
        self._lines.append(self._indent + text)

    def _name(self, value: Any, prefix: str = "c") -> str:
        name = self._names.get(id(value))
        if name is None:
            name = self._names[id(value)] = f"{prefix}{len(self._names)}"
            self.namespace[name] = value
        return name

    def _constant(self, value: Any) -> str:
        if type(value) in _INLINE or (type(value) is int and abs(value) < 1 << 31):
            return repr(value)
        if value is np:
            return self._name(value)
        return self._name(value)

    def _expression(self, atom: Any) -> str:
        if isinstance(atom, Slot):
            return f"t{atom.number}"
        if isinstance(atom, External):
            return self._name(atom.array, "x")
        if isinstance(atom, Constant):
            return self._constant(atom.value)
        if isinstance(atom, Wrapped):
            return f"Tensor(t{atom.slot.number}, {self._name(atom.spec)})"
        if isinstance(atom, Known):
            return self._name(atom.tensor)
        if isinstance(atom, Shell):
            return f"Tensor(None, {self._name(atom.spec)})"
        assert isinstance(atom, Group)
        return self._group(atom, [self._expression(item) for item in atom.items])

    def _group(self, group: Group, items: list[str]) -> str:
        if group.kind is dict:
            keys = [self._constant(key) for key in group.keys]
            return "{" + ", ".join(f"{key}: {item}" for key, item in zip(keys, items, strict=True)) + "}"
        inner = ", ".join(items)
        if group.kind is list:
            return f"[{inner}]"
        return f"({inner},)" if group.kind is tuple and items else f"{self._name(group.kind)}({inner})"

    def _call(self, function: Any, arguments: Sequence[str]) -> str:
        """A call without the wrappers that only put arguments in place: 0.1 µs each."""
        given = list(arguments)
        while isinstance(function, partial) and not function.keywords:
            given = [*map(self._constant, function.args), *given]
            function = function.func
            if function is dispatch._call:
                kernel, xp, attributes = (self.namespace[name] for name in given[:3])
                return self._call(kernel, [self._name(xp), *given[3:], *map(self._constant, attributes)])
        return f"{self._name(function)}({', '.join(given)})"

    def _assign(self, results: Sequence[Slot | None], expression: str, unpack: bool) -> None:
        names = ["_" if slot is None else f"t{slot.number}" for slot in results]
        if not unpack:
            self._line(f"{names[0]} = {expression}" if results[0] is not None else expression)
        else:
            self._line(f"{', '.join(names)}, = {expression}")

    # --- events -------------------------------------------------------------------------------------------------------

    def _operator(self, event: Event) -> None:
        plan = event.target
        expression = self._call(plan.run, list(map(self._expression, event.arguments)))
        self._assign(event.results, expression, not plan.operator.single)

    def _rule(self, event: Event) -> None:
        plan, bound = event.target
        expression = self._call(bound.rule, list(map(self._expression, event.arguments)))
        self._assign(event.results, expression, plan.operator.joint is bound)

    def _write(self, event: Event) -> None:
        plan, kind = event.target
        target, *arguments = map(self._expression, event.arguments)
        if type(plan.run) is np.ufunc and kind is plan.outs[0].dtype:
            self._line(f"{self._name(plan.run)}({', '.join(arguments)}, {target})")
        else:
            self._line(f"{target}[...] = {self._call(plan.run, arguments)}")

    def _copy(self, event: Event) -> None:
        target, source = map(self._expression, event.arguments)
        self._line(f"{target}[...] = {source}")

    def _write_at(self, event: Event) -> None:
        self._line(f"write_at({', '.join(map(self._expression, event.arguments))})")

    def _function(self, event: Event) -> None:
        self._assign(event.results, self._call(event.target, list(map(self._expression, event.arguments))), False)

    def _source(self, event: Event) -> None:
        self._assign(event.results, f"{self._with_arguments(event)}._array", False)

    def _call_event(self, event: Event) -> None:
        if event.results:
            self._assign(event.results, f"{self._with_arguments(event)}._array", False)
        else:
            self._line(self._with_arguments(event))

    def _with_arguments(self, event: Event) -> str:
        args, kwargs = event.arguments[0].items
        given = [self._expression(item) for item in args.items]
        given += [f"{key}={self._expression(item)}" for key, item in zip(kwargs.keys, kwargs.items, strict=True)]
        return f"{self._name(event.target)}({', '.join(given)})"

    def _bump(self, event: Event) -> None:
        counter = self._name(event.target)
        self._line(f"{counter}.value += 1")
        self._line(f"{counter}.last_writer = {event.arguments[0].value!r}")

    def _begin_backward(self, event: Event) -> None:
        if self._task:
            leaves = self._name([atom.value for atom in event.arguments])
            self.namespace[f"kept_{leaves}"] = self.namespace[leaves]
            self._line(f"task, before = begin({leaves})")
            self._line("try:")
            self._indent += "    "

    def _end_backward(self, event: Event) -> None:
        if self._task:
            self._line("end(task)")
            self._indent = self._indent[4:]
            self._line("except BaseException:")
            self._line("    fail(task)")
            self._line("    raise")
            self._line("finally:")
            self._line("    leave(before)")

    def _fit(self, event: Event) -> None:
        gradient = self._expression(event.arguments[0])
        self._assign(event.results, f"fit(None, 0, {gradient}, {self._name(event.target)}, False)", False)

    def _handed_over(self, atom: Any) -> str:
        """A list that holds a gradient, which nobody else does from here on unless it is needed later."""
        expression = self._expression(atom)
        self._line(f"b = [{expression}]")
        if isinstance(atom, Slot) and atom.number in self._dying:
            self._line(f"{expression} = None")
            self._dying.discard(atom.number)
        return "b"

    def _add_into(self, event: Event) -> None:
        held, gradient = event.arguments
        if held == gradient:
            self._assign(event.results, f"{self._expression(held)} + {self._expression(gradient)}", False)
            return
        self._handed_over(held)
        self._line(f"add_into(b, 0, {self._expression(gradient)}, False)")
        self._assign(event.results, "b[0]", False)
        self._line("b = None")

    def _accumulate(self, event: Event) -> None:
        self._handed_over(event.arguments[0])
        self._line(f"{self._name(event.target.apply)}(b, False)")

    def _read_grad(self, event: Event) -> None:
        tensor = self._expression(event.arguments[0])
        if event.results:
            self._assign(event.results, f"read_grad({tensor})", False)

    def _set_grad(self, event: Event) -> None:
        tensor, value = map(self._expression, event.arguments)
        self._line(f"{tensor}.grad = {value}")

    def _requires_grad(self, event: Event) -> None:
        tensor, flag = map(self._expression, event.arguments)
        self._line(f"{tensor}.requires_grad_({flag})")

    # --- the result ---------------------------------------------------------------------------------------------------

    def _result(self, atom: Any) -> str:
        if isinstance(atom, Group):
            return self._group(atom, [self._result(item) for item in atom.items])
        if isinstance(atom, Returned):
            number = atom.slot.number
            if number < self._arguments:
                return f"p{number}"
            node = self._name(CapturedStep(atom.spec)) if atom.requires_grad else "None"
            return f"result(t{number}, {self._name(atom.spec)}, {node})"
        return self._expression(atom)


setattr(Writer, "_call_", Writer._call_event)  # noqa: B010


class Returned(Wrapped):
    """A Tensor that the step returns."""

    __slots__ = ()
    requires_grad = False


class ReturnedRequiringGrad(Returned):
    """The same, of which eager execution would have recorded a history."""

    __slots__ = ()
    requires_grad = True


class CapturedStep(Node):
    """What stands for the history of a tensor that a replay returns: there is none, and backward says so."""

    __slots__ = ()

    def __init__(self, spec: Spec) -> None:
        super().__init__((), (), (spec,))

    def name(self) -> str:
        return "CapturedStep"

    def apply(self, gradients: list[Any], recorded: bool, edges: Sequence[Edge | None] | None = None) -> Sequence[Any]:
        raise RuntimeError(
            "this tensor was returned by a step that engine.compile replays, which records no graph: call backward() "
            "inside the step"
        )


def _slots_in(atom: Any) -> list[int]:
    if isinstance(atom, Slot):
        return [atom.number]
    if isinstance(atom, Wrapped):
        return [atom.slot.number]
    return [number for item in atom.items for number in _slots_in(item)] if isinstance(atom, Group) else []


# --- what the function calls ------------------------------------------------------------------------------------------


def _begin(leaves: list[Node]) -> tuple[GraphTask, bool]:
    """What hooks and listeners see of a backward: the task that runs, and which leaves it reaches."""
    task = GraphTask((), False, False)
    task.dependencies = dict.fromkeys(leaves, 1)
    before = state.grad_enabled
    state.grad_enabled = False
    state.tasks.append(task)
    return task, before


def _end(task: GraphTask) -> None:
    for callback in task.callbacks:
        callback()


def _fail(task: GraphTask) -> None:
    for callback in task.on_error:
        callback()


def _leave(before: bool) -> None:
    state.grad_enabled = before
    state.tasks.pop()


def _read_grad(tensor: Tensor) -> Any:
    gradient = tensor.grad
    if gradient is None:
        raise RuntimeError("the captured step reads a .grad that is None now; when it was recorded there was one")
    return gradient._array


def _write_at(view: Any, key: tuple[Any, ...], value: Any, accumulate: bool) -> None:
    if accumulate:
        np.add.at(view, key, value)
    else:
        view[key] = value


def _result(array: Any, spec: Spec, node: CapturedStep | None) -> Tensor:
    tensor = Tensor(array, spec)
    if node is not None:
        tensor._requires_grad, tensor._grad_fn, tensor._output_nr = True, node, 0
    return tensor
