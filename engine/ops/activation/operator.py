"""Activations with parameters of their own: one pass forward, and one derivative rule that arrays and Tensors both
answer to.

`engine.ops.activation.compiled` has those with compiled CPU kernels. Formulas: torch.nn.functional's documentation.
relu, sigmoid and tanh are rows of `engine.ops.pointwise.rows`.
"""

from collections.abc import Callable
from functools import cache, partial
from types import ModuleType
from typing import Any

from engine.calls.dispatch import apply
from engine.calls.listening import heard
from engine.calls.namespaces import OPERATORS
from engine.calls.operator import Operator, define
from engine.calls.plan import Plan
from engine.ops.activation import compiled
from engine.ops.pointwise.row import FUNCTIONS
from engine.ops.pointwise.selection import clamp, where
from engine.ops.pointwise.special_functions import erf_array
from engine.ops.shared.fused import alike, on_arrays, served
from engine.ops.shared.operands import in_single_precision, kept, require_real
from engine.ops.writing.inplace import become
from engine.ops.writing.inplace import inplace as inplace_
from engine.ops.writing.out import deliver
from engine.rules import iterator
from engine.rules.dtypes import INTEGER_CATEGORY
from engine.rules.spec import Spec
from engine.tensor import Tensor


def _activation(name: str, forward: Callable[..., Any], slope: Callable[..., Any], attributes: str = "") -> Operator:
    """An elementwise operator of one real tensor; float16 and bfloat16 are computed in float32."""

    def rule(input: Spec, *given: Any) -> Spec:
        require_real(name, input)
        return input.like(stride=iterator.plan((input.operand,)).stride)

    def computed(xp: ModuleType, input: Any, *given: Any) -> Any:
        return forward(xp, in_single_precision(input), *given).astype(input.dtype, copy=False)

    backward = (compiled.slope(name, slope),)
    operator = define(name, rule=rule, forward=computed, backward=backward, attributes=attributes)
    operator.elementwise = True
    run = compiled.forward(name, computed)
    if run is not computed:
        operator.kernel("cpu")(run)
    operator.plans_for("cpu")(partial(compiled.in_place, name))
    on_gpu(operator, name, slope)
    return operator


def _applied(operator: Operator, input: Tensor, attributes: tuple[Any, ...], overwrite: bool) -> Tensor:
    return inplace_(operator, input, (), attributes) if overwrite else apply(operator, (input,), attributes)


@cache
def _kernels() -> Any:
    from engine.ops.activation import cuda  # no part of import engine, which it makes slower

    return cuda


def on_gpu(operator: Operator, name: str, slope: Callable[..., Any]) -> None:
    """Gives an activation its kernels of engine.ops.activation.cuda. `slope`: its rule, a function of g, nd, the
    input (or the result) and numbers.
    """

    def run(xp: ModuleType, input: Any, *given: Any) -> Any:
        if not served(input):
            return operator.forward(xp, input, *given)
        called, numbers = compiled.variant(name, given)
        return _kernels().forward(called, *alike(xp, input), *numbers)

    def run_backward(g: Any, nd: Any, input: Any, *given: Any) -> Any:
        called, numbers = compiled.variant(name, given)
        input, g = alike(nd.xp, input, g)
        return _kernels().backward(called, g, input, *numbers)

    def planned(plan: Plan) -> Callable[..., Any] | None:
        called, numbers = compiled.variant(name, plan.attributes)
        made: Callable[..., Any] | None = _kernels().planned(f"{called}_forward", numbers, plan)
        return made

    operator.kernel("cuda")(run)
    operator.plans_for("cuda")(planned)
    operator.derivative("cuda", (on_arrays(slope, run_backward),))


# --- gelu -------------------------------------------------------------------------------------------------------------

_SQRT_HALF, _DENSITY, _TWO_OVER_PI = 0.7071067811865476, 0.3989422804014327, 0.7978845608028654


def _gelu(xp: ModuleType, input: Any, approximate: str) -> Any:
    if approximate == "none":
        return 0.5 * input * (1 + erf_array(xp, input * _SQRT_HALF))
    return 0.5 * input * (1 + xp.tanh(_TWO_OVER_PI * (input + 0.044715 * input * input * input)))


def _gelu_slope(g: Any, nd: Any, input: Any, approximate: str) -> Any:
    if approximate == "none":
        distribution = 0.5 * (1 + nd.erf(input * _SQRT_HALF))
        return g * (distribution + input * _DENSITY * nd.exp(-0.5 * input * input))
    square = input * input
    tanh = nd.tanh(_TWO_OVER_PI * (input + 0.044715 * input * square))
    return g * (0.5 * (1 + tanh) + 0.5 * _TWO_OVER_PI * input * (1 - tanh * tanh) * (1 + 0.134145 * square))


GELU = _activation("gelu", _gelu, _gelu_slope, "approximate")


