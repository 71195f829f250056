"""What operator definitions share: reading operands, common dtypes, device of a call."""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from engine.calls.namespaces import composite, tensor_namespace
from engine.calls.namespaces import conjugate as conjugate
from engine.calls.operands import UNDEFINED, Scalar
from engine.ops.shared.scalars import parsed
from engine.rules import promotion
from engine.rules.dtypes import BOOL_CATEGORY, FLOATING_CATEGORY, dtype, get_default_dtype
from engine.rules.spec import Spec
from engine.tensor import Tensor

_NUMBERS = (float, int, complex)  # a bool is an int; isinstance with a union of types would take 0.15 µs more


def operand(value: Any, name: str) -> Any:
    """A Tensor as it is, a Python or NumPy number as a Scalar.

    Raises: TypeError naming the operator for anything else.
    """
    if isinstance(value, Tensor):
        return value
    if isinstance(value, _NUMBERS):
        return Scalar(parsed(name, value) if type(value) is int else value)
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and not value.ndim):
        return Scalar(parsed(name, value.item()))
    raise TypeError(
        f"{name}: expected a Tensor or a number, got {type(value).__name__}; make a Tensor with engine.tensor(...)"
    )


def optional(value: Tensor | None) -> Any:
    """An optional tensor as an operand."""
    return UNDEFINED if value is None else value


def common_dtype(*specs: Spec) -> dtype:
    """The dtype in which operands meet (promotion by category: tensor, 0-dim, number)."""
    first = specs[0]
    for spec in specs:
        if spec.dtype is not first.dtype or spec.category != first.category:
            return promotion.result_dtype(tuple((spec.dtype, spec.category) for spec in specs))
    return first.dtype


def floating_dtype(*specs: Spec) -> dtype:
    """The same for operators whose result is never an integer: integers and bools become the default dtype."""
    found = common_dtype(*specs)
    return found if found.category >= FLOATING_CATEGORY else get_default_dtype()


def require_floating(name: str, spec: Spec) -> None:
    """Raises RuntimeError unless the input is of a floating point or complex dtype."""
    if spec.dtype.category < FLOATING_CATEGORY:
        raise RuntimeError(
            f"{name}: expected a floating point or complex input, got {spec.dtype}; convert it with .float()"
        )


def require_tensors(name: str, **arguments: Any) -> None:
    """Raises TypeError for the first argument that is no Tensor."""
    for position, (argument, value) in enumerate(arguments.items(), 1):
        if not isinstance(value, Tensor):
            raise TypeError(
                f"{name}(): argument '{argument}' (position {position}) must be Tensor, not {type(value).__name__}"
            )


_CATEGORIES = ("bool", "integer", "float", "complex")


def refuse_dtypes(
    name: str, refused: str, specs: tuple[Spec, ...], plainly: bool = False, each_bool: bool = False
) -> None:
    """Raises for operands that meet in a dtype of a refused category ("bool integer float complex").

    plainly: RuntimeError, where PyTorch does not raise NotImplementedError, which is one. each_bool: bool operands are
    refused whatever they meet.
    """
    kind = common_dtype(*specs)
    if each_bool:
        kind = next((spec.dtype for spec in specs if not spec.dtype.category), kind)
    if _CATEGORIES[kind.category] in refused.split():
        expected = " or ".join(category for category in _CATEGORIES if category not in refused.split())
        advice = "; convert it with .to()"
        if kind.category == BOOL_CATEGORY:
            advice = "; use a logical operator (^, |, ~) or convert with .int()"
        elif kind.is_complex and "float" not in refused:
            advice = "; complex numbers have no order, use .abs() or .real"
        error = RuntimeError if plainly else NotImplementedError
        raise error(f'{name}: "{name}" not implemented for {kind}: expected {expected} tensors{advice}')


def require_real(name: str, spec: Spec) -> None:
    """Raises NotImplementedError, as PyTorch's kernels do, unless the input is of a real floating point dtype."""
    if not spec.dtype.is_floating_point:
        raise NotImplementedError(
            f'"{name}" not implemented for {spec.dtype} (input of shape {list(spec.shape)}); convert it with .float()'
        )


