"""The operator table and the path every call takes through it.

An `Operator` is defined in one place (`engine/ops/<family>.py`) and consists of

* `rule`: a pure function of the inputs' Specs and the attributes that returns the Spec of each output and raises every
shape and dtype error;
* `forward`: the kernel, on raw arrays: `forward(xp, *arrays, *attributes)`, with xp numpy or cupy;
* `backward`: derivative rules (below), or None where the output carries no gradient.

`apply` looks up a `Plan` by (attributes, Specs of the inputs). Making a plan runs the rule, so checking a call that
was seen before costs one dictionary look-up and nothing else. The kernel's first result is compared with the rule's
strides: where they differ (axes of size > 1), the plan from then on copies into memory laid out by the rule. On the
"meta" device only the rule runs.

Below autograd the call is redispatched by device key (`KEYS`): the same kernel with another array module, or a kernel
of its own (`Operator.kernel("cuda")`). `engine.trace` (engine/trace.py) swaps plans for timed ones, so that tracing
costs nothing when it is off.

Derivative rules name what they need by parameter name: `g` (the gradient of the output; a tuple for operators with
several outputs), any input, any attribute, `out` (the output, or a tuple), `<input>_spec`, a residual (an extra array
that forward returned for backward), `needs` (which inputs need a gradient), and `nd` (the functions of engine.ops, on
raw arrays or on Tensors, as the occasion demands). `backward` is a tuple with one rule an input (None: not
differentiable) or one function that returns all of them. Only what the needed rules name is saved. With create_graph
the rule runs on Tensors and is itself recorded; residuals are then None and the rule computes them again from its
inputs.
"""

import inspect
import re
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from types import ModuleType
from typing import Any

from engine import backend
from engine.autograd.modes import inference_blocks, state
from engine.autograd.node import Edge, Node
from engine.autograd.saved import FREED, refuse_detached, saved_attribute
from engine.autograd.versions import version_of_view
from engine.device import device
from engine.spec import Spec
from engine.tensor import Tensor

Array = Any
Inputs = tuple[Any, ...]  # Tensors, Scalars and UNDEFINED

OPERATORS: dict[str, "Operator"] = {}
_PLANS_AT_MOST = 16_384

_spec_of_operand = attrgetter("_spec")
_array_of_operand = attrgetter("_array")
_new = object.__new__


class Plan:
    """Everything about a call that depends only on the Specs of its inputs and its attributes."""

    __slots__ = ("attributes", "input_specs", "nd", "operator", "out", "outs", "run")

    def __init__(self, operator: "Operator", input_specs: tuple[Spec, ...], attributes: tuple[Any, ...]) -> None:
        self.operator = operator
        self.input_specs = input_specs
        self.attributes = attributes
        try:
            outs = operator.rule(*input_specs, *attributes)
        except RuntimeError as error:
            # "The size of tensor a ..." does not say of which operation; "add: The size ..." does.
            if type(error) is not RuntimeError or re.match(rf"{operator.name}|\w+(\(\))?:", str(error)):
                raise
            raise RuntimeError(f"{operator.name}: {error}") from None
        self.outs: tuple[Spec, ...] = (outs,) if isinstance(outs, Spec) else tuple(outs)
        self.out: Any = self.outs[0] if self.outs else None
        where = self._device()
        if where.type == "meta":
            self.run: Callable[..., Any] = self._run_meta
            return
        xp = backend.array_module(where)
        self.nd = raw_namespace(xp)
        kernel = operator.kernels.get(where.type, operator.forward)
        if operator.prepare is not None:
            self.run = operator.prepare(xp, self)
        else:
            self.run = partial(
                self._first_run, partial(_call, kernel, xp, attributes) if attributes else partial(kernel, xp)
            )

    def _device(self) -> device:
        """The device of the call; a 0-dim CPU tensor may stand beside tensors elsewhere."""
        found = {spec.device for spec in self.input_specs if spec is not None and spec.number is None and spec.ndim}
        if not found:
            found = {spec.device for spec in self.input_specs if spec is not None and spec.number is None} or {
                self.outs[0].device
            }
        if len(found) > 1:
            listed = ", ".join(sorted(map(str, found)))
            raise RuntimeError(
                f"{self.operator.name}: expected all tensors to be on the same device, but found {listed}; move them "
                f"with .to(device)"
            )
        return found.pop()

    def _run_meta(self, *arrays: Array) -> Any:
        return None if self.operator.single else (None,) * (len(self.outs) + self.operator.residuals)

    def _first_run(self, kernel: Callable[..., Any], *arrays: Array) -> Any:
        """Runs the kernel and settles whether its results need to be laid out anew from now on."""
        result = kernel(*arrays)
        fits = _fits(result, self.outs[0]) if self.operator.single else all(map(_fits, result, self.outs))
        if self.operator.view:
            assert fits, f"{self.operator.name}: the kernel must return a view laid out by the rule"
            self.run = kernel
            return result
        self.run = kernel if fits else partial(self._run_and_lay_out, kernel)
        return result if fits else self._lay_out(result)

    def _run_and_lay_out(self, kernel: Callable[..., Any], *arrays: Array) -> Any:
        return self._lay_out(kernel(*arrays))

    def _lay_out(self, result: Any) -> Any:
        if self.operator.single:
            return _laid_out(result, self.outs[0])
        settled = [_laid_out(array, spec) for array, spec in zip(result, self.outs, strict=False)]
        return (*settled, *result[len(settled) :])


