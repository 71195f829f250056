"""The path every call takes through the operator table (engine/calls/operator.py).

`apply` looks up a `Plan` (engine/calls/plan.py) by (attributes, Specs of the inputs). Making a plan runs the rule, so
checking a call that was seen before costs one dictionary look-up and nothing else. The kernel's first result is
compared with the rule's strides: where they differ (axes of size > 1), the plan from then on copies into memory laid
out by the rule. On the "meta" device only the rule runs.

The keys of a call, in the order they are reached: CompositeImplicit, a public function made of operators that have
derivatives of their own; Autograd, where an input requires a gradient and the call is recorded
(engine/calls/recording.py); then, redispatched below autograd, CPU, CUDA or Meta: the same kernel with another array
module, or a kernel of its own (`Operator.kernel("cuda")`), with derivative rules of its own where it has some
(`Operator.derivative`). 0-dim host tensors beside tensors on a GPU are copied there for the call, and their gradients
back. Whoever listens (capture, `engine.trace`) is told at each of them, see engine/calls/listening.py; all calls go the
way of `apply` then. Autocast listens to public functions alone, and operators keep their short ways.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from operator import attrgetter
from typing import Any

from engine.autograd.modes import open_blocks, state
from engine.autograd.versions import version_of_view
from engine.calls.listening import AUTOGRAD, KERNEL, call
from engine.calls.operator import Operator
from engine.calls.plan import Plan
from engine.calls.written import Code
from engine.tensor import Tensor

Array = Any
Inputs = tuple[Any, ...]  # Tensors, Scalars and UNDEFINED

_spec_of_operand = attrgetter("_spec")
_array_of_operand = attrgetter("_array")


def apply(operator: Operator, inputs: Inputs, attributes: tuple[Any, ...] = (), told: bool = False) -> Any:
    """Runs an operator: plan, kernel, record. Returns a Tensor, or a tuple of them for an operator with several
    outputs. `told`: who listens knows already that the call is recorded.
    """
    try:
        key = (attributes, *map(_spec_of_operand, inputs))
    except AttributeError:
        raise _no_tensor(operator, inputs) from None
    plan = operator.plans.get(key)
    if plan is None:
        plan = operator.plan(key)
    run = plan.run
    if open_blocks.of_operators and state.operator_listeners:
        if not told and state.grad_enabled and _mask(plan.operator, inputs):
            return call(AUTOGRAD, plan, partial(apply, told=True), operator, inputs, attributes)
        run = partial(call, KERNEL, plan, run)
    result = run(*map(_array_of_operand, inputs))
    if operator.outputs == 1:
        single = operator.single
        out = Tensor(result if single else result[0], plan.out)
        if operator.view:
            share_memory(out, inputs[0])
        if state.grad_enabled:
            for tensor in inputs:
                if tensor._requires_grad or (tensor._base is not None and tensor.requires_grad):
                    _record(operator, plan, inputs, (out,), () if single else result[1:])
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
    return outs


def apply_unary(operator: Operator, input: Tensor) -> Tensor:
    """`apply` for one tensor, one output and no attributes."""
    try:
        spec = input._spec
    except AttributeError:
        raise _no_tensor(operator, (input,)) from None
    if open_blocks.of_operators:
        return apply(operator, (input,))
    if spec.plain and operator.direct is not None:
        out = Tensor(operator.direct(input._array), spec)
    else:
        plan = operator.plans.get(((), spec)) or operator.plan(((), spec))
        out = Tensor(plan.run(input._array), plan.out)
    if (input._requires_grad or (input._base is not None and input.requires_grad)) and state.grad_enabled:
        plan = operator.plans.get(((), spec)) or operator.plan(((), spec))
        if operator.grad_mask:
            operator = plan.operator  # which has other rules for complex and half precision tensors
            (operator.recorders.get((1, 1)) or operator.recorder(1, 1))(plan, (input,), (out,), ())
    return out


def apply_view(operator: Operator, input: Tensor, attributes: tuple[Any, ...]) -> Tensor:
    """`apply` for a view of one tensor, without loops: 1.6 µs where that takes 2.3."""
    if open_blocks.of_operators:
        return apply(operator, (input,), attributes)
    try:
        key = (attributes, input._spec)
    except AttributeError:
        raise _no_tensor(operator, (input,)) from None
    plan = operator.plans.get(key) or operator.plan(key)
    out = Tensor(plan.run(input._array), plan.out)
    share_memory(out, input)
    if state.grad_enabled and (input._requires_grad or (input._base is not None and input.requires_grad)):
        operator = plan.operator
        if operator.grad_mask:
            (operator.recorders.get((1, 1)) or operator.recorder(1, 1))(plan, (input,), (out,), ())
    return out


def apply_binary(operator: Operator, input: Any, other: Any, attributes: tuple[Any, ...] = ()) -> Tensor:
    """`apply` for two operands and one output.

    With equal, dense operands nothing is planned or looked up.
    """
    try:
        spec, spec_of_other = input._spec, other._spec
    except AttributeError:
        raise _no_tensor(operator, (input, other)) from None
    if open_blocks.of_operators:
        return apply(operator, (input, other), attributes)
    if spec is spec_of_other and spec.plain and operator.direct is not None:
        out = Tensor(operator.direct(input._array, other._array), spec)
    else:
        key = (attributes, spec, spec_of_other)
        plan = operator.plans.get(key) or operator.plan(key)
        out = Tensor(plan.run(input._array, other._array), plan.out)
    mask = operator.grad_mask & (
        (input._requires_grad or (input._base is not None and input.requires_grad))
        + 2 * (other._requires_grad or (other._base is not None and other.requires_grad))
    )
    if mask and state.grad_enabled:
        key = (attributes, spec, other._spec)
        plan = operator.plans.get(key) or operator.plan(key)
        operator = plan.operator
        (operator.recorders.get((mask, 2)) or operator.recorder(mask, 2))(plan, (input, other), (out,), ())
    return out


def apply_ternary(operator: Operator, first: Any, second: Any, third: Any, attributes: tuple[Any, ...] = ()) -> Tensor:
    """`apply` for three operands and one output, without loops over them: 2.4 µs where it takes 3.0."""
    if open_blocks.of_operators:
        return apply(operator, (first, second, third), attributes)
    try:
        plan = operator.plans.get((attributes, first._spec, second._spec, third._spec))
    except AttributeError:
        raise _no_tensor(operator, (first, second, third)) from None
    if plan is None:
        plan = operator.plan((attributes, first._spec, second._spec, third._spec))
    out = Tensor(plan.run(first._array, second._array, third._array), plan.out)
    if state.grad_enabled:
        mask = operator.grad_mask & (
            (first._requires_grad or (first._base is not None and first.requires_grad))
            + 2 * (second._requires_grad or (second._base is not None and second.requires_grad))
            + 4 * (third._requires_grad or (third._base is not None and third.requires_grad))
        )
        if mask:
            operator = plan.operator
            record = operator.recorders.get((mask, 3)) or operator.recorder(mask, 3)
            record(plan, (first, second, third), (out,), ())
    return out


def _no_tensor(operator: Operator, inputs: Inputs) -> TypeError:
    """The error for an operand that is no tensor."""
    return no_tensor(operator.name, operator.inputs, inputs)


def no_tensor(function: str, names: Sequence[str], values: Sequence[Any]) -> TypeError:
    """The error for an argument that is no tensor; names and values of all arguments that must be."""
    place, value = next((place, each) for place, each in enumerate(values) if not hasattr(each, "_spec"))
    advice = "; make one with engine.tensor(...)" if isinstance(value, float | int | Sequence) else ""
    advice = "; make one with engine.from_numpy(...)" if hasattr(value, "__array__") else advice
    name = names[min(place, len(names) - 1)]
    return TypeError(f"{function}(): argument '{name}' must be Tensor, not {type(value).__name__}{advice}")


def binary_method(operator: Operator, read_operand: Callable[[Any], Any]) -> Callable[[Tensor, Any], Any]:
    """The method of a Python operator: `a + b`. `read_operand` makes an operand of what is no Tensor, or returns
    NotImplemented.

    8x16 float32: 0.64 µs, where numpy.add takes 0.32 (0.25 with out=). Without the first branch it is 0.84; with a call
    of Tensor(...) in it 0.71.
    """
    made: Callable[[Tensor, Any], Any] = _methods()(operator, read_operand)
    return made


@cache
def _methods() -> Callable[..., Any]:
    code = Code("methods of operators", "methods(operator, read_operand)")
    code.add(
        "def method(self, other):",
        "    if type(other) is Tensor:",
        "        spec = self._spec",
        "        if (",
        "            spec is other._spec",
        "            and not self._requires_grad",
        "            and not other._requires_grad",
        "            and self._base is None",
        "            and other._base is None",
        "            and not open_blocks.of_operators",
        "        ):",
        "            direct = operator.direct",
        "            if direct is not None and spec.plain:",
        "                array = direct(self._array, other._array)",
        "            else:",
        "                key = ((), spec, spec)",
        "                plan = operator.plans.get(key) or operator.plan(key)",
        "                array = plan.run(self._array, other._array)",
        "                spec = plan.out",
        open_blocks=open_blocks,
        Tensor=Tensor,
    )
    code.construct("out", Tensor, "array", "spec", indent=3)
    code.add(
        "            return out",
        "    elif not isinstance(other, Tensor):",
        "        other = read_operand(other)",
        "        if other is NotImplemented:",
        "            return NotImplemented",
        "    return apply_binary(operator, self, other)",
        "return method",
        apply_binary=apply_binary,
    )
    return code.function()


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
    operator = plan.operator  # which has other rules for complex tensors
    mask = _mask(operator, inputs)
    if mask:
        (operator.recorders.get((mask, len(inputs))) or operator.recorder(mask, len(inputs)))(
            plan, inputs, outputs, residuals
        )


def _mask(operator: Operator, inputs: Inputs) -> int:
    """Bit mask of the inputs that gradients are wanted of."""
    mask = 0
    bit = 1
    for tensor in inputs:
        if tensor._requires_grad or (tensor._base is not None and tensor.requires_grad):
            mask |= bit
        bit += bit
    return mask & operator.grad_mask