def gelu(input: Tensor, approximate: str = "none", *, out: Tensor | None = None) -> Tensor:
    """x Φ(x), with Φ by erf, or by its tanh approximation with `approximate="tanh"`.

    Raises: RuntimeError for another approximation; NotImplementedError for a dtype that is not real floating point.
    """
    if out is not None:
        return deliver(out, gelu, input, approximate)
    if approximate not in ("none", "tanh"):
        raise RuntimeError(f"gelu: approximate argument must be either none or tanh, got {approximate!r}")
    return apply(GELU, (input,), (approximate,))


# --- silu -------------------------------------------------------------------------------------------------------------


def _sigmoid(xp: ModuleType, input: Any) -> Any:
    return xp.tanh(input * 0.5) * 0.5 + 0.5


def _silu_slope(g: Any, nd: Any, input: Any) -> Any:
    sigmoid = nd.sigmoid(input)
    return g * (sigmoid * (1 + input * (1 - sigmoid)))


SILU = _activation("silu", lambda xp, input: input * _sigmoid(xp, input), _silu_slope)


def silu(input: Tensor, inplace: bool = False) -> Tensor:
    """x σ(x)."""
    if input._spec.dtype.is_complex:
        product = input * FUNCTIONS["sigmoid"](input)
        return become(input, product, "silu_") if inplace else product
    return _applied(SILU, input, (), inplace)


# --- piecewise --------------------------------------------------------------------------------------------------------

LEAKY_RELU = _activation(
    "leaky_relu",
    lambda xp, input, negative_slope: xp.where(input > 0, input, input * negative_slope),
    lambda g, nd, input, negative_slope: nd.where(input > 0, g, g * negative_slope),
    "negative_slope",
)
ELU = _activation(
    "elu",
    lambda xp, input, alpha, scale, input_scale: xp.where(
        input > 0, input * scale, xp.expm1(xp.minimum(input, 0) * input_scale) * (alpha * scale)
    ),
    lambda g, nd, input, alpha, scale, input_scale: (
        g
        * nd.where(
            input <= 0, nd.exp(nd.where(input <= 0, input, 0) * input_scale) * (alpha * scale * input_scale), scale
        )
    ),
    "alpha scale input_scale",
)
HARDTANH = _activation(
    "hardtanh",
    lambda xp, input, low, high: xp.clip(input, low, high),
    lambda g, nd, input, low, high: kept(g, nd, (input > low) & (input < high)),
    "low high",
)
HARDSIGMOID = _activation(
    "hardsigmoid",
    lambda xp, input: xp.clip(input + 3, 0, 6) / 6,
    lambda g, nd, input: kept(g / 6, nd, (input > -3) & (input < 3)),
)
HARDSWISH = _activation(
    "hardswish",
    lambda xp, input: input * xp.clip(input + 3, 0, 6) / 6,
    lambda g, nd, input: nd.where(input <= -3, 0, nd.where(input < 3, g * (input / 3 + 0.5), g)),
)
THRESHOLD = _activation(
    "threshold",
    lambda xp, input, threshold, value: xp.where(input <= threshold, value, input),
    lambda g, nd, input, threshold: kept(g, nd, ~(input <= threshold)),
    "threshold value",
)
HARDSHRINK = _activation(
    "hardshrink",
    lambda xp, input, lambd: xp.where((input >= -lambd) & (input <= lambd), 0, input),
    lambda g, nd, input, lambd: kept(g, nd, (input < -lambd) | (input > lambd)),
    "lambd",
)
SOFTSHRINK = _activation(
    "softshrink",
    lambda xp, input, lambd: input - xp.clip(input, -lambd, lambd),
    lambda g, nd, input, lambd: kept(g, nd, (input < -lambd) | (input > lambd)),
    "lambd",
)


def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """x where x > 0, else negative_slope · x."""
    return _applied(LEAKY_RELU, input, (float(negative_slope),), inplace)


def elu(
    input: Tensor, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0, inplace: bool = False
) -> Tensor:
    """scale · x where x > 0, else scale · alpha (exp(input_scale · x) - 1): ELU, SELU and CELU by their parameters."""
    return _applied(ELU, input, (float(alpha), float(scale), float(input_scale)), inplace)


@heard
def selu(input: Tensor, inplace: bool = False) -> Tensor:
    """scale · elu with the constants of Klambauer et al. (2017), which keep mean 0 and variance 1."""
    return elu(input, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946, inplace=inplace)


@heard
def celu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """max(0, x) + min(0, alpha (exp(x / alpha) - 1)). Raises RuntimeError if alpha is 0."""
    if alpha == 0:
        raise RuntimeError("ZeroDivisionError: alpha cannot be 0 for CELU")
    return elu(input, alpha, 1.0, 1 / alpha, inplace)