def _call(kernel: Callable[..., Any], xp: ModuleType, attributes: tuple[Any, ...], *arrays: Array) -> Any:
    return kernel(xp, *arrays, *attributes)


def _fits(array: Array, spec: Spec) -> bool:
    """Whether a kernel's result is laid out as the rule says, up to axes that address nothing."""
    if array is None:
        return True
    if getattr(array, "shape", None) != spec.shape or not hasattr(array, "flags"):
        if hasattr(array, "shape") and array.shape != spec.shape:
            raise AssertionError(f"kernel returned shape {array.shape}, the rule said {spec}")
        return False
    if isinstance(array, backend.SCALAR) or array.dtype != spec.dtype.numpy:
        return False
    if spec.numel < 2:
        return True
    return all(
        size == 1 or mine == rule for size, mine, rule in zip(spec.shape, array.strides, spec.byte_strides, strict=True)
    )


def _laid_out(array: Array, spec: Spec) -> Array:
    """`array` itself or a copy of it, in the rule's strides and dtype."""
    if array is not None and not _fits(array, spec):
        copy = backend.empty(spec)
        copy[...] = array
        return copy
    return array


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
        self.inputs = tuple(inputs)
        self.attributes = tuple(attributes)
        self.outputs = outputs
        self.residuals = len(residuals)
        self.single = outputs == 1 and not residuals
        self.view = view
        self.prepare = prepare
        self.kernels: dict[str, Callable[..., Any]] = {}
        self.plans: dict[tuple[Any, ...], Plan] = {}
        # The bare kernel for equal, contiguous floating point operands on the CPU, whose result has their Spec (set by
        # engine.ops.pointwise).
        self.direct: Callable[..., Any] | None = None
        self.differentiable = backward is not None
        self.node_name = "".join(part.capitalize() for part in name.split("_")) + "Backward0"
        self.node_type: type[OperatorNode] | None = None  # made at the first recorded call
        # What a derivative rule may ask for by name, and where `OperatorNode.apply` has it.
        names = ["g", "nd", "needs", "out", *inputs, *attributes, *(f"{name}_spec" for name in inputs), *residuals]
        places = ["g", "nd", "needs", "out"]
        for group, count in (
            ("values", len(inputs)),
            ("attributes", len(attributes)),
            ("specs", len(inputs)),
            ("residuals", len(residuals)),
        ):
            places += [f"{group}[{i}]" for i in range(count)]
        self.joint = None if isinstance(backward, tuple) or backward is None else _bind(name, backward, names, places)
        self.rules = (
            tuple(None if rule is None else _bind(name, rule, names, places) for rule in backward)
            if isinstance(backward, tuple)
            else ()
        )
        self.grad_inputs = tuple(
            self.joint is not None or (i < len(self.rules) and self.rules[i] is not None) for i in range(len(inputs))
        )
        self._keeps: dict[int, tuple[tuple[bool, ...], bool]] = {}

    def keeps(self, mask: int) -> tuple[tuple[bool, ...], bool]:
        """Which inputs, and whether the outputs, must be saved when the inputs in the bit mask need gradients."""
        kept = self._keeps.get(mask)
        if kept is None:
            if self.joint is not None:
                positions = set(self.joint.positions)
            else:
                positions = {
                    p for i, rule in enumerate(self.rules) if rule is not None and mask >> i & 1 for p in rule.positions
                }
            kept = self._keeps[mask] = (tuple(4 + i in positions for i in range(len(self.inputs))), 3 in positions)
        return kept

    def kernel(self, device_type: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Decorator: a kernel of its own for one device key ("cpu" or "cuda"), with the signature of `forward`."""

        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            self.kernels[device_type] = function
            self.plans.clear()
            return function

        return register

    def make_node_type(self) -> "type[OperatorNode]":
        """The class of this operator's nodes, so that `type(grad_fn).__name__` says which operator it is."""
        self.node_type = type(self.node_name, (OperatorNode,), {"__slots__": ()})
        return self.node_type

    def plan(self, key: tuple[Any, ...]) -> Plan:
        """Makes and remembers the plan of a call; `key` is (attributes, *Specs)."""
        if len(self.plans) >= _PLANS_AT_MOST:
            self.plans.clear()
        made = self.plans[key] = plan_wrapper(Plan(self, key[1:], key[0]))
        return made

    def __repr__(self) -> str:
        return f"<operator {self.name}>"


def plan_wrapper(plan: Plan) -> Plan:
    """What happens to each new plan; replaced while `engine.trace` is active."""
    return plan


class _Bound:
    """A derivative rule, the positions of its parameters in the environment, and a call that passes them."""

    __slots__ = ("call", "positions", "rule")

    def __init__(self, rule: Callable[..., Any], positions: tuple[int, ...], places: list[str]) -> None:
        self.rule = rule
        self.positions = positions
        # As namedtuple does, one line of code is made to fit: collecting an environment and picking from it took 0.4 µs
        # more a rule.
        arguments = ", ".join(places[position] for position in positions)
        self.call: Callable[..., Any] = eval(
            f"lambda rule: lambda g, nd, needs, out, values, attributes, specs, residuals: rule({arguments})"
        )(rule)


def _bind(operator: str, rule: Callable[..., Any], names: list[str], places: list[str]) -> _Bound:
    asked = list(inspect.signature(rule).parameters)
    unknown = [name for name in asked if name not in names]
    assert asked, f"{operator}: a derivative rule without parameters"
    assert not unknown, f"{operator}: the derivative rule asks for {unknown}, known are {names}"
    return _Bound(rule, tuple(names.index(name) for name in asked), places)


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
    """Adds an operator to the table. `inputs`, `attributes` and `residuals` are names separated by blanks.

    `outputs=0` means as many as the rule returns. Raises ValueError when the name is taken.
    """
    if name in OPERATORS:
        raise ValueError(f"operator {name!r} is already defined")
    operator = Operator(
        name, rule, forward, backward, inputs.split(), attributes.split(), outputs, residuals.split(), view, prepare
    )
    OPERATORS[name] = operator
    return operator


def apply(operator: Operator, inputs: Inputs, attributes: tuple[Any, ...] = ()) -> Any:
    """Runs an operator: plan, kernel, record. Returns a Tensor, or a tuple of them for an operator with several
    outputs.
    """
    key = (attributes, *map(_spec_of_operand, inputs))
    plan = operator.plans.get(key)
    if plan is None:
        plan = operator.plan(key)
    result = plan.run(*map(_array_of_operand, inputs))
    if operator.single:
        out = Tensor(result, plan.out)
        if operator.view:
            share_memory(out, inputs[0])
        if state.grad_enabled:
            for tensor in inputs:
                if tensor._requires_grad or (tensor._base is not None and tensor.requires_grad):
                    _record(operator, plan, inputs, (out,), ())
                    break
        elif state.inference and not operator.view:
            out._mark_inference()
        return out
    count = len(plan.outs)
    outs = tuple(map(Tensor, result, plan.outs))
    if operator.view:
        for out in outs:
            share_memory(out, inputs[0])
    if state.grad_enabled:
        for tensor in inputs:
            if tensor._requires_grad or (tensor._base is not None and tensor.requires_grad):
                _record(operator, plan, inputs, outs, result[count:])
                break
    elif state.inference and not operator.view:
        for out in outs:
            out._mark_inference()
    return outs if operator.outputs != 1 else outs[0]


def apply_unary(operator: Operator, input: Tensor) -> Tensor:
    """`apply` for one tensor, one output and no attributes."""
    spec = input._spec
    if spec.plain and operator.direct is not None:
        out = Tensor(operator.direct(input._array), spec)
    else:
        plan = operator.plans.get(((), spec)) or operator.plan(((), spec))
        out = Tensor(plan.run(input._array), plan.out)
    if (input._requires_grad or (input._base is not None and input.requires_grad)) and state.grad_enabled:
        plan = operator.plans.get(((), spec)) or operator.plan(((), spec))
        _record(operator, plan, (input,), (out,), ())
    if inference_blocks.open and state.inference:
        out._mark_inference()
    return out


def apply_binary(operator: Operator, input: Any, other: Any) -> Tensor:
    """`apply` for two operands, one output and no attributes.

    With equal, dense operands nothing is planned or looked up.
    """
    spec = input._spec
    if spec is other._spec and spec.plain and operator.direct is not None:
        out = Tensor(operator.direct(input._array, other._array), spec)
    else:
        key = ((), spec, other._spec)
        plan = operator.plans.get(key) or operator.plan(key)
        out = Tensor(plan.run(input._array, other._array), plan.out)
    if (
        input._requires_grad
        or other._requires_grad
        or (input._base is not None and input.requires_grad)
        or (other._base is not None and other.requires_grad)
    ) and state.grad_enabled:
        key = ((), spec, other._spec)
        plan = operator.plans.get(key) or operator.plan(key)
        _record(operator, plan, (input, other), (out,), ())
    if inference_blocks.open and state.inference:
        out._mark_inference()
    return out


def binary_method(operator: Operator, read_operand: Callable[[Any], Any]) -> Callable[[Tensor, Any], Any]:
    """The method of a Python operator: `a + b`. `read_operand` makes an operand of what is no Tensor, or returns
    NotImplemented.

    8x16 float32: 0.64 µs, where numpy.add takes 0.32 (0.25 with out=). Without the first branch it is 0.84; with a call
    of Tensor(...) in it 0.71.
    """

    def method(self: Tensor, other: Any) -> Any:
        if type(other) is Tensor:
            spec = self._spec
            direct = operator.direct
            if (
                spec is other._spec
                and spec.plain
                and not self._requires_grad
                and not other._requires_grad
                and self._base is None
                and other._base is None
                and not inference_blocks.open
                and direct is not None
            ):
                out = _new(Tensor)
                out._array = direct(self._array, other._array)
                out._spec = spec
                out._requires_grad = False
                out._grad_fn = out._meta = out._counter = out._base = None
                return out
        elif not isinstance(other, Tensor):
            other = read_operand(other)
            if other is NotImplemented:
                return NotImplemented
        return apply_binary(operator, self, other)

    return method


def share_memory(view: Tensor, source: Tensor) -> None:
    """Makes `view` a view of what `source` is a view of, with one version counter for all of them."""
    view._base = source if source._base is None else source._base
    view._counter = counter = source._version_counter()
    if state.grad_enabled and (source._base is None or source._view_version >= 0):
        view._view_version = counter.value
    else:
        view._view_version = version_of_view(counter.value, 0 if source._base is None else source._view_version)
    if source._meta is not None and source._meta.inference:
        view._mark_inference()


def _record(
    operator: Operator, plan: Plan, inputs: Inputs, outputs: tuple[Tensor, ...], residuals: Sequence[Array]
) -> None:
    """Gives the outputs a node, unless nothing about this call is differentiable."""
    if not operator.differentiable:
        return
    edges: list[Edge | None] = []
    mask = 0
    wanted = operator.grad_inputs
    bit = 1
    for tensor, differentiable in zip(inputs, wanted, strict=False):
        if differentiable and (tensor._requires_grad or (tensor._base is not None and tensor.requires_grad)):
            mask |= bit
            fn = tensor._grad_fn
            edges.append(tensor.gradient_edge() if fn is None or tensor._base is not None else (fn, tensor._output_nr))
        else:
            edges.append(None)
        bit += bit
    if not mask:
        return
    node = (operator.node_type or operator.make_node_type())(edges, plan, residuals)
    for number, out in enumerate(outputs):
        if out._spec.dtype.category >= 2:  # indices and masks carry no gradient
            out._requires_grad = True
            out._grad_fn = node
            out._output_nr = number
    keep_inputs, keep_outputs = operator._keeps.get(mask) or operator.keeps(mask)
    node.saved = [tensor._save() if keep else None for tensor, keep in zip(inputs, keep_inputs, strict=False)]
    if keep_outputs:
        node.saved_outputs = tuple(out._save(number) for number, out in enumerate(outputs))


class OperatorNode(Node):
    """The backward step of one operator call."""

    __slots__ = ("plan", "residuals", "saved", "saved_outputs")

    def __init__(self, edges: list[Edge | None], plan: Plan, residuals: Sequence[Array]) -> None:
        super().__init__(edges, plan.input_specs, plan.outs)
        self.plan = plan
        self.residuals = residuals
        self.saved: list[Any] | None = None
        self.saved_outputs: tuple[Any, ...] | None = None

    def name(self) -> str:
        return self.plan.operator.node_name

    def release(self) -> None:
        if self.saved_outputs or self.residuals or (self.saved is not None and any(self.saved)):
            self.saved, self.saved_outputs, self.residuals = None, None, ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("_saved_", "_raw_saved_")):
            return saved_attribute(self, self.plan.operator.inputs, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def apply(self, gradients: list[Any], recorded: bool, edges: Sequence[Edge | None] | None = None) -> Sequence[Any]:
        plan = self.plan
        operator = plan.operator
        saved = self.saved
        if saved is None:
            raise RuntimeError(FREED)
        if edges is None:
            edges = self.next_edges
        if operator.outputs == 1:
            gradient = gradients[0]
            if gradient is None:
                return [None] * len(edges)
        else:
            gradient = tuple(gradients)
            if all(each is None for each in gradient):
                return [None] * len(edges)
        outs: Any = None
        if recorded:
            values = [None if entry is None else entry.tensor(self) for entry in saved]
            refuse_detached(self, values)
            if self.saved_outputs is not None:
                outs = tuple(entry.tensor(self) for entry in self.saved_outputs)
            nd: Any = tensor_namespace
            residuals: Any = (None,) * operator.residuals
        else:
            values = [None if entry is None else entry.array(self) for entry in saved]
            if self.saved_outputs is not None:
                outs = tuple(entry.array(self) for entry in self.saved_outputs)
            nd = plan.nd
            residuals = self.residuals
        if outs is not None and operator.outputs == 1:
            outs = outs[0]
        specs: Any = plan.input_specs
        if len(values) < len(operator.inputs):  # trailing optional inputs that were left out
            missing = (None,) * (len(operator.inputs) - len(values))
            values += missing
            specs += missing
        attributes = plan.attributes
        joint = operator.joint
        if joint is not None:
            needs = tuple(edge is not None for edge in edges)
            return joint.call(gradient, nd, needs, outs, values, attributes, specs, residuals)
        rules: Any = operator.rules  # no rule is asked for that is not there: such an input has no edge
        return [
            None if edge is None else bound.call(gradient, nd, None, outs, values, attributes, specs, residuals)
            for edge, bound in zip(edges, rules, strict=False)
        ]


class RawNamespace:
    """The functions of engine.ops on raw arrays: `nd.exp(x)`, `nd.sum(x, dim, keepdim)` with attributes in canonical
    form.
    """

    records = False

    def __init__(self, xp: ModuleType) -> None:
        self.xp = xp

    def __getattr__(self, name: str) -> Callable[..., Any]:
        operator = OPERATORS.get(name)
        if operator is None:
            raise AttributeError(
                f"derivative rules may use operators only, and {name!r} is none; known are "
                f"{', '.join(sorted(OPERATORS))}"
            )
        kernel = operator.kernels.get("cpu" if self.xp is backend.np else "cuda", operator.forward)
        function: Callable[..., Any] = partial(kernel, self.xp)
        if not operator.single and operator.outputs == 1:
            function = partial(_first_of, function)
        setattr(self, name, function)  # found directly from now on
        return function


def _first_of(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)[0]


class TensorNamespace:
    """The same functions on Tensors, for create_graph: the public functions of engine.ops."""

    records = True

    def __getattr__(self, name: str) -> Callable[..., Any]:
        from engine import ops

        function: Callable[..., Any] = getattr(ops, name)
        setattr(self, name, function)
        return function


tensor_namespace = TensorNamespace()
_raw_namespaces: dict[ModuleType, RawNamespace] = {}


def raw_namespace(xp: ModuleType) -> RawNamespace:
    """The one RawNamespace of an array module."""
    return _raw_namespaces.setdefault(xp, RawNamespace(xp)) if xp not in _raw_namespaces else _raw_namespaces[xp]
