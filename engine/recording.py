"""How a call of an operator is recorded, and how its backward step runs.

For each operator and each set of its inputs that need a gradient, both are written out as straight lines of code once,
as namedtuple does. Small arrays need it: a training step of 9 linear layers of 16 took 0.32 ms with loops over the
inputs and 0.23 without.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from engine.autograd.accumulate import offered
from engine.autograd.modes import state
from engine.autograd.node import Edge, ForwardCall, Node, NodeExtras, next_sequence
from engine.autograd.places import current_place
from engine.autograd.saved import FREED, SavedInput, SavedOutput, refuse_detached, saved_attribute
from engine.autograd.versions import VersionCounter
from engine.callers import GENERATED
from engine.namespaces import tensor_namespace

if TYPE_CHECKING:
    from engine.dispatch import Operator
    from engine.plan import Plan

Array = Any
Record = Callable[["Plan", tuple[Any, ...], tuple[Any, ...], Sequence[Array]], None]


class OperatorNode(Node):
    """The backward step of one operator call."""

    __slots__ = ("plan", "residuals", "saved", "saved_outputs", "step")

    def __init__(self, edges: list[Edge | None], plan: "Plan", residuals: Sequence[Array]) -> None:
        super().__init__(edges, plan.input_specs, plan.outs)
        self.plan = plan
        self.residuals = residuals
        self.saved: Sequence[Any] | None = None
        self.saved_outputs: tuple[Any, ...] | None = None
        self.step: Callable[[OperatorNode, list[Any]], Sequence[Any]] | None = None

    def name(self) -> str:
        return self.plan.operator.node_name

    def release(self) -> None:
        if self.saved or self.saved_outputs or self.residuals:  # a node that saved nothing can run again
            self.saved, self.saved_outputs, self.residuals = None, None, ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("_saved_", "_raw_saved_")):
            operator = self.plan.operator
            return saved_attribute(self, operator.inputs, operator.before_list, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def apply(self, gradients: list[Any], recorded: bool, edges: Sequence[Edge | None] | None = None) -> Sequence[Any]:
        if edges is None:
            if not recorded and self.step is not None:
                return self.step(self, gradients)
            edges = self.next_edges
        plan = self.plan
        operator = plan.operator
        saved = self.saved
        if saved is None:
            raise RuntimeError(FREED)
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
            values: Any = [None if entry is None else entry.tensor(self) for entry in saved]
            refuse_detached(self, values)
            if self.saved_outputs is not None:
                outs = tuple(None if entry is None else entry.tensor(self) for entry in self.saved_outputs)
            nd: Any = tensor_namespace
            residuals: Any = (None,) * operator.residuals
        else:
            values = [None if entry is None else entry.array(self) for entry in saved]
            if self.saved_outputs is not None:
                outs = tuple(None if entry is None else entry.array(self) for entry in self.saved_outputs)
            nd = plan.nd
            residuals = self.residuals
        if outs is not None and operator.outputs == 1:
            outs = outs[0]
        specs: Any = plan.input_specs
        count = len(operator.inputs)
        if len(values) < count:  # trailing optional inputs that were left out, or nothing was saved
            values += (None,) * (count - len(values))
        if len(specs) < count:
            specs += (None,) * (count - len(specs))
        if operator.before_list is not None:
            values = tuple(values)
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


class DeviceNode(OperatorNode):
    """The backward step of a call on a GPU, which runs on the device and stream of that call."""

    __slots__ = ("place",)


# --- the code ---------------------------------------------------------------------------------------------------------

_EDGE = """
    if t{i}._base is not None:
        e{i} = t{i}.gradient_edge()
    else:
        fn = t{i}._grad_fn
        if fn is not None:
            e{i} = (fn, t{i}._output_nr)
        else:
            meta = t{i}._meta
            e{i} = None if meta is None else meta.accumulator
            if e{i} is None:
                e{i} = t{i}.gradient_edge()"""

_RAISE = """
    if e{i}[0].topological >= height:
        node.topological = height = e{i}[0].topological + 1"""

_SAVE_INPUT = """
    if plainly and (t{i}._meta is None or not t{i}._meta.inference):
        s{i} = new(SavedInput)
        s{i}._tensor = t{i}
        counter = t{i}._counter
        s{i}._version = 0 if counter is None else counter.value
    else:
        s{i} = t{i}._save()"""

_SAVE_OUTPUT = """
    if plainly:
        so = new(SavedOutput)
        so._array = out._array
        so._spec = out._spec
        so._output_nr = 0
        counter = out._counter
        if counter is None:
            counter = out._counter = VersionCounter()
        so._counter = counter
        so._version = counter.value
        node.saved_outputs = (so,)
    else:
        node.saved_outputs = (out._save(0),)"""

_LOAD_INPUT = """
    entry = saved[{i}]
    if entry.__class__ is SavedInput:
        tensor = entry._tensor
        counter = tensor._counter
        v{i} = tensor._array if counter is None or counter.value == entry._version else entry.array(node)
    else:
        v{i} = entry.array(node)"""


def write_recorder(operator: "Operator", count: int, mask: int) -> Record:
    """The function that records a call with `count` inputs, of which those in the bit mask need gradients."""
    keep_inputs, outputs_kept = _kept(operator, count, mask)
    needed = [i for i in range(count) if mask >> i & 1]
    kept = [i for i in range(count) if keep_inputs[i]]
    names = ", ".join(f"t{i}" for i in range(count))
    lines = [
        "def record(plan, inputs, outputs, residuals):",
        f"    {names}, = inputs",
        *(_EDGE.format(i=i) for i in needed),
        "    node = new(node_type)",
        "    node.plan = plan",
        "    node.residuals = residuals",
        "    node.step = step",
        "    node.input_specs = plan.input_specs",
        "    node.output_specs = plan.outs",
        "    node.sequence = next_sequence()",
        f"    node.next_edges = ({', '.join(f'e{i}' if i in needed else 'None' for i in range(count))},)",
        f"    node.topological = height = e{needed[0]}[0].topological + 1",
    ]
    if operator.notes_stream:
        lines.append("    node.place = current_place(plan.out.device.index)")
    for i in needed[1:]:
        lines.append(_RAISE.format(i=i))
    lines += [
        "    node.extras = NodeExtras(ForwardCall()) if state.anomaly else None",
        "    node.saved_outputs = None",
    ]
    if kept or outputs_kept != ():
        lines.append("    plainly = not state.saved_tensor_hooks")
    lines += [_SAVE_INPUT.format(i=i) if i in needed else f"    s{i} = t{i}._save()" for i in kept]
    entries = "".join(f"s{i}, " if i in kept else "None, " for i in range(count))
    lines.append(f"    node.saved = ({entries if kept else ''})")
    if operator.outputs == 1:
        lines += [
            "    out, = outputs",
            "    if out._spec.dtype.category >= 2:",  # indices and masks carry no gradient
            "        out._requires_grad = True",
            "        out._grad_fn = node",
            "        out._output_nr = 0",
            "" if outputs_kept == () else _SAVE_OUTPUT,
        ]
    else:
        lines += [
            "    for number, out in enumerate(outputs):",
            "        if out._spec.dtype.category >= 2:",
            "            out._requires_grad = True",
            "            out._grad_fn = node",
            "            out._output_nr = number",
        ]
        if outputs_kept is None:
            lines.append("    node.saved_outputs = tuple([out._save(number) for number, out in enumerate(outputs)])")
        elif outputs_kept:
            saved = [f"outputs[{i}]._save({i})" if i in outputs_kept else "None" for i in range(operator.outputs)]
            lines.append(f"    node.saved_outputs = ({', '.join(saved)})")
    namespace = {
        "new": object.__new__,
        "node_type": operator.node_type or operator.make_node_type(),
        "step": write_step(operator, count, mask),
        "next_sequence": next_sequence,
        "current_place": current_place,
        "NodeExtras": NodeExtras,
        "ForwardCall": ForwardCall,
        "SavedInput": SavedInput,
        "SavedOutput": SavedOutput,
        "VersionCounter": VersionCounter,
        "state": state,
    }
    return _compiled("record", lines, namespace, operator.name)


def write_step(operator: "Operator", count: int, mask: int) -> Callable[[OperatorNode, list[Any]], Sequence[Any]]:
    """The function that runs the backward step of such a call on raw arrays; see `OperatorNode.apply`."""
    keep_inputs, outputs_kept = _kept(operator, count, mask)
    lines = ["def step(node, gradients):"]
    if operator.outputs == 1:
        lines += ["    g = gradients[0]", "    if g is None:"]
    else:
        lines += ["    g = tuple(gradients)", "    if all([each is None for each in g]):"]
    lines += [
        f"        return (None,) * {count}",
        "    saved = node.saved",
        "    if saved is None:",
        "        raise RuntimeError(FREED)",
        "    plan = node.plan",
        "    specs = plan.input_specs",
        *(_LOAD_INPUT.format(i=i) for i in range(count) if keep_inputs[i]),
    ]
    if outputs_kept is None and operator.outputs == 1:
        lines.append("    o = node.saved_outputs[0].array(node)")
    elif outputs_kept is None:
        lines.append("    o = tuple([entry.array(node) for entry in node.saved_outputs])")
    else:
        lines += [f"    o{i} = node.saved_outputs[{i}].array(node)" for i in outputs_kept]
    places = {
        "g": "g",
        "nd": "plan.nd",
        "needs": repr(tuple(bool(mask >> i & 1) for i in range(count))),
        "out": "o",
        **{f"out[{i}]": f"o[{i}]" if outputs_kept is None else f"o{i}" for i in range(operator.outputs)},
        **{f"values[{i}]": f"v{i}" if i < count else "None" for i in range(len(operator.inputs))},
        **{f"specs[{i}]": f"specs[{i}]" if i < count else "None" for i in range(len(operator.inputs))},
        **{f"attributes[{i}]": f"plan.attributes[{i}]" for i in range(len(operator.attributes))},
        **{f"residuals[{i}]": f"node.residuals[{i}]" for i in range(operator.residuals)},
        "attributes": "plan.attributes",
        "specs": "specs",
    }
    at = operator.before_list
    if at is not None:
        places[f"values[{at}:]"] = f"({''.join(f'v{i}, ' for i in range(at, count) if keep_inputs[i])})"
        places[f"specs[{at}:]"] = f"specs[{at}:]"
    namespace: dict[str, Any] = {"FREED": FREED, "SavedInput": SavedInput, "offered": offered}

    def call(name: str, bound: Any, into: str) -> str:
        namespace[name] = bound.rule
        return f"{name}({', '.join((places | {'into': into})[place] for place in bound.places)})"

    if operator.joint is not None:
        lines.append(f"    return {call('rule', operator.joint, 'None')}")
    else:
        results = [
            call(f"rule{i}", operator.rules[i], f"offered(node.next_edges[{i}][0])") if mask >> i & 1 else "None"
            for i in range(count)
        ]
        lines.append(f"    return ({', '.join(results)},)")
    return _compiled("step", lines, namespace, operator.name)


def _kept(operator: "Operator", count: int, mask: int) -> tuple[tuple[bool, ...], tuple[int, ...] | None]:
    """`Operator.keeps` for each of `count` inputs: all tensors of a list are as the list is."""
    inputs, outputs = operator.keeps(mask)
    return inputs + inputs[-1:] * (count - len(inputs)), outputs


WRITTEN_OUT_AT_MOST = 8  # inputs of an operator on a list: code for each number of them would have no end


def list_recorder(operator: "Operator") -> Record:
    """What records calls with many inputs, with loops where `write_recorder` has lines."""
    keep_inputs, outputs_kept = operator.keeps(operator.grad_mask)
    differentiable = [operator.grad_mask >> i & 1 for i in range(len(operator.inputs))]
    node_type = operator.node_type or operator.make_node_type()

    def record(plan: "Plan", inputs: tuple[Any, ...], outputs: tuple[Any, ...], residuals: Sequence[Array]) -> None:
        more = len(inputs) - len(keep_inputs)
        edges = [
            tensor.gradient_edge() if wanted and tensor.requires_grad else None
            for tensor, wanted in zip(inputs, differentiable + differentiable[-1:] * more, strict=True)
        ]
        node = node_type(edges, plan, residuals)
        if isinstance(node, DeviceNode):
            node.place = current_place(plan.out.device.index)
        kept = keep_inputs + keep_inputs[-1:] * more
        node.saved = [tensor._save() if keep else None for tensor, keep in zip(inputs, kept, strict=True)]
        for number, out in enumerate(outputs):
            if out._spec.dtype.category >= 2:
                out._requires_grad, out._grad_fn, out._output_nr = True, node, number
        if outputs_kept != ():
            node.saved_outputs = tuple(
                out._save(number) if outputs_kept is None or number in outputs_kept else None
                for number, out in enumerate(outputs)
            )

    return record


def _compiled(name: str, lines: list[str], namespace: dict[str, Any], operator: str) -> Any:
    exec(compile("\n".join(lines), f"{GENERATED}{name} of {operator}>", "exec"), namespace)
    return namespace[name]
