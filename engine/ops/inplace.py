"""Writing into memory that exists: `x.add_(y)`, `x.copy_(y)`, `x[...] = y`, `out=`. Every in-place operator is the
functional one plus `write_into`.

Under autograd an in-place write gives the tensor the node of the functional operator. When the tensor is a view, its
base's history is rewritten as
`base = scatter_view(base, view)` (PyTorch calls the node CopySlices), and every view of that base takes its history
from the base anew.
"""

import warnings
from typing import Any

from engine import backend, iterator, layout, promotion
from engine.autograd.modes import state
from engine.dispatch import OPERATORS, Operator, Plan, _record, define
from engine.ops.common import operand
from engine.spec import Spec
from engine.tensor import Tensor


def check_writable(target: Tensor, name: str) -> None:
    """Raises RuntimeError for a leaf that requires grad (or a view of one) while recording, and for expanded memory."""
    if state.grad_enabled:
        if target._requires_grad and target.grad_fn is None:
            raise RuntimeError(
                f"{name}: a leaf Variable that requires grad is being used in an in-place operation; "
                "write out of place, or inside engine.no_grad() if it is an update of the parameter"
            )
        base = target._base
        if base is not None and base._requires_grad and base.grad_fn is None:
            raise RuntimeError(
                f"{name}: a view of a leaf Variable that requires grad is being used in an in-place operation"
            )
        if base is not None and base.requires_grad and target._view_version < 0:
            raise RuntimeError(
                f"{name}: the view was created in no_grad mode (or by an operator with several outputs) and is being "
                f"modified in place with grad mode "
                "enabled; make the view anew with grad mode on, or write out of place"
            )
    if layout.internal_overlap(target._spec.shape, target._spec.stride) == "yes":
        raise RuntimeError(
            f"{name}: unsupported operation: more than one element of the written-to tensor refers to a single memory "
            f"location. "
            f"Please clone() the tensor before performing the operation (shape {list(target.shape)}, strides "
            f"{target._spec.stride})"
        )


def check_overlap(name: str, out: Tensor, inputs: tuple[Any, ...]) -> None:
    """Raises RuntimeError where `out` partially overlaps an input: elements would be read after they were written."""
    for value in inputs:
        if isinstance(value, Tensor) and value is not out and value._array is not None and out._array is not None:
            mine = (backend.address(out._array), out._spec.shape, out._spec.stride, out._spec.dtype.itemsize)
            theirs = (backend.address(value._array), value._spec.shape, value._spec.stride, value._spec.dtype.itemsize)
            if layout.overlap_status(*mine, *theirs) == "partial":
                raise RuntimeError(
                    f"{name}: unsupported operation: some elements of the input tensor and the written-to tensor "
                    f"refer to a single memory location. "
                    "Please clone() the tensor before performing the operation."
                )


def inplace(operator: Operator, target: Tensor, others: tuple[Any, ...], attributes: tuple[Any, ...] = ()) -> Tensor:
    """`target` becomes `operator(target, *others)`; returns it.

    Raises: RuntimeError when the result has another shape, a dtype of a higher category, or `target` must not be
    written.
    """
    name = f"{operator.name}_"
    check_writable(target, name)
    check_overlap(name, target, others)
    inputs = (target, *others)
    key = (attributes, *(value._spec for value in inputs))
    plan = operator.plans.get(key) or operator.plan(key)
    out = plan.outs[0]
    if out.shape != target.shape:
        raise RuntimeError(
            f"{name}: output with shape {list(target.shape)} doesn't match the broadcast shape {list(out.shape)}"
        )
    if not promotion.can_cast(out.dtype, target.dtype):
        raise RuntimeError(f"{name}: result type {out.dtype} can't be cast to the desired output type {target.dtype}")
    recorded = state.grad_enabled and operator.differentiable and any(value.requires_grad for value in inputs)
    sources = inputs
    if recorded and operator.keeps(sum(1 << i for i, value in enumerate(inputs) if value.requires_grad))[0][0]:
        with_history = target.clone()  # the derivative needs the value that is about to be overwritten
        sources = (with_history, *others)
    _write(plan, target, [value._array for value in inputs])
    target._bump_version(name)
    if recorded:
        _rebase(operator, plan, target, (target, *sources[1:]) if sources is inputs else sources)
    return target


def _write(plan: Plan, target: Tensor, arrays: list[Any]) -> None:
    if target._array is None:
        return
    target._array[...] = plan.run(*arrays)


def _rebase(operator: Operator, plan: Plan, target: Tensor, sources: tuple[Any, ...]) -> None:
    """Gives `target` (and, for a view, its base) the history of the write."""
    out = Tensor(target._array, target._spec)
    out._counter = target._version_counter()
    _record(operator, plan, sources, (out,), ())
    _adopt_history(target, out)


