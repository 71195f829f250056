"""Elementwise functions beyond the core: rows like those of `engine.ops.pointwise.rows`, and compositions of them."""

import math
from typing import Any

import numpy as np

from engine.calls.dispatch import apply
from engine.calls.listening import heard
from engine.calls.operator import define
from engine.ops.pointwise.row import FUNCTIONS, Facts, floating, pointwise
from engine.ops.pointwise.rows import div, sub
from engine.ops.pointwise.selection import clamp, where
from engine.ops.shared.operands import (
    in_single_precision,
    kept,
    operand,
    refuse_complex,
    require_real,
    require_tensors,
    scaled,
    undifferentiable,
    zeros_like,
)
from engine.ops.writing.out import deliver
from engine.rules import iterator, layout
from engine.rules.dtypes import FLOATING_CATEGORY, bfloat16, bool_, complex128, finfo, float64, get_default_dtype, int64
from engine.rules.layout import contiguous_format
from engine.rules.spec import Spec
from engine.tensor import Tensor

# --- rows -------------------------------------------------------------------------------------------------------------


def _sinc_slope(g: Any, nd: Any, input: Any) -> Any:
    flat = input * (input * math.pi) == 0
    at = nd.where(flat, 1, input)
    angle = at * math.pi
    return nd.where(flat, 0, g * (nd.cos(angle) * angle - nd.sin(angle)) / (angle * at))


def _xlogy_slope(g: Any, nd: Any, input: Any, other: Any) -> Any:
    flat = (g == 0) & (other == other) | (input == 0) & (other <= 0)
    if not hasattr(other, "shape"):
        logarithm = math.log(other) if other > 0 else -math.inf if other == 0 else math.nan
        return nd.where(flat, 0, g * logarithm)
    return nd.where(flat, 0, g * nd.log(nd.where(flat, 1, other)))


def _xlog1py_slope(g: Any, nd: Any, input: Any, other: Any) -> Any:
    flat = (g == 0) & (other == other) | (input == 0) & (other <= -1)
    if not hasattr(other, "shape"):
        logarithm = math.log1p(other) if other > -1 else -math.inf if other == -1 else math.nan
        return nd.where(flat, 0, g * logarithm)
    return nd.where(flat, 0, g * nd.log1p(nd.where(flat, 0, other)))


floating("sinc", lambda xp, input: xp.sinc(input), (_sinc_slope,))
floating(
    "xlogy",
    lambda xp, input, other: xp.where(
        xp.isnan(other), math.nan, xp.where(input == 0, 0, input * xp.log(xp.where(input == 0, 1, other)))
    ),
    (_xlogy_slope, lambda g, input, other: g * input / other),
    refused="complex",
)
floating(
    "xlog1py",
    lambda xp, input, other: xp.where(
        xp.isnan(other), math.nan, xp.where(input == 0, 0, input * xp.log1p(xp.where(input == 0, 0, other)))
    ),
    (_xlog1py_slope, lambda g, input, other: g * input / (other + 1)),
    refused="complex",
)
floating(
    "logaddexp2",
    "logaddexp2",
    (
        lambda g, nd, input, other: g / (1 + nd.exp2(other - input)),
        lambda g, nd, input, other: g / (1 + nd.exp2(input - other)),
    ),
    refused="bool integer complex",
)
floating(
    "copysign",
    "copysign",
    (
        lambda g, nd, input, out: nd.where(input == 0, 0, g * (out / nd.where(input == 0, 1, input))),
        zeros_like,
    ),
    refused="complex",
)
pointwise(
    "nextafter",
    "nextafter",
    (
        lambda g, nd, input, other: kept(g, nd, input != other),
        lambda g, nd, input, other: kept(g, nd, input == other),
    ),
    refused="bool integer complex",
)
pointwise("gcd", "gcd", (None, None), refused="bool float complex")
pointwise("lcm", "lcm", (None, None), refused="bool float complex")
pointwise(
    "heaviside",
    lambda xp, input, other: xp.where(input == 0, other, (input > 0).astype(input.dtype)),
    (undifferentiable("heaviside"), undifferentiable("heaviside")),
    refused="complex",
    facts=Facts(plain_errors=True),
)


