"""The operator table: what an operator consists of, said in one place (`engine/ops/<family>/`):

* `rule`: a pure function of the inputs' Specs and the attributes that returns the Spec of each output and raises every
shape and dtype error;
* `forward`: the kernel, on raw arrays: `forward(xp, *arrays, *attributes)`, with xp numpy or cupy;
* `backward`: derivative rules (below), or None where the output carries no gradient.

The last input may be a list of tensors (`inputs="input indices*"`): rule, kernel and derivative rules get it as a
tuple, while calls and plans have its tensors one after the other. Only a rule for all inputs at once (below) can give
gradients of it.

Derivative rules name what they need by parameter name: `g` (the gradient of the output; a tuple for operators with
several outputs), any input, any attribute, `out` (the output, or a tuple), `out1` (number 1 of several outputs, alone),
`<input>_spec`, `attributes` (all of them), a residual (an extra array that forward returned for backward), `into`
(memory that the gradient may be written to, or None), `needs` (which inputs need a gradient), and `nd` (the functions
of engine.ops, on raw arrays or on Tensors, as the occasion demands). `backward` is a tuple with one rule an input
(None: not differentiable) or one function that returns all of them. Only what the needed rules name is saved. With
create_graph the rule runs on Tensors and is itself recorded; residuals are then None and the rule computes them again
from its inputs.

Complex and half precision tensors have plans whose operator is a twin with other derivative rules (`for_complex`,
`for_half_precision`; engine/calls/derivative.py), and so have devices that need their own (`Operator.derivative`).
How a call goes through an operator: engine/calls/dispatch.py.
"""

import copy
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from types import ModuleType
from typing import Any

from engine.calls.derivative import Bound, as_it_is, bind, conjugated, in_single_precision, places, with_host_scalars
from engine.calls.namespaces import OPERATORS
from engine.calls.node_names import node_name
from engine.calls.plan import Plan
from engine.calls.recording import DeviceNode, OperatorNode, Record, Step, write_recorder, write_step
from engine.memory.guard import guarded

_PLANS_AT_MOST = 16_384
_PLANS_OF_LISTS_AT_MOST = 1_024  # each as long as the list