def _adopt_history(target: Tensor, written: Tensor) -> None:
    """`target` continues as `written`; a view passes it on to its base."""
    retained = target._meta is not None and target._meta.retains_grad
    base = target._base
    if base is None:
        target._requires_grad, target._grad_fn = written._requires_grad, written._grad_fn
        if written._grad_fn is not None:
            target._output_nr = written._output_nr
    else:
        from engine.ops.views import scatter_view_history

        scatter_view_history(base, target, written)
    if retained:
        assert target._meta is not None
        target.retain_grad()


def write_into(out: Tensor, operator: Operator, inputs: tuple[Any, ...], attributes: tuple[Any, ...] = ()) -> Tensor:
    """`out=`: the operator's result in the memory of `out`, which is resized when its shape is another (with a warning
    when it has elements).

    Raises: RuntimeError when grad mode would have to record it, for partial overlap with an input, and for a dtype that
    cannot hold the result.
    """
    name = f"{operator.name}(out=)"
    if not isinstance(out, Tensor):
        raise TypeError(f"{operator.name}(): argument 'out' must be Tensor, not {type(out).__name__}")
    if state.grad_enabled and (out.requires_grad or any(value.requires_grad for value in inputs if value is not None)):
        raise RuntimeError(
            f"{operator.name}(): functions with out=... arguments don't support automatic differentiation, but one of "
            f"the arguments requires grad."
        )
    key = (attributes, *(value._spec for value in inputs))
    plan = operator.plans.get(key) or operator.plan(key)
    spec = plan.outs[0]
    if not promotion.can_cast(spec.dtype, out.dtype):
        raise RuntimeError(f"{name}: result type {spec.dtype} can't be cast to the desired output type {out.dtype}")
    if out.shape != spec.shape:
        resize_output(out, spec)
    else:
        check_writable(out, name)
        check_overlap(name, out, inputs)
    _write(plan, out, [value._array for value in inputs])
    out._bump_version(name)
    return out


def resize_output(out: Tensor, spec: Spec) -> None:
    """Gives `out` new memory of the result's shape and strides (its own dtype)."""
    if out.numel():
        warnings.warn(
            f"An output with one or more elements was resized since it had shape {list(out.shape)}, which does not "
            f"match the required output shape "
            f"{list(spec.shape)}. Pass an out tensor of that shape, or one without elements.",
            UserWarning,
            stacklevel=4,
        )
    wanted = spec.like(dtype=out.dtype)
    out._array, out._spec = backend.empty(wanted), wanted


# --- copy_, fill_, and the rest that is no functional operator --------------------------------------------------------


def _copy_rule(input: Spec, source: Spec) -> Spec:
    layout.broadcast_shapes(input.shape, source.shape)
    return (
        input.like(stride=input.stride)
        if iterator.plan((input.operand, source.operand)).shape == input.shape
        else input.like(shape=iterator.plan((input.operand, source.operand)).shape)
    )


COPY = define(
    "copy",
    rule=_copy_rule,
    forward=lambda xp, input, source: xp.broadcast_to(source, input.shape),
    backward=(lambda g: g * 0, lambda g: g),
    inputs="input source",
    prepare=lambda xp, plan: lambda input, source: source,
)


def copy_(self: Tensor, source: Any, non_blocking: bool = False) -> Tensor:
    """Writes `source`, broadcast and cast, into this tensor's memory; recorded."""
    value = operand(source, "copy_")
    check_writable(self, "copy_")
    if isinstance(value, Tensor):
        if value.device is not self.device:
            value = value.to(self.device)
        if layout.broadcast_shapes(self.shape, value.shape) != self.shape:
            raise RuntimeError(
                f"copy_: the source's shape {list(value.shape)} does not broadcast to {list(self.shape)}"
            )
    recorded = state.grad_enabled and (self.requires_grad or value.requires_grad)
    if self._array is not None:
        array = value._array
        if self.dtype.category < 3 and value._spec.dtype.category == 3:
            array = array.real
        self._array[...] = array
    self._bump_version("copy_")
    if recorded:
        key = ((), self._spec, value._spec)
        _rebase(COPY, COPY.plans.get(key) or COPY.plan(key), self, (self, value))
    return self


def fill_(self: Tensor, value: Any) -> Tensor:
    """Every element becomes `value` (a number or a 0-dim Tensor)."""
    if isinstance(value, Tensor) and value.ndim:
        raise RuntimeError(f"fill_ only supports 0-dimension value tensor but got tensor with {value.ndim} dimensions.")
    return copy_(self, value)


def zero_(self: Tensor) -> Tensor:
    """Every element becomes 0."""
    return copy_(self, 0)


def functional_inplace(name: str) -> Any:
    """The method `x.<name>_(...)` of a pointwise operator."""
    operator = OPERATORS[name]

    def method(self: Tensor, *others: Any, alpha: Any = 1) -> Tensor:
        if alpha != 1:
            others = (others[0] * alpha, *others[1:])
        return inplace(operator, self, tuple(operand(other, f"{name}_") for other in others))

    method.__name__ = method.__qualname__ = f"{name}_"
    method.__doc__ = f"In-place {name}: `self` becomes {name}(self, ...)."
    return method