@heard
def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """Leaky ReLU with a learnt slope: one for all, or one a channel (axis 1). Raises RuntimeError if their numbers or
    the dtypes differ.
    """
    if input.dtype is not weight.dtype:
        raise RuntimeError(f"prelu: Type promoting not supported. Got {input.dtype} and {weight.dtype}")
    if weight.ndim > 1:
        raise RuntimeError(f"prelu: Expected `weight` to be a scalar or 1D tensor, but got: ndim = {weight.ndim}")
    if not input.ndim:
        weight = weight.reshape(())
    if weight.numel() != 1:
        channels = input.shape[1] if input.ndim > 1 else 1
        if weight.ndim != 1 or weight.numel() != channels:
            raise RuntimeError(
                "Mismatch of parameter numbers and input channel size. "
                f"Found parameter numbers = {weight.numel()} and channel size = {channels}."
            )
        weight = weight.reshape((1, -1) + (1,) * (input.ndim - 2)) if input.ndim > 1 else weight
    return where(input > 0, input, weight * input)


def hardtanh(input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Tensor:
    """x limited to [min_val, max_val]; no gradient at and beyond the bounds. Raises ValueError if min_val > max_val."""
    if min_val > max_val:
        raise ValueError("min_val cannot be greater than max_val")
    if input.dtype.category == INTEGER_CATEGORY:
        limited = clamp(input, int(min_val), int(max_val))
        return become(input, limited, "hardtanh_") if inplace else limited
    return _applied(HARDTANH, input, (float(min_val), float(max_val)), inplace)


@heard
def relu6(input: Tensor, inplace: bool = False) -> Tensor:
    """min(max(0, x), 6)."""
    return hardtanh(input, 0.0, 6.0, inplace)


@heard
def relu_(input: Tensor) -> Tensor:
    """max(0, x) in place."""
    return inplace_(OPERATORS["relu"], input, ())


def hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    """min(max(0, x + 3), 6) / 6."""
    return _applied(HARDSIGMOID, input, (), inplace)


def hardswish(input: Tensor, inplace: bool = False) -> Tensor:
    """x · hardsigmoid(x)."""
    return _applied(HARDSWISH, input, (), inplace)


def threshold(input: Tensor, threshold: float, value: float, inplace: bool = False) -> Tensor:
    """x where x > threshold, else value."""
    return _applied(THRESHOLD, input, (float(threshold), float(value)), inplace)


def hardshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """x where |x| > lambd, else 0."""
    return apply(HARDSHRINK, (input,), (float(lambd),))


def softshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """x moved by lambd towards 0, and 0 in between. Raises RuntimeError if lambd is negative."""
    if lambd < 0:
        raise RuntimeError(f"lambda must be greater or equal to 0, but found to be {lambd}.")
    return apply(SOFTSHRINK, (input,), (float(lambd),))


# --- smooth -----------------------------------------------------------------------------------------------------------


def _softplus(xp: ModuleType, scaled: Any) -> Any:
    return xp.maximum(scaled, 0) + xp.log1p(xp.exp(-xp.abs(scaled)))


def _log_sigmoid_rule(input: Spec) -> Spec:
    require_real("logsigmoid", input)
    return input.like(shape=input.shape)  # row-major, unlike its neighbours here


def _mish_slope(g: Any, nd: Any, input: Any) -> Any:
    tanh = nd.tanh(nd.softplus(input, 1.0, 20.0))
    return g * (tanh + input * (1 - tanh * tanh) * nd.sigmoid(input))


SOFTPLUS = _activation(
    "softplus",
    lambda xp, input, beta, threshold: xp.where(input * beta > threshold, input, _softplus(xp, input * beta) / beta),
    lambda g, nd, input, beta, threshold: nd.where(input * beta > threshold, g, g * nd.sigmoid(input * beta)),
    "beta threshold",
)
MISH = _activation("mish", lambda xp, input: input * xp.tanh(_softplus(xp, input)), _mish_slope)


def _log_sigmoid_slope(g: Any, nd: Any, input: Any) -> Any:
    return g * nd.sigmoid(-input)


LOGSIGMOID = define(
    "logsigmoid",
    rule=_log_sigmoid_rule,
    forward=lambda xp, input: -_softplus(xp, -in_single_precision(input)).astype(input.dtype, copy=False),
    backward=(_log_sigmoid_slope,),
)
on_gpu(LOGSIGMOID, "logsigmoid", _log_sigmoid_slope)


for _name in ("relu", "sigmoid", "tanh"):  # whose slopes are functions of their results
    (_bound,) = OPERATORS[_name].rules
    assert _bound is not None
    on_gpu(OPERATORS[_name], _name, _bound.rule)
    OPERATORS[_name].plans_for("cpu")(partial(compiled.in_place, _name))


@heard
def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + exp(beta x)) / beta, and x itself where beta x > threshold."""
    return apply(SOFTPLUS, (input,), (float(beta), float(threshold)))


def mish(input: Tensor, inplace: bool = False) -> Tensor:
    """x tanh(softplus(x))."""
    return _applied(MISH, input, (), inplace)


def logsigmoid(input: Tensor) -> Tensor:
    """log σ(x), stable for large |x|."""
    return apply(LOGSIGMOID, (input,))
