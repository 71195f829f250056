"""From a recording to one straight-line function, written out as namedtuple writes its classes.

A slot is a local variable, dropped after its last use, so that memory is freed as early as can be and a gradient that
goes to its leaf is held by nobody else, which lets AccumulateGrad take it without a copy.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from engine.autograd.modes import state
from engine.calls.plan import call_kernel
from engine.calls.straight import Layout
from engine.capture.lowering import lower
from engine.capture.memory import Buffers, slots_in
from engine.capture.recorder import Constant, Event, External, Group, Known, Offer, Shell, Slot, Wrapped
from engine.capture.runtime import NAMESPACE, CapturedStep, watched
from engine.errors.callers import GENERATED
from engine.memory import backend

_INLINE = (bool, type(None))


class Writer:
    """Writes the function `replay(p0, p1, ...)` of the argument tensors. Methods `on_<kind>` write events of a kind.

    `layouts`: how the array of each slot lies.
    """

    def __init__(self, events: Sequence[Event], result: Any, layouts: Sequence[Layout | None], arguments: int) -> None:
        self._events = events
        self._returned = result
        self._layouts = layouts
        self._arguments = arguments
        self._buffers = Buffers(events, result, layouts, arguments)
        self._lines: list[str] = []
        self._indent = "    "
        self._names: dict[int, str] = {}
        self._used: set[int] = set()  # slots whose array somebody needs
        self._dying: set[int] = set()  # slots that nobody needs after the event being written
        self._hoisted: dict[int, str] = {}  # slots that hold the same at every replay
        self._recorded = state.grad_enabled  # as it is where the step is called
        self._task = False  # whether the backward being written stores gradients
        self._namespace: dict[str, Any] = dict(NAMESPACE)

    def write(self) -> Callable[..., Any]:
        """The function; it returns what the step does."""
        events, result = self._events, self._returned
        last = self._last_uses(events, result)
        for slot in range(self._arguments):
            if slot in self._used:
                self.line(f"t{slot} = p{slot}._array")
        for place, event in enumerate(events):
            self._dying = last.get(place, set()) - set(range(self._arguments))
            if event.kind == "begin_backward":
                self._task = any(each.kind == "accumulate" for each in self._within(events, place))
            getattr(self, f"on_{event.kind}")(event)
            made = {slot.number for slot in event.results if slot is not None}
            for number in sorted((self._dying | (made - self._used)) - self._hoisted.keys()):
                self.line(f"t{number} = None")
        self.line(f"return {self._written_result(result)}")
        parameters = ", ".join(f"p{slot}" for slot in range(self._arguments))
        source = "\n".join([f"def replay({parameters}):", *self._lines])
        exec(compile(source, f"{GENERATED}captured step>", "exec"), self._namespace)
        replay: Callable[..., Any] = self._namespace["replay"]
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
                for number in slots_in(atom):
                    last[number] = place
        for number in slots_in(result):
            last[number] = len(events)
        self._used = set(last)
        dying: dict[int, set[int]] = {}
        for number, place in last.items():
            dying.setdefault(place, set()).add(number)
        return dying

    # --- expressions --------------------------------------------------------------------------------------------------

    def line(self, text: str) -> None:
        self._lines.append(self._indent + text)

    def name(self, value: Any, prefix: str = "c") -> str:
        name = self._names.get(id(value))
        if name is None:
            name = self._names[id(value)] = f"{prefix}{len(self._names)}"
            self._namespace[name] = value
        return name

    def layout(self, atom: Any) -> Layout | None:
        """How the array that an event refers to lies."""
        if isinstance(atom, Slot):
            return self._layouts[atom.number]
        if isinstance(atom, External) and isinstance(atom.array, np.ndarray):
            array = atom.array
            return Layout(array.shape, array.strides, array.dtype, array.flags.c_contiguous, array.base is None, -1)
        return None

    def memory(self, slot: Slot) -> str | None:
        """The buffer for an array that is about to be made; None if it has to be fresh memory."""
        buffer = self._buffers.take(slot)
        return None if buffer is None else self.name(buffer, "m")

    def _constant(self, value: Any) -> str:
        if type(value) in _INLINE or (type(value) is int and abs(value) < 1 << 31):
            return repr(value)
        return self.name(value)

    def expression(self, atom: Any) -> str:
        if isinstance(atom, Slot):
            return self._hoisted.get(atom.number, f"t{atom.number}")
        if isinstance(atom, External):
            return self.name(atom.array, "x")
        if isinstance(atom, Constant):
            return self._constant(atom.value)
        if isinstance(atom, Wrapped):
            return f"Tensor(t{atom.slot.number}, {self.name(atom.spec)})"
        if isinstance(atom, Known):
            return self.name(atom.tensor)
        if isinstance(atom, Shell):
            return f"Tensor(None, {self.name(atom.spec)})"
        if isinstance(atom, Offer):
            return f"offered({self.name(atom.leaf)})"
        assert isinstance(atom, Group)
        return self._group(atom, [self.expression(item) for item in atom.items])

    def _group(self, group: Group, items: list[str]) -> str:
        if group.kind is dict:
            keys = [self._constant(key) for key in group.keys]
            return "{" + ", ".join(f"{key}: {item}" for key, item in zip(keys, items, strict=True)) + "}"
        inner = ", ".join(items)
        if group.kind is list:
            return f"[{inner}]"
        return f"({inner},)" if group.kind is tuple and items else f"{self.name(group.kind)}({inner})"

    def on_one(self, event: Event) -> None:
        """The gradient of a root, which nobody writes: made once."""
        slot, array = event.results[0], backend.empty(event.target)
        array.fill(1)
        assert slot is not None
        self._hoisted[slot.number] = self.name(array)

    def _call(self, function: Any, arguments: Sequence[Any]) -> str:
        """A call without the wrappers that only put arguments in place: 0.1 µs each."""
        function, arguments = _unwrapped(function, tuple(arguments))
        return f"{self.name(function)}({', '.join(map(self.expression, arguments))})"

    def _assign(self, results: Sequence[Slot | None], expression: str, unpack: bool) -> None:
        names = ["_" if slot is None else f"t{slot.number}" for slot in results]
        if not unpack:
            self.line(f"{names[0]} = {expression}" if results[0] is not None else expression)
        else:
            self.line(f"{', '.join(names)}, = {expression}")

    # --- events -------------------------------------------------------------------------------------------------------

    def on_operator(self, event: Event) -> None:
        plan = event.target
        self._call_or_lines(plan.run, event, not plan.operator.single)

    def _call_or_lines(self, function: Any, event: Event, several: bool) -> None:
        """The call of a kernel, which returns a tuple where there are several results."""
        if not lower(self, *_unwrapped(function, event.arguments), event.results, several):
            self._assign(event.results, self._call(function, event.arguments), several)

    def on_rule(self, event: Event) -> None:
        plan, bound = event.target
        self._call_or_lines(bound.rule, event, plan.operator.joint is bound)

    def on_write(self, event: Event) -> None:
        plan, kind = event.target
        target, *arguments = event.arguments
        if type(plan.run) is np.ufunc and kind is plan.outs[0].dtype:
            self.line(f"{self._call(plan.run, arguments).removesuffix(')')}, out={self.expression(target)})")
        else:
            self.line(f"{self.expression(target)}[...] = {self._call(plan.run, arguments)}")

    def on_copy(self, event: Event) -> None:
        target, source = map(self.expression, event.arguments)
        self.line(f"{target}[...] = {source}")

    def on_write_at(self, event: Event) -> None:
        self.line(f"write_at({', '.join(map(self.expression, event.arguments))})")

    def on_function(self, event: Event) -> None:
        self._assign(event.results, self._call(event.target, event.arguments), False)

    def on_source(self, event: Event) -> None:
        self._assign(event.results, f"{self._with_arguments(event)}._array", False)

    def on_effect(self, event: Event) -> None:
        """A real call, in the grad mode it had."""
        recorded = event.arguments[1].value
        other = recorded is not (self._recorded and not self._indent[4:])
        if other:
            self.line(f"mode = state.grad_enabled; state.grad_enabled = {recorded}")
            self.line("try:")
            self._indent += "    "
        call = self._with_arguments(event)
        if event.results:
            self._assign(event.results, f"{call}._array", False)
        else:
            self.line(call)
        if other:
            self._indent = self._indent[4:]
            self.line("finally:")
            self.line("    state.grad_enabled = mode")

    def _with_arguments(self, event: Event) -> str:
        args, kwargs = event.arguments[0].items
        given = [self.expression(item) for item in args.items]
        given += [f"{key}={self.expression(item)}" for key, item in zip(kwargs.keys, kwargs.items, strict=True)]
        return f"{self.name(event.target)}({', '.join(given)})"

    def on_bump(self, event: Event) -> None:
        if isinstance(event.target, int):
            self.line(f"p{event.target}._bump_version({event.arguments[0].value!r})")
            return
        counter = self.name(event.target)
        self.line(f"{counter}.value += 1")
        self.line(f"{counter}.last_writer = {event.arguments[0].value!r}")

    def on_begin_backward(self, event: Event) -> None:
        if self._task:
            leaves = self.name(dict(atom.value for atom in event.arguments))
            self.line(f"task, before = begin({leaves})")
            self.line("try:")
            self._indent += "    "

    def on_end_backward(self, event: Event) -> None:
        if self._task:
            self.line("end(task)")
            self._indent = self._indent[4:]
            self.line("except BaseException:")
            self.line("    fail(task)")
            self.line("    raise")
            self.line("finally:")
            self.line("    leave(before)")

    def on_fit(self, event: Event) -> None:
        gradient = self.expression(event.arguments[0])
        self._assign(event.results, f"fit(None, (), None, {gradient}, {self.name(event.target)}, False)", False)

    def _handed_over(self, atom: Any) -> str:
        """A list that holds a gradient, which nobody else does from here on unless it is needed later."""
        expression = self.expression(atom)
        self.line(f"b = [{expression}]")
        if self._dies(atom):
            self.line(f"{expression} = None")
            self._dying.discard(atom.number)
        return "b"

    def on_add_into(self, event: Event) -> None:
        held, gradient = event.arguments
        if held == gradient:
            self._assign(event.results, f"{self.expression(held)} + {self.expression(gradient)}", False)
            return
        self._handed_over(held)
        self.line(f"add_into(b, 0, {self.expression(gradient)}, False)")
        self._assign(event.results, "b[0]", False)
        self.line("b = None")

    def on_accumulate(self, event: Event) -> None:
        """A gradient reaches its leaf. The usual case is written out (0.7 µs less); AccumulateGrad knows the others."""
        leaf = event.target
        gradient, obedient = event.arguments
        apply, variable = self.name(leaf.apply), leaf.variable
        meta = None if variable is None else variable._meta
        usual = meta is not None and obedient.value and self._dies(gradient) and not watched(meta)
        if usual:
            name, t = self.name(meta), self.expression(gradient)
            self.line(
                f"if {name}.grad is None and {name}.destination_of is None and {name}.listener is None "
                f"and not {name}.post_accumulate and references({t}) == alone:"
            )
            self.line(f"    {name}.grad = Tensor({t}, {self.name(variable._spec)})")
            self.line(f"    {t} = None")
            self.line("else:")
            self._indent += "    "
        self._handed_over(gradient)
        self.line(f"{apply}(b, False)")
        if usual:
            self._indent = self._indent[4:]

    def _dies(self, atom: Any) -> bool:
        return isinstance(atom, Slot) and atom.number in self._dying and atom.number not in self._hoisted

    def on_read_grad(self, event: Event) -> None:
        tensor = self.expression(event.arguments[0])
        if event.results:
            self._assign(event.results, f"read_grad({tensor})", False)

    def on_set_grad(self, event: Event) -> None:
        tensor, value = map(self.expression, event.arguments)
        self.line(f"{tensor}.grad = {value}")

    def on_requires_grad(self, event: Event) -> None:
        tensor, flag = map(self.expression, event.arguments)
        self.line(f"{tensor}.requires_grad_({flag})")

    # --- the result ---------------------------------------------------------------------------------------------------

    def _written_result(self, atom: Any) -> str:
        if isinstance(atom, Group):
            return self._group(atom, [self._written_result(item) for item in atom.items])
        if isinstance(atom, Returned):
            number = atom.slot.number
            if number < self._arguments:
                return f"p{number}"
            node = self.name(CapturedStep(atom.spec)) if atom.requires_grad else "None"
            return f"result(t{number}, {self.name(atom.spec)}, {node})"
        return self.expression(atom)


class Returned(Wrapped):
    """A Tensor that the step returns."""

    __slots__ = ()
    requires_grad = False


class ReturnedRequiringGrad(Returned):
    """The same, of which eager execution would have recorded a history."""

    __slots__ = ()
    requires_grad = True


def _unwrapped(function: Any, arguments: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """The function that partial objects call in the end, and what it is given."""
    while isinstance(function, partial) and not function.keywords:
        arguments = (*map(Constant, function.args), *arguments)
        function = function.func
        if function is call_kernel:
            kernel, xp, attributes = (atom.value for atom in arguments[:3])
            function, arguments = kernel, (Constant(xp), *arguments[3:], *map(Constant, attributes))
    return function, arguments