def refuse_complex(name: str, spec: Spec) -> None:
    """Raises NotImplementedError, as PyTorch's kernels do, for complex numbers, which have no order."""
    if spec.dtype.is_complex:
        raise NotImplementedError(
            f'"{name}" not implemented for {spec.dtype}: complex numbers have no order, use .abs() or .real'
        )


def in_single_precision(array: Any) -> Any:
    """float16 and bfloat16 arrays as float32, in which PyTorch's CPU kernels compute; others as they are."""
    return array.astype(np.float32) if array.dtype.itemsize == 2 else array


def running(xp: Any, combine: Any, array: Any, dim: int) -> Any:
    """`combine.accumulate(array, dim)` for an associative ufunc; CuPy's accumulates sums and products only, the others
    are combined with ever farther neighbours: as many passes as the axis' size has bits.
    """
    if xp is np:
        return combine.accumulate(array, axis=dim)
    front, distance = (slice(None),) * dim, 1
    while distance < array.shape[dim]:
        later = combine(array[(*front, slice(distance, None))], array[(*front, slice(None, -distance))])
        array = xp.concatenate([array[(*front, slice(None, distance))], later], axis=dim)
        distance *= 2
    return array


def in_host_memory(value: Any) -> bool:
    """Whether a raw array or a Tensor can be looked at without waiting for a GPU."""
    return value.is_cpu if isinstance(value, Tensor) else isinstance(value, np.ndarray | np.generic)


def with_common_dtype(arrays: Sequence[Any]) -> Sequence[Any]:
    """bfloat16 arrays beside others as float32: NumPy knows no dtype that bfloat16 and others meet in."""
    if len({array.dtype for array in arrays}) > 1 and any(array.dtype.kind == "V" for array in arrays):
        return [array.astype(np.float32) if array.dtype.kind == "V" else array for array in arrays]
    return arrays


# --- what derivative rules share; `nd` tells raw arrays from Tensors --------------------------------------------------


def kept(g: Any, nd: Any, mask: Any) -> Any:
    """`g` where the mask holds, 0 elsewhere, whatever `g` is there: a product with the mask makes NaN of infinity.

    1024x512 random float32: 0.13 ms by the bits, 0.12 for g * mask, 2.6 for numpy.where, whose branches are not
    foreseeable.
    """
    return nd.kept(g, mask)


def _kept(xp: ModuleType, g: Any, mask: Any) -> Any:
    if xp is np and g.dtype.kind in "fV" and mask.shape == g.shape:
        bits = f"i{g.dtype.itemsize}"
        return (g.view(bits) & -mask.view(np.int8)).view(g.dtype)
    return xp.where(mask, g, xp.zeros((), g.dtype))


composite("kept", _kept, lambda g, mask: tensor_namespace.where(mask, g, 0))


def zeros_like(g: Any, nd: Any) -> Any:
    """The derivative of a step: 0, whatever the gradient."""
    return nd.zeros_like(g)


def undifferentiable(name: str) -> Any:
    """The rule of an operator that PyTorch records and cannot differentiate. Raises: RuntimeError."""

    def rule(g: Any) -> Any:
        raise RuntimeError(
            f"derivative for {name} is not implemented: it is constant between its steps; use .detach() on its result"
        )

    return rule


def scaled(name: str, input: Any, other: Any, alpha: Any) -> Any:
    """alpha * other.

    Raises: RuntimeError for an alpha of a higher category than the dtype in which `input` and `other` meet.
    """
    kind = common_dtype(operand(input, name)._spec, operand(other, name)._spec)
    if isinstance(alpha, float) and kind.category < FLOATING_CATEGORY:
        raise RuntimeError(
            f"{name}: For integral input tensors, argument alpha must not be a floating point number: expected an int "
            f"for {kind}, got {alpha}"
        )
    if isinstance(alpha, complex) and not kind.is_complex:
        raise RuntimeError(
            f"{name}: For non-complex input tensors, argument alpha must not be a complex number: expected a real "
            f"number for {kind}, got {alpha}"
        )
    return other * alpha
