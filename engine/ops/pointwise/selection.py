"""Selection by conditions and bounds: where and clamp. Their operands broadcast and promote as those of the rows in
`engine.ops.pointwise.rows` do.
"""

from types import ModuleType
from typing import Any

from engine.calls.dispatch import apply
from engine.calls.listening import heard
from engine.calls.operands import UNDEFINED, Scalar
from engine.calls.operator import define
from engine.ops.pointwise.row import converted_operand, result_spec
from engine.ops.shared.operands import (
    common_dtype,
    kept,
    operand,
    with_common_dtype,
)
from engine.ops.shared.scalars import assigned, checked
from engine.ops.writing.out import deliver
from engine.rules import iterator
from engine.rules.dtypes import bool_
from engine.rules.spec import Spec, spec_of
from engine.tensor import Tensor


def _where_rule(condition: Spec, input: Spec, other: Spec) -> Spec:
    if condition.dtype is not bool_ and condition.dtype.name != "uint8":
        raise RuntimeError(
            f"where expected condition to be a boolean tensor, but got a tensor with dtype {condition.dtype}; compare "
            f"it, as in x != 0"
        )
    kind = common_dtype(input, other)
    values = tuple(spec.operand if spec.dtype is kind else converted_operand(spec) for spec in (input, other))
    planned = iterator.plan((condition.operand, *values))
    return spec_of(planned.shape, planned.stride, kind, condition.device)


WHERE = define(
    "where",
    rule=_where_rule,
    forward=lambda xp, condition, input, other: _where(xp, condition, input, other),
    backward=(
        None,
        lambda g, nd, condition: nd.where(condition, g, 0),
        lambda g, nd, condition: nd.where(condition, 0, g),
    ),
    inputs="condition input other",
)


def _where(xp: ModuleType, condition: Any, input: Any, other: Any) -> Any:
    if hasattr(input, "dtype") and hasattr(other, "dtype") and input.dtype is not other.dtype:
        input, other = with_common_dtype((input, other))
    return xp.where(condition, input, other)


def where(condition: Tensor, input: Any = None, other: Any = None, *, out: Tensor | None = None) -> Any:
    """Elements of `input` where the condition holds, of `other` elsewhere. With the condition alone: the indices of its
    true elements.
    """
    if out is not None:
        return deliver(out, where, condition, input, other, overlap="partial")
    if input is None and other is None:
        return condition.nonzero(as_tuple=True)
    values: tuple[Any, ...] = (operand(input, "where"), operand(other, "where"))
    if not all(isinstance(value, Tensor) for value in values):
        kind = common_dtype(*(value._spec for value in values))
        values = tuple(
            value if isinstance(value, Tensor) else Scalar(assigned("where", value._array, kind)) for value in values
        )
    return apply(WHERE, (operand(condition, "where"), *values))


def constant_beside(value: Tensor, *inputs: Any) -> Tensor:
    """`value`, recorded as if it were made of `inputs` that broadcast to its shape, by whom its derivative is 0."""
    for input in inputs:
        if isinstance(input, Tensor) and input.requires_grad:
            value = apply(WHERE, (Scalar(True), value, input.to(value.dtype)))
    return value


def _clamp_rule(input: Spec, low: Any, high: Any) -> Spec:
    if low is None and high is None:
        raise RuntimeError("clamp: At least one of 'min' or 'max' must not be None")
    specs = [spec for spec in (input, low, high) if spec is not None]
    # Bounds that are numbers are parameters here, not operands: they take part in promotion but not in the layout.
    made = result_spec("clamp", "arithmetic", "complex", *specs)
    kind = made.dtype
    tensors = [spec for spec in specs if spec.number is None]
    planned = iterator.plan(tuple(spec.operand if spec.dtype is kind else converted_operand(spec) for spec in tensors))
    return made.like(stride=planned.stride)


CLAMP = define(
    "clamp",
    rule=_clamp_rule,
    forward=lambda xp, input, low, high: _clamp(xp, input, low, high),
    backward=(
        lambda g, nd, input, low, high: kept(g, nd, _inside(nd, input, low, high)),
        lambda g, nd, input, low, high: kept(g, nd, input < low if high is None else (input < low) & (low < high)),
        lambda g, nd, input, low, high: kept(g, nd, input > high if low is None else (input > high) | (high < low)),
    ),
    inputs="input low high",
)


def _clamp(xp: ModuleType, input: Any, low: Any, high: Any) -> Any:
    result = input if low is None else xp.maximum(input, low)
    return result if high is None else xp.minimum(result, high)


def _inside(nd: Any, input: Any, low: Any, high: Any) -> Any:
    if low is None:
        return input <= high
    return input >= low if high is None else (input >= low) & (input <= high)


@heard
def clamp(input: Tensor, min: Any = None, max: Any = None, *, out: Tensor | None = None) -> Tensor:
    """Values limited to [min, max]; either bound may be a number, a Tensor or None."""
    if out is not None:
        return deliver(out, clamp, input, min, max, same_dtype=False, overlap="partial")
    return apply(CLAMP, (input, *clamp_bounds(input, min, max)))


def clamp_bounds(input: Tensor, min: Any, max: Any) -> tuple[Any, Any]:
    """The bounds of clamp as operands.

    Raises: RuntimeError for a number that the dtype of the result does not hold.
    """
    bounds = tuple(UNDEFINED if bound is None else operand(bound, "clamp") for bound in (min, max))
    numbers: list[Any] = [bound._spec for bound in bounds if isinstance(bound, Scalar)]
    if not numbers:
        return bounds  # type: ignore[return-value]
    kind = common_dtype(input._spec, *numbers)
    return tuple(  # type: ignore[return-value]
        Scalar(checked("clamp", bound._array, kind)) if isinstance(bound, Scalar) else bound for bound in bounds
    )


clip = clamp