def _nan_to_num_rule(input: Spec, nan: float, posinf: float | None, neginf: float | None) -> Spec:
    return input.like(stride=iterator.plan((input.operand,)).stride)


def _nan_to_num(xp: Any, input: Any, nan: float, posinf: float | None, neginf: float | None) -> Any:
    limits = np.finfo(input.dtype) if input.dtype.kind != "V" else finfo(bfloat16)
    high = float(limits.max) if posinf is None else posinf
    low = float(limits.min) if neginf is None else neginf
    if input.dtype.kind != "V":
        return xp.nan_to_num(input, nan=nan, posinf=high, neginf=low)
    return xp.nan_to_num(input.astype(np.float32), nan=nan, posinf=high, neginf=low).astype(input.dtype)


NAN_TO_NUM = define(
    "nan_to_num",
    rule=_nan_to_num_rule,
    forward=_nan_to_num,
    backward=(lambda g, nd, input: nd.where(nd.isfinite(input), g, 0),),
    attributes="nan posinf neginf",
)


def nan_to_num(
    input: Tensor, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    """NaN replaced by `nan` (0), infinities by the given numbers (the dtype's largest and smallest)."""
    if input.dtype.category < FLOATING_CATEGORY:
        return input.clone()
    return apply(NAN_TO_NUM, (input,), (0.0 if nan is None else float(nan), posinf, neginf))


def _logit_rule(input: Spec, eps: float) -> Spec:
    require_real("logit", input)
    return input.like(stride=iterator.plan((input.operand,)).stride)


def _logit(xp: Any, input: Any, eps: float) -> Any:
    x = in_single_precision(input)
    x = x if eps < 0 else xp.clip(x, eps, 1 - eps)
    return xp.log(x / (1 - x)).astype(input.dtype, copy=False)


def _logit_slope(g: Any, nd: Any, input: Any, eps: float) -> Any:
    """0 beyond eps, and NaN beyond [0, 1] without eps."""
    low, outside = max(eps, 0.0), math.nan if eps < 0 else 0.0
    inside = (input >= low) & (input <= 1 - low)
    return nd.where(inside, g / (input * (1 - input)), outside)


LOGIT = define("logit", rule=_logit_rule, forward=_logit, backward=(_logit_slope,), attributes="eps")


# --- compositions -----------------------------------------------------------------------------------------------------


@heard
def addcmul(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1, out: Tensor | None = None) -> Tensor:
    """input + value * tensor1 * tensor2."""
    if out is not None:
        return deliver(out, addcmul, input, tensor1, tensor2, value=value, same_dtype=False, overlap="partial")
    if input.dtype is tensor1.dtype is tensor2.dtype and input.dtype.itemsize == 2 and input.is_floating_point():
        # rounded once
        return addcmul(input.float(), tensor1.float(), tensor2.float(), value=value).to(input.dtype)
    product = tensor1 * tensor2
    return input + (product if value == 1 else product * value)


@heard
def addcdiv(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1, out: Tensor | None = None) -> Tensor:
    """input + value * tensor1 / tensor2."""
    if out is not None:
        return deliver(out, addcdiv, input, tensor1, tensor2, value=value, same_dtype=False, overlap="partial")
    if all(tensor.dtype.category < FLOATING_CATEGORY for tensor in (tensor1, tensor2)):
        raise RuntimeError("Integer division with addcdiv is no longer supported; convert the operands with .float()")
    if input.dtype is tensor1.dtype is tensor2.dtype and input.dtype.itemsize == 2 and input.is_floating_point():
        # rounded once
        return addcdiv(input.float(), tensor1.float(), tensor2.float(), value=value).to(input.dtype)
    quotient = tensor1 / tensor2
    return input + (quotient if value == 1 else quotient * value)


def square(input: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Each element times itself; of a mask as of integers."""
    if isinstance(input, Tensor) and input.dtype is bool_:
        input = input.to(int64)
    return FUNCTIONS["square"](input, out=out)


def heaviside(input: Any, other: Any, *, out: Tensor | None = None) -> Tensor:
    """0 below 0, 1 above, `other` at 0. Raises: RuntimeError for tensors of different dtypes."""
    require_tensors("heaviside", input=input, values=other)
    if input.dtype is not other.dtype:
        raise RuntimeError(
            f"heaviside is not yet implemented for tensors with different dtypes: got {input.dtype} and {other.dtype}"
        )
    return FUNCTIONS["heaviside"](input, other, out=out)


def round(input: Tensor, *, decimals: int = 0, out: Tensor | None = None) -> Tensor:
    """The nearest integer, halves to even; with `decimals`, the nearest multiple of 10 ** -decimals. The derivative
    is 0.

    Raises: NotImplementedError, a RuntimeError, for integers and a number of decimals.
    """
    if isinstance(input, Tensor) and input.dtype.category < FLOATING_CATEGORY:
        if decimals:
            raise NotImplementedError(f"round: decimals={decimals} needs a floating point tensor, got {input.dtype}")
        if input.dtype is not bool_ and out is None:
            return input.clone()
    if decimals and out is None:
        if input.itemsize == 2:  # rounded once
            return round(input.float(), decimals=decimals).to(input.dtype)
        scale = 10.0 ** abs(decimals)
        whole = FUNCTIONS["round"](input * scale if decimals > 0 else input / scale)
        return whole / scale if decimals > 0 else whole * scale
    if decimals:
        return deliver(out, round, input, decimals=decimals)
    return FUNCTIONS["round"](input, out=out)


def logaddexp(input: Tensor, other: Tensor, *, out: Tensor | None = None) -> Tensor:
    """log(exp(input) + exp(other)), without overflow."""
    complex_numbers = isinstance(input, Tensor) and isinstance(other, Tensor) and input.is_complex()
    if not complex_numbers:
        return FUNCTIONS["logaddexp"](input, other, out=out)
    if out is not None:
        return deliver(out, logaddexp, input, other)
    if input.dtype is not other.dtype:
        other = other.to(input.dtype)
    first = input.detach().real >= other.detach().real
    high, low = where(first, input, other), where(first, other, input)
    empty = high.detach().real == -math.inf  # the sum of nothing and nothing is nothing
    return high + FUNCTIONS["log1p"](FUNCTIONS["exp"](where(empty, 0, low - high))) * where(empty, 0, 1)


def positive(input: Tensor) -> Tensor:
    """The tensor itself. Raises: RuntimeError for bools."""
    if input.dtype is bool_:
        raise RuntimeError("The `+` operator, on a bool tensor is not supported.")
    return input


@heard
def isclose(input: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Tensor:
    """Where |input - other| <= atol + rtol * |other|; equal infinities are close, NaN only with `equal_nan`.

    Raises: RuntimeError for two dtypes and tolerances below 0.
    """
    require_tensors("isclose", input=input, other=other)
    for name, tolerance in (("rtol", rtol), ("atol", atol)):
        if tolerance < 0:
            raise RuntimeError(f"{name} must be greater than or equal to zero, but got {tolerance}")
    if input.dtype is not other.dtype:
        raise RuntimeError(f"isclose: {input.dtype} did not match {other.dtype}; convert one with .to()")
    input, other = input.detach(), other.detach()
    close = input == other
    if equal_nan and input.dtype.category >= FLOATING_CATEGORY:
        close = close | (FUNCTIONS["isnan"](input) & FUNCTIONS["isnan"](other))
    if input.dtype is bool_:
        return close
    distance = (input - other).abs()
    return close | ((distance <= atol + (other * rtol).abs()) & FUNCTIONS["isfinite"](distance))


@heard
def deg2rad(input: Tensor) -> Tensor:
    """Degrees to radians."""
    return input * (math.pi / 180)


@heard
def rad2deg(input: Tensor) -> Tensor:
    """Radians to degrees."""
    return input * (180 / math.pi)


@heard
def clamp_min(input: Tensor, min: Any) -> Tensor:
    """Values of at least `min`."""
    require_tensors("clamp_min", input=input)
    return clamp(input, min, None)


@heard
def clamp_max(input: Tensor, max: Any) -> Tensor:
    """Values of at most `max`."""
    require_tensors("clamp_max", input=input)
    return clamp(input, None, max)


def logit(input: Tensor, eps: float | None = None) -> Tensor:
    """log(x / (1 - x)); with `eps`, of x limited to [eps, 1 - eps]."""
    if input.dtype.category < FLOATING_CATEGORY:
        input = input.to(get_default_dtype())
    return apply(LOGIT, (input,), (-1.0 if eps is None else float(eps),))


@heard
def float_power(input: Any, exponent: Any) -> Tensor:
    """input ** exponent in float64, or complex128."""
    base, power = operand(input, "float_power"), operand(exponent, "float_power")
    kind = complex128 if any(each._spec.dtype.is_complex for each in (base, power)) else float64
    base = base.to(kind) if isinstance(base, Tensor) else base
    power = power.to(kind) if isinstance(power, Tensor) else power
    return FUNCTIONS["pow"](
        base if isinstance(base, Tensor) else input, power if isinstance(power, Tensor) else exponent
    )


@heard
def ldexp(input: Tensor, other: Tensor) -> Tensor:
    """input * 2 ** other."""
    require_tensors("ldexp", input=input, other=other)
    return input * FUNCTIONS["pow"](2.0, other)


@heard
def isposinf(input: Tensor) -> Tensor:
    """Where the element is plus infinity."""
    return input.detach() == math.inf


@heard
def isneginf(input: Tensor) -> Tensor:
    """Where the element is minus infinity."""
    return input.detach() == -math.inf


@heard
def isreal(input: Tensor) -> Tensor:
    """Where the imaginary part is 0."""
    return input.detach().imag == 0 if input.is_complex() else input.detach().new_ones(input.shape, dtype=bool_)


@heard
def rsub(input: Tensor, other: Any, *, alpha: Any = 1) -> Tensor:
    """other - alpha * input."""
    require_tensors("rsub", input=input)
    return FUNCTIONS["sub"](other, input if alpha == 1 else scaled("rsub", other, input, alpha))


@heard
def isin(elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False) -> Tensor:
    """Where an element is one of `test_elements`."""
    like = elements if isinstance(elements, Tensor) else test_elements
    refuse_complex("isin", like._spec)
    values = elements if isinstance(elements, Tensor) else like.new_tensor(elements)
    tested = test_elements if isinstance(test_elements, Tensor) else like.new_tensor(test_elements)
    found = (values.detach().unsqueeze(-1) == tested.detach().reshape(-1)).any(-1)
    return ~found if invert else found


@heard
def dist(input: Tensor, other: Tensor, p: float = 2) -> Tensor:
    """The p-norm of input - other."""
    return (input - other).norm(p)


@heard
def masked_scatter(input: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """`input` with the elements of `source`, in order, where the mask is true; input and mask broadcast.

    Raises: RuntimeError if the mask is not bool or asks for more elements than `source` has.
    """
    if mask.dtype is not bool_:
        raise RuntimeError(f"masked_scatter_ only supports boolean masks, but got mask with dtype {mask.dtype}")
    shape = layout.broadcast_shapes(tuple(input.shape), tuple(mask.shape))
    input, mask = input.expand(shape), mask.detach().expand(shape)
    # How many are asked for is not waited for on a GPU.
    count = int(mask.sum().item()) if mask.is_cpu else min(mask.numel(), source.numel())
    if count > source.numel():
        raise RuntimeError(
            f"masked_scatter: expected self and source to have the same number of elements where the mask is true: "
            f"{count} elements are asked for, source has {source.numel()}"
        )
    if not count:
        return input.clone(memory_format=contiguous_format)
    order = (mask.reshape(-1).cumsum(0) - 1).clamp(0, source.numel() - 1).reshape(input.shape)
    return where(mask, source.reshape(-1)[order], input).contiguous()


ALIASES = {
    "arccos": "acos",
    "arccosh": "acosh",
    "arcsin": "asin",
    "arcsinh": "asinh",
    "arctan": "atan",
    "arctan2": "atan2",
    "arctanh": "atanh",
    "greater": "gt",
    "greater_equal": "ge",
    "less": "lt",
    "less_equal": "le",
    "not_equal": "ne",
    "multiply": "mul",
    "negative": "neg",
    "fix": "trunc",
    "absolute": "abs",
}
"""Second names that PyTorch has for rows of the pointwise table."""

FUNCTIONS.update({alias: FUNCTIONS[name] for alias, name in ALIASES.items()})

subtract, divide, true_divide = sub, div, div
