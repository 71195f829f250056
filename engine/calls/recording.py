"""How a call of an operator is recorded, and how its backward step runs.

For each operator and each set of its inputs that need a gradient, both are written out as straight lines of code once,
as namedtuple does. Small arrays need it: a training step of 9 linear layers of 16 took 0.32 ms with loops over the
inputs and 0.23 without. What constructors do is taken from them (`engine.calls.written`). Only the tensors of a list
(cat, stack, index) are gone over in loops.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from engine.autograd.accumulate import offered
from engine.autograd.modes import state
from engine.autograd.node import Edge, Node
from engine.autograd.places import current_place
from engine.autograd.saved import FREED, SavedInput, SavedOutput, refuse_detached, saved_attribute
from engine.calls.namespaces import tensor_namespace
from engine.calls.written import Code
from engine.tensor import Tensor

if TYPE_CHECKING:
    from engine.calls.operator import Operator
    from engine.calls.plan import Plan

Array = Any
Record = Callable[["Plan", tuple[Any, ...], tuple[Any, ...], Sequence[Array]], None]
Step = Callable[..., Sequence[Any]]  # (node, gradients, edges), and where rules are called through a function: call


class OperatorNode(Node):
    """The backward step of one operator call."""

    __slots__ = ("plan", "residuals", "saved", "saved_outputs", "step")

    def __init__(
        self,
        edges: Sequence[Edge | None],
        plan: "Plan",
        residuals: Sequence[Array],
        saved: Sequence[Any],
        saved_outputs: Sequence[Any],
        step: Step,
    ) -> None:
        super().__init__(edges, plan.input_specs, plan.outs)
        self.plan = plan
        self.residuals = residuals
        self.saved: Sequence[Any] | None = saved
        self.saved_outputs: Sequence[Any] | None = saved_outputs
        self.step = step  # for all edges, on raw arrays

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
            edges = self.next_edges
            if not recorded:
                return self.step(self, gradients, edges)
        return self._step(edges, recorded, False)(self, gradients, edges)

    def apply_through(
        self, gradients: list[Any], edges: Sequence[Edge | None], call: Callable[..., Any]
    ) -> Sequence[Any]:
        """The same on raw arrays; rules are called by `call(number, rule, arguments)`, without memory to write to. The
        number is that of the input whose gradient the rule gives, -1 for all of them.
        """
        return self._step(edges, False, True)(self, gradients, edges, call)

    def _step(self, edges: Sequence[Edge | None], recorded: bool, through: bool) -> Step:
        mask = sum(1 << i for i, edge in enumerate(edges) if edge is not None)
        return self.plan.operator.step(mask, len(edges), recorded, through)


class DeviceNode(OperatorNode):
    """The backward step of a call on a GPU, which runs on the device and stream of that call."""

    __slots__ = ("place",)

    def __init__(
        self,
        edges: Sequence[Edge | None],
        plan: "Plan",
        residuals: Sequence[Array],
        saved: Sequence[Any],
        saved_outputs: Sequence[Any],
        step: Step,
    ) -> None:
        super().__init__(edges, plan, residuals, saved, saved_outputs, step)
        self.place = current_place(plan.out.device.index)


# --- the code ---------------------------------------------------------------------------------------------------------


def write_recorder(operator: "Operator", count: int, mask: int) -> Record:
    """The function that records a call with `count` inputs, of which those in the bit mask need gradients; of an
    operator on a list, with so many inputs before the list.
    """
    kept, outputs_kept = operator.keeps(mask)
    is_list = operator.before_list is not None
    needed = [i for i in range(count) if mask >> i & 1]
    code = Code(f"record of {_title(operator, count, mask)}", "record(plan, inputs, outputs, residuals)")
    code.add(f"{''.join(f't{i}, ' for i in range(count))}{'*tensors, ' if is_list else ''}= inputs")
    for i in needed:
        code.call(f"e{i}", Tensor.gradient_edge, f"t{i}")
    edges = "".join(f"e{i}, " if i in needed else "None, " for i in range(count))
    if is_list and operator.joint is not None:
        edges += "*[each.gradient_edge() if each.requires_grad else None for each in tensors], "
    elif is_list:
        edges += "*[None] * len(tensors), "
    code.add(f"edges = ({edges})")
    if any(kept) or outputs_kept != ():
        code.add("plainly = not state.saved_tensor_hooks", state=state)
    saved = [i for i in range(count) if kept[i]]
    for i in saved:
        if i in needed:
            code.add(f"if plainly and (t{i}._meta is None or not t{i}._meta.inference):")
            code.construct(f"s{i}", SavedInput, f"t{i}", indent=1)
            code.add("else:", f"    s{i} = t{i}._save()")
        else:  # it may be no tensor
            code.add(f"s{i} = t{i}._save()")
    entries = "".join(f"s{i}, " if i in saved else "None, " for i in range(count)) if any(kept) else ""
    entries += "*[each._save() for each in tensors], " if is_list and kept[count] else ""
    code.add(f"saved = ({entries})")
    single = operator.outputs == 1
    if single:
        code.add("out, = outputs")
    if outputs_kept == ():
        code.add("saved_outputs = ()")
    elif single:
        code.add("if plainly:")
        code.construct("so", SavedOutput, "out", "0", indent=1)
        code.add("    saved_outputs = (so,)", "else:", "    saved_outputs = (out._save(0),)")
    elif outputs_kept is None:
        code.add("saved_outputs = tuple([out._save(number) for number, out in enumerate(outputs)])")
    else:
        each = [f"outputs[{i}]._save({i})" if i in outputs_kept else "None" for i in range(operator.outputs)]
        code.add(f"saved_outputs = ({', '.join(each)},)")
    code.add(step=operator.step(mask, count, False, False))
    kind = operator.node_type or operator.make_node_type()
    code.construct("node", kind, "edges", "plan", "residuals", "saved", "saved_outputs", "step")
    code.add("number = 0" if single else "for number, out in enumerate(outputs):")
    code.add(*(f"{'' if single else '    '}{line}" for line in _GIVE_HISTORY))
    record: Record = code.function()
    return record


def write_step(operator: "Operator", count: int, mask: int, recorded: bool, through: bool) -> Step:
    """The backward step of a call with `count` inputs that gives gradients of those in the bit mask: a function of the
    node, the gradients of its outputs and the edges along which the results go.

    recorded: on Tensors (create_graph). through: rules are called by a fourth argument, see
    `OperatorNode.apply_through`.
    """
    kept, outputs_kept = operator.keeps(mask)
    is_list = operator.before_list is not None
    rules = operator.rules_for(mask)
    if recorded:
        rules = {i: rule.recorded for i, rule in rules.items()}
    asked = {place for rule in rules.values() for place in rule.places}
    sources = {place.partition("[")[0] for place in asked}
    variant = (", recorded" if recorded else "") + (", called through a function" if through else "")
    title = f"step of {_title(operator, count, mask)}{variant}"
    code = Code(title, f"step(node, gradients, edges{', call' if through else ''})")
    load = "tensor" if recorded else "array"
    if operator.outputs == 1:
        code.add("g = gradients[0]", "if g is None:")
    else:
        code.add("g = tuple(gradients)", "if all([each is None for each in g]):")
    code.add("    return (None,) * len(edges)")
    code.add("saved = node.saved", "if saved is None:", "    raise RuntimeError(FREED)", FREED=FREED)
    for i in range(len(operator.inputs)):
        if not kept[i]:
            continue
        if i == operator.before_list:
            code.add(f"v{i} = tuple([entry.{load}(node) for entry in saved[{i}:]])")
        elif i >= count:  # an optional input that was left out
            code.add(f"v{i} = None")
        elif recorded:
            code.add(f"v{i} = saved[{i}].tensor(node)")
        else:
            code.add(f"entry = saved[{i}]", "if entry.__class__ is SavedInput:", SavedInput=SavedInput)
            code.call(f"v{i}", SavedInput.array, "entry", "node", indent=1)
            code.add("else:", f"    v{i} = entry.array(node)")
    if recorded:
        values = "".join(f"v{i}, " if kept[i] else "None, " for i in range(count))
        listed = f"*v{count}" if is_list and kept[count] else ""
        code.add(f"refuse_detached(node, ({values}{listed}))", refuse_detached=refuse_detached)
    if outputs_kept is None:
        code.add(f"out = tuple([entry.{load}(node) for entry in node.saved_outputs])")
        code.add("out, = out" if operator.outputs == 1 else "")
        outputs_kept = tuple(i for i in range(operator.outputs) if f"o{i}" in asked)
        code.add(*(f"o{i} = out[{i}]" for i in outputs_kept))
    else:
        code.add(*(f"o{i} = node.saved_outputs[{i}].{load}(node)" for i in outputs_kept))
    if sources & {"nd", "specs", "attributes"}:
        code.add("plan = node.plan")
    if "nd" in sources:
        code.add("nd = tensor_namespace" if recorded else "nd = plan.nd", tensor_namespace=tensor_namespace)
    if "specs" in sources:
        left_out = 0 if is_list else len(operator.inputs) - count
        code.add(f"specs = plan.input_specs{f' + (None,) * {left_out}' if left_out else ''}")
    if "attributes" in sources:
        code.add("attributes = plan.attributes")
    if "residuals" in sources:  # of a recorded step the rule computes them again
        code.add(f"residuals = (None,) * {operator.residuals}" if recorded else "residuals = node.residuals")
    if "needs" in sources:
        needs = repr(tuple(bool(mask >> i & 1) for i in range(count)))
        code.add(f"needs = {'tuple([edge is not None for edge in edges])' if is_list else needs}")
    for i, rule in rules.items():
        if "into" in rule.places:
            offers = i >= 0 and not recorded and not through
            code.add(f"into = offered(edges[{i}][0])" if offers else "into = None", offered=offered)
        result, name = ("results", "rule") if i < 0 else (f"r{i}", f"rule{i}")
        given = ", ".join(rule.places)
        code.add(
            f"{result} = call({i}, {name}, ({given},))" if through else f"{result} = {name}({given})",
            **{name: rule if through else rule.rule},
        )
    if operator.joint is None:
        found = "".join(f"r{i}, " if i in rules else "None, " for i in range(count))
        code.add(f"results = ({found}{f'*(None,) * (len(edges) - {count}), ' if is_list else ''})")
    code.add("return results")
    step: Step = code.function()
    return step


def _title(operator: "Operator", count: int, mask: int) -> str:
    """Which operator, and which of its inputs need gradients."""
    return f"{operator.name} for {''.join('01'[mask >> i & 1] for i in range(count)) or 'a list'}"


_GIVE_HISTORY = (
    "if out._spec.dtype.category >= 2:",  # indices and masks carry no gradient
    "    out._requires_grad = True",
    "    out._grad_fn = node",
    "    out._output_nr = number",
)