class Operator:
    """One operator; see the module's docstring. `single`: exactly one public output and no residuals."""

    def __init__(
        self,
        name: str,
        rule: Callable[..., Any],
        forward: Callable[..., Any],
        backward: Any,
        inputs: Sequence[str],
        attributes: Sequence[str],
        outputs: int,
        residuals: Sequence[str],
        view: bool,
        prepare: Callable[[ModuleType, Plan], Callable[..., Any]] | None,
    ) -> None:
        self.name = name
        self.rule = rule
        self.forward = forward
        self.inputs = tuple(name.removesuffix("*") for name in inputs)
        # How many inputs stand before the list of tensors; None where there is no list.
        self.before_list = len(inputs) - 1 if inputs and inputs[-1].endswith("*") else None
        self.attributes = tuple(attributes)
        self.outputs = outputs
        self.residuals = len(residuals)
        self.single = outputs == 1 and not residuals
        self.view = view
        self.prepare = prepare
        self.kernels: dict[str, Callable[..., Any]] = {}
        self.planned: dict[str, Callable[[Plan], Callable[..., Any] | None]] = {}  # see `plans_for`
        self.plans: dict[tuple[Any, ...], Plan] = {}
        # The bare kernel for equal, contiguous floating point operands on the CPU, whose result has their Spec (set by
        # engine.ops.pointwise.row).
        self.direct: Callable[..., Any] | None = None
        self.differentiable = backward is not None
        self.on_devices: dict[str, Operator] = {}  # twins with derivative rules of their own (`derivative`)
        self.analytic = True  # False: the rules hold for complex numbers as they are; see `for_complex`
        self.elementwise = False
        self.notes_stream = False  # whether recorders note the GPU's stream; see `with_streams`
        self._variants: dict[Any, Operator] = {}
        self.node_name = node_name(name)
        self.node_type: type[OperatorNode] | None = None  # made at the first recorded call
        self._places = places(self.inputs, self.before_list, self.attributes, residuals, outputs)
        self._bind_rules(backward)
        # Bit mask of the inputs that have a derivative (-1: of any number of them).
        self.grad_mask = sum(
            1 << i
            for i in range(len(inputs))
            if self.joint is not None or (i < len(self.rules) and self.rules[i] is not None)
        )
        if self.before_list is not None:
            assert not self.grad_mask >> self.before_list or self.joint is not None, f"{name}: a rule for a list alone"
            self.grad_mask = self.grad_mask if self.joint is None else -1
        self.recorders: dict[tuple[int, int], Record] = {}
        self._steps: dict[tuple[int, int, bool, bool], Step] = {}

    def _bind_rules(self, backward: Any) -> None:
        self._kept: dict[int, tuple[tuple[bool, ...], tuple[int, ...] | None]] = {}
        bound = partial(bind, self.name, places=self._places)
        self.joint = None if isinstance(backward, tuple) or backward is None else bound(backward)
        given = backward if isinstance(backward, tuple) else ()
        self.rules = tuple(None if rule is None else bound(rule) for rule in given)

    def keeps(self, mask: int) -> tuple[tuple[bool, ...], tuple[int, ...] | None]:
        """Which inputs, and the numbers of the outputs (None: all), that must be saved when the inputs in the bit mask
        need gradients.
        """
        found = self._kept.get(mask)
        if found is None:
            asked = set(chain.from_iterable(rule.places for rule in self.rules_for(mask).values()))
            inputs = tuple(self._places[name] in asked for name in self.inputs)
            outputs = None if "out" in asked else tuple(i for i in range(self.outputs) if f"o{i}" in asked)
            found = self._kept[mask] = inputs, outputs
        return found

    def rules_for(self, mask: int) -> dict[int, Bound]:
        """The rules that give gradients of the inputs in the bit mask, by the input; one for all of them has -1."""
        if self.joint is not None:
            return {-1: self.joint}
        return {i: rule for i, rule in enumerate(self.rules) if rule is not None and mask >> i & 1}

    def recorder(self, mask: int, count: int) -> Record:
        """Makes and remembers what records a call with `count` inputs; the mask says which of them need gradients. Of
        the tensors of a list it is not said.
        """
        mask, count = self._written(mask, count)
        made = self.recorders.get((mask, count))
        if made is None:
            made = self.recorders[mask, count] = write_recorder(self, count, mask)
        return made

    def step(self, mask: int, count: int, recorded: bool, through: bool) -> Step:
        """The backward step of such a call; see `engine.calls.recording.write_step`."""
        key = (*self._written(mask, count), recorded, through)
        made = self._steps.get(key)
        if made is None:
            made = self._steps[key] = write_step(self, *key[1::-1], recorded, through)
        return made

    def _written(self, mask: int, count: int) -> tuple[int, int]:
        """The same for all lengths of a list: code has loops over lists."""
        at = self.before_list
        return (mask, count) if at is None else (mask & ((1 << at) - 1), at)

    def kernel(self, device_type: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Decorator: a kernel of its own for one device key ("cpu" or "cuda"), with the signature of `forward`."""

        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            self.kernels[device_type] = function
            self.plans.clear()
            return function

        return register

    def plans_for(
        self, device_type: str
    ) -> "Callable[[Callable[[Plan], Callable[..., Any] | None]], Callable[[Plan], Callable[..., Any] | None]]":
        """Decorator: what makes the kernel of one plan for a device key, with everything settled that follows from its
        Specs and attributes. It takes raw arrays alone and lays its results out as the plan says. None: the kernel that
        is there for all layouts runs.
        """

        def register(
            function: Callable[[Plan], Callable[..., Any] | None],
        ) -> Callable[[Plan], Callable[..., Any] | None]:
            self.planned[device_type] = function
            self.plans.clear()
            return function

        return register

    def derivative(self, device_type: str, backward: Any) -> None:
        """Derivative rules of its own for one device key, in the form that `define` takes them, for the same inputs."""
        twin = self.on_devices[device_type] = copy.copy(self)
        twin.recorders, twin._steps, twin._variants, twin.on_devices = {}, {}, {}, {}
        twin.elementwise = False  # its rules take half precision as it is
        twin._bind_rules(backward)
        self.plans.clear()

    def on_device(self, device_type: str) -> "Operator":
        """This operator, with the derivative rules for a device key where it has some."""
        return self.on_devices.get(device_type, self)

    def for_complex(self) -> "Operator":
        """This operator with the derivative rules of complex tensors.

        The gradient of a real loss by z = x + iy is dL/dx + i dL/dy (PyTorch's convention), which makes that of an
        analytic function f the gradient of its result times the conjugate of f'. A rule that is linear in `g` and
        multiplies by f' gives it when `g` and what it returns are conjugated. An operator that is not analytic says so
        by `analytic = False`, and its rules name conjugates themselves.
        """
        return self._variant(conjugated) if self.analytic else self

    def for_half_precision(self) -> "Operator":
        """This elementwise operator with derivative rules that compute in single precision and round once."""
        return self._variant(in_single_precision)

    def with_streams(self) -> "Operator":
        """This operator with recorders that note the stream of a GPU on which the call ran."""
        twin = self._variant(as_it_is)
        if not twin.notes_stream:
            twin.notes_stream, twin.node_type = True, None
        return twin

    def named(self, node_name: str | None) -> "Operator":
        """This operator with nodes of another name; None: with its own."""
        if node_name is None or node_name == self.node_name:
            return self
        twin = self._variants.get(node_name)
        if twin is None:
            twin = self._twin(node_name)
            twin.node_name, twin.node_type = node_name, None
        return twin

    def for_host_scalars(self) -> "Operator":
        """This operator with derivative rules for calls with 0-dim host tensors beside tensors on a GPU."""
        twin = self._variants.get(with_host_scalars)
        if twin is None:
            twin = self._twin(with_host_scalars)
            twin.joint = None if self.joint is None else with_host_scalars(self.joint, None)
            twin.rules = tuple(
                None if rule is None else with_host_scalars(rule, place) for place, rule in enumerate(self.rules)
            )
        return twin

    def _variant(self, change: "Callable[[Bound], Bound]") -> "Operator":
        twin = self._variants.get(change)
        if twin is None:
            twin = self._twin(change)
            twin.joint = None if self.joint is None else change(self.joint)
            twin.rules = tuple(None if rule is None else change(rule) for rule in self.rules)
        return twin

    def _twin(self, change: Any) -> "Operator":
        twin = self._variants[change] = copy.copy(self)
        twin.recorders, twin._steps, twin._variants, twin._kept = {}, {}, {}, {}
        return twin

    def forget_calls(self) -> None:
        """Plans and recorders are made anew at the next call."""
        self.plans.clear()
        self.recorders.clear()
        self._steps.clear()
        self._kept.clear()
        for twin in (*self._variants.values(), *self.on_devices.values()):
            twin.forget_calls()

    def make_node_type(self) -> "type[OperatorNode]":
        """The class of this operator's nodes, so that `type(grad_fn).__name__` says which operator it is."""
        base = DeviceNode if self.notes_stream else OperatorNode
        self.node_type = type(self.node_name, (base,), {"__slots__": ()})
        return self.node_type

    def plan(self, key: tuple[Any, ...]) -> Plan:
        """Makes and remembers the plan of a call; `key` is (attributes, *Specs)."""
        if len(self.plans) >= (_PLANS_AT_MOST if self.before_list is None else _PLANS_OF_LISTS_AT_MOST):
            self.plans.clear()
        made = self.plans[key] = guarded(Plan(self, key[1:], key[0]))
        return made

    def grouped(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """The inputs of a call as rule and kernel take them: those of a list as one tuple."""
        at = self.before_list
        return values if at is None else (*values[:at], values[at:])

    def __repr__(self) -> str:
        return f"<operator {self.name}>"


def define(
    name: str,
    *,
    rule: Callable[..., Any],
    forward: Callable[..., Any],
    backward: Any = None,
    inputs: str = "input",
    attributes: str = "",
    outputs: int = 1,
    residuals: str = "",
    view: bool = False,
    prepare: Callable[[ModuleType, Plan], Callable[..., Any]] | None = None,
) -> Operator:
    """Adds an operator to the table. `inputs`, `attributes` and `residuals` are names separated by blanks; a last input
    with an asterisk is a list of tensors.

    `outputs=0` means as many as the rule returns. Raises ValueError when the name is taken.
    """
    if name in OPERATORS:
        raise ValueError(f"operator {name!r} is already defined")
    operator = Operator(
        name, rule, forward, backward, inputs.split(), attributes.split(), outputs, residuals.split(), view, prepare
    )
    OPERATORS[name] = operator
    return operator
