"""Elementwise operators: one row each, with its derivative. Shapes, dtypes and strides come from `engine.iterator` and
`engine.promotion`.

A row is `pointwise(name, function, rules, ...)`: `function` is the name of a NumPy/CuPy ufunc, or a Python function
of (xp, *arrays). Its flavour says how dtypes meet: "arithmetic" (promote), "floating" (integers become the default
dtype), "comparison" (promote, result bool), "boolean" (result bool, no promotion needed).

Source of the rules: TensorIterator as described in PyTorch's aten/src/ATen/TensorIterator.cpp; derivatives from
calculus.
"""

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from engine import backend, iterator, layout
from engine.dispatch import Operator, Plan, apply, apply_binary, apply_unary, define
from engine.dtypes import FLOATING_CATEGORY, INTEGER_CATEGORY, bfloat16, bool_, complex32, dtype, of_numpy
from engine.kernels import activation as kernels
from engine.kernels import piecewise
from engine.operands import UNDEFINED, Scalar
from engine.ops.common import (
    common_dtype,
    conjugate,
    floating_dtype,
    kept,
    operand,
    refuse_dtypes,
    undifferentiable,
    with_common_dtype,
    zeros_like,
)
from engine.ops.out import deliver, write_into
from engine.ops.scalars import assigned, bounds, checked, wrapped
from engine.spec import Spec, spec_of
from engine.tensor import Tensor

Rule = Callable[..., Any] | None
Function = str | Callable[..., Any]

FUNCTIONS: dict[str, Callable[..., Tensor]] = {}  # the public function of each pointwise operator
COMPARISONS = frozenset({"comparison", "boolean"})


def _rule(name: str, flavour: str, refused: str, *specs: Spec) -> Spec:
    tensors = [spec for spec in specs if spec.number is None] or list(specs)
    if refused:
        refuse_dtypes(name, refused, specs)
    if flavour == "floating":
        kind = floating_dtype(*specs)
        if name == "angle":
            kind = kind.to_real()
    elif flavour in COMPARISONS:
        kind = bool_
    else:
        kind = common_dtype(*specs)
        if name == "abs":
            kind = kind.to_real()
    # The dtype operands meet in: one that must be converted enters planning in the strides its converted copy has.
    meet = compute_dtype(flavour, specs)
    if kind is complex32 or meet is complex32:
        raise NotImplementedError(
            f"{name}: engine.float16 with complex operands gives complex32, which no tensor can have; use x.float()"
        )
    planned = iterator.plan(
        tuple(spec.operand if meet is None or spec.dtype is meet else converted_operand(spec) for spec in specs)
    )
    where = next((spec.device for spec in tensors if spec.ndim), tensors[0].device)
    stride = planned.stride
    if name == "pow" and specs[0].number is not None:  # of a number: row-major, as PyTorch's
        stride = layout.contiguous_strides(planned.shape)
    if name == "abs" and specs[0].dtype.is_complex:  # PyTorch makes its result with empty_like
        stride = layout.preserve_strides(specs[0].shape, specs[0].stride)
    return spec_of(planned.shape, stride, kind, where)


def converted_operand(spec: Spec) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(shape, stride) of a copy of an operand in another dtype."""
    return (spec.shape, layout.preserve_strides(spec.shape, spec.stride))


def compute_dtype(flavour: str, specs: tuple[Spec, ...]) -> dtype | None:
    """The dtype operands are cast to before the kernel runs; None where no cast is needed."""
    kind = floating_dtype(*specs) if flavour == "floating" else common_dtype(*specs)
    if flavour == "boolean":
        return None
    for spec in specs:
        if spec.dtype is not kind and (spec.number is None or spec.dtype.category > kind.category):
            return kind
    return None if any(spec.number is None for spec in specs) else kind


def _prepare(function: Function, flavour: str, xp: ModuleType, plan: Plan) -> Callable[..., Any]:
    """The cheapest way to run this plan: the bare ufunc where its own layout is the rule's, else one with `out=`."""
    fused = plan.operator.kernels.get("cuda") if xp is not np else None
    if fused is not None and plan.out.dtype.is_floating_point and plan.input_specs[0].dtype is plan.out.dtype:
        return partial(plan._first_run, partial(fused, xp))
    if xp is not np:
        function = plan.operator.kernels.get("cuda", function)
    kernel = getattr(xp, function) if isinstance(function, str) else partial(function, xp)
    takes_out = isinstance(function, str) and isinstance(kernel, getattr(xp, "ufunc", type(None)))
    out = plan.outs[0]
    cast = compute_dtype(flavour, plan.input_specs)
    run = kernel
    if not isinstance(function, str):
        run = kernel = partial(computed_in_single_precision, kernel)
    if cast is not None:
        run = partial(_cast_and_run, kernel, cast.numpy, tuple(spec.number is None for spec in plan.input_specs), xp)
    meet = floating_dtype(*plan.input_specs) if flavour == "floating" else common_dtype(*plan.input_specs)
    if meet.category == INTEGER_CATEGORY and flavour != "boolean":
        run = _with_integers(run, plan, meet, xp)
    # NumPy gives float32 for bfloat16 and a Python float; the result is rounded, as PyTorch does.
    widened = meet is bfloat16 and any(spec.number is float for spec in plan.input_specs)
    if out.ndim == 0 or out.numel == 0 or widened:
        return partial(_run_into, run, out, False)
    tensors = [spec for spec in plan.input_specs if spec.number is None]
    if (
        takes_out
        and run is kernel
        and flavour != "boolean"
        and iterator.fast_setup(tuple(spec.operand for spec in tensors)) == "contiguous"
    ):
        return run  # measured: np.add on 8x16 float32 0.31 µs bare, 0.48 with a fresh out=
    return partial(_settle, plan, run, out, takes_out)


def _with_integers(run: Callable[..., Any], plan: Plan, meet: dtype, xp: ModuleType) -> Callable[..., Any]:
    """`run` as PyTorch computes with integers: numbers wrap around, and dividing by zero is an error."""
    if plan.operator.name in _DIVISIONS and xp is np:
        run = partial(_without_zero_division, plan.operator.name, run)
    numbers = tuple(place for place, spec in enumerate(plan.input_specs) if spec.number is int)
    if not numbers or plan.operator.name == "pow":
        return run
    return partial(_with_wrapped_numbers, run, numbers, meet, *bounds(meet))


def _with_wrapped_numbers(
    run: Callable[..., Any], numbers: tuple[int, ...], meet: dtype, low: int, high: int, *arrays: Any, **out: Any
) -> Any:
    for place in numbers:
        if not low <= arrays[place] <= high:
            arrays = (*arrays[:place], wrapped(arrays[place], meet), *arrays[place + 1 :])
    return run(*arrays, **out)


_DIVISIONS = frozenset({"floor_divide", "div_floor", "div_trunc", "remainder", "fmod"})


def _without_zero_division(name: str, run: Callable[..., Any], *arrays: Any, **out: Any) -> Any:
    try:
        with np.errstate(divide="raise"):
            return run(*arrays, **out)
    except FloatingPointError:
        raise RuntimeError(
            f"{name}: ZeroDivisionError: an integer was divided by zero; check the divisor, or use float tensors, "
            f"which "
            "give inf or nan"
        ) from None


def _settle(plan: Plan, run: Callable[..., Any], out: Spec, takes_out: bool, *arrays: Any) -> Any:
    """First run: keeps the bare kernel if its natural layout and dtype are the rule's, otherwise writes into memory
    laid out by the rule.
    """
    result = run(*arrays)
    if (
        not isinstance(result, backend.SCALAR)
        and result.dtype == out.dtype.numpy
        and all(
            size == 1 or mine == rule
            for size, mine, rule in zip(out.shape, result.strides, out.byte_strides, strict=True)
        )
    ):
        plan.run = run
        return result
    plan.run = partial(_run_into, run, out, takes_out)
    return plan.run(*arrays)


def _run_into(run: Callable[..., Any], out: Spec, takes_out: bool, *arrays: Any) -> Any:
    memory = backend.empty(out)
    if takes_out:
        return run(*arrays, out=memory)
    memory[...] = run(*arrays)
    return memory


def _cast_and_run(
    kernel: Callable[..., Any], to: np.dtype, is_array: tuple[bool, ...], xp: ModuleType, *arrays: Any, **out: Any
) -> Any:
    cast = [
        array.astype(to, copy=False) if tensor else xp.asarray(array).astype(to) if len(arrays) == 1 else array
        for array, tensor in zip(arrays, is_array, strict=True)
    ]
    if not any(is_array):
        cast = [xp.asarray(array).astype(to) for array in cast]
    return kernel(*cast, **out)


def computed_in_single_precision(kernel: Callable[..., Any], *arrays: Any) -> Any:
    """Half precision is computed in single and rounded once, where several passes would round several times."""
    for array in arrays:
        if _is_half(array):
            result = kernel(*(each.astype(np.float32) if _is_half(each) else each for each in arrays))
            return result.astype(array.dtype)
    return kernel(*arrays)


def _is_half(array: Any) -> bool:
    return hasattr(array, "dtype") and array.dtype.itemsize == 2 and array.dtype.kind in "fV"


def _raw(function: str, xp: ModuleType, *arrays: Any) -> Any:
    return getattr(xp, function)(*arrays)


def pointwise(
    name: str,
    function: Function,
    backward: tuple[Rule, ...] | None = None,
    *,
    flavour: str = "arithmetic",
    inputs: str = "",
    refused: str = "",
    analytic: bool = True,
) -> Operator:
    """Defines an elementwise operator and its public function (positional tensors or numbers).

    `analytic`: the rules are those of a complex differentiable function, see `engine.dispatch.Operator.for_complex`.
    """
    names = inputs or {1: "input", 2: "input other"}[len(backward) if backward else 1]
    operator = define(
        name,
        rule=partial(_rule, name, flavour, refused),
        forward=partial(_raw, function) if isinstance(function, str) else function,
        backward=backward,
        inputs=names,
        prepare=partial(_prepare, function, flavour),
    )
    operator.flavour = flavour  # type: ignore[attr-defined]
    operator.analytic, operator.elementwise = analytic, True
    if isinstance(function, str) and flavour in ("arithmetic", "floating") and "float" not in refused:
        operator.direct = getattr(np, function)
    FUNCTIONS[name] = _public(operator, len(names.split()))
    return operator


def _public(operator: Operator, arity: int) -> Callable[..., Tensor]:
    name = operator.name
    if arity == 1:

        def function(input: Tensor, *, out: Tensor | None = None) -> Tensor:
            if not isinstance(input, Tensor):
                raise TypeError(f"{name}(): argument 'input' must be Tensor, not {type(input).__name__}")
            return apply_unary(operator, input) if out is None else write_into(out, operator, (input,))
    elif arity == 2:

        def function(input: Any, other: Any, *, out: Tensor | None = None) -> Tensor:  # type: ignore[misc]
            if type(input) is not Tensor:
                input = operand(input, name)
            if type(other) is not Tensor:
                other = operand(other, name)
            return apply_binary(operator, input, other) if out is None else write_into(out, operator, (input, other))
    else:

        def function(*given: Any, out: Tensor | None = None) -> Tensor:  # type: ignore[misc]
            operands = tuple(operand(value, name) for value in given)
            return apply(operator, operands) if out is None else write_into(out, operator, operands)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = (
        f"Elementwise {name}; operands broadcast and promote as in PyTorch. `out`: a Tensor to write into."
    )
    return function


# --- arithmetic -------------------------------------------------------------------------------------------------------

pointwise("add", "add", (lambda g: g, lambda g: g))
pointwise("sub", "subtract", (lambda g: g, lambda g: -g), refused="bool")
pointwise("mul", "multiply", (lambda g, other: g * other, lambda g, input: g * input))
pointwise(
    "div", "true_divide", (lambda g, other: g / other, lambda g, other, out: -g * (out / other)), flavour="floating"
)


def _sign(xp: ModuleType, input: Any) -> Any:
    """-1, 0 or 1, and 0 for NaN, as PyTorch has it; of complex numbers z / |z|."""
    kind = input.dtype.kind
    if kind == "b":
        return xp.copy(input)
    if kind == "c":
        size = xp.abs(input)
        return xp.where(size == 0, 0, input / xp.where(size == 0, 1, size)).astype(input.dtype)
    if kind in "iu":
        return xp.sign(input)
    # 1024x512 random float32: 0.11 ms, numpy.sign 0.25.
    return ((input > 0).view(xp.int8) - (input < 0).view(xp.int8)).astype(input.dtype)


pointwise("neg", "negative", (lambda g: -g,), refused="bool")
pointwise("positive", "positive", (lambda g: g,), refused="bool")
pointwise("abs", "absolute", (lambda g, nd, input: g * nd.sgn(input),), refused="bool", analytic=False)
pointwise("sign", _sign, (zeros_like,), refused="complex")
pointwise("sgn", _sign, (lambda g, nd, input, out: _sgn_slope(g, nd, input, out),), analytic=False)
pointwise("square", "square", (lambda g, input: g * (2 * input),))


def _sgn_slope(g: Any, nd: Any, input: Any, out: Any) -> Any:
    """Of z / |z|: what of the gradient is at right angles to z, over |z|."""
    if (out.dtype.is_complex if nd.records else out.dtype.kind == "c") is False:
        return zeros_like(g, nd)
    size = nd.abs(input)
    real = nd.real if nd.records else nd.xp.real
    slope = (g - real(g * conjugate(out, nd)) * out) / nd.where(size == 0, 1, size)
    return nd.where(size == 0, 0, slope)


def _power(xp: ModuleType, input: Any, other: Any) -> Any:
    if isinstance(other, int | float) and not isinstance(other, bool) and hasattr(input, "dtype"):
        if input.dtype.kind in "iu" and isinstance(other, int) and other < 0:
            raise RuntimeError(
                f"pow: Integers to negative integer powers are not allowed: got exponent {other}; convert the base "
                "with .float()"
            )
        if isinstance(other, int) or input.dtype.kind not in "iub":
            other = checked("pow", other, of_numpy(input.dtype))
        special = _POWERS.get(other)
        if special is not None and input.dtype.kind in "fcV":
            return special(xp, input)
    elif hasattr(other, "dtype") and other.dtype.kind == "i" and getattr(input, "dtype", other.dtype).kind in "iu":
        return _integer_power(xp, input, other)
    return xp.power(input, other)


# PyTorch computes these so. 1024x512 float32: numpy.power to 3 takes 23 ms, x * x * x 0.09.
_POWERS: dict[Any, Callable[..., Any]] = {
    0.5: lambda xp, x: xp.sqrt(x),
    -0.5: lambda xp, x: 1 / xp.sqrt(x),
    1: lambda xp, x: xp.positive(x),
    2: lambda xp, x: xp.square(x),
    3: lambda xp, x: x * x * x,
    -1: lambda xp, x: xp.reciprocal(x),
    -2: lambda xp, x: xp.reciprocal(x * x),
}


def _integer_power(xp: ModuleType, input: Any, other: Any) -> Any:
    """Powers of integers; those to a negative one are the integer part of the quotient, as in PyTorch."""
    negative = other < 0
    if xp is np and not negative.any():
        return xp.power(input, other)
    result = xp.power(input, xp.where(negative, 0, other))
    quotient = xp.where(input == 1, 1, xp.where(input == -1, 1 - 2 * (other & 1), 0)).astype(result.dtype)
    return xp.where(negative, quotient, result)


def _power_slope(g: Any, nd: Any, input: Any, other: Any) -> Any:
    """other * input ** (other - 1), and 0 for an exponent of 0 whatever the base."""
    if not hasattr(other, "shape"):
        return g * (other * nd.pow(input, other - 1)) if other else zeros_like(g, nd)
    slope = other * nd.pow(input, nd.where(other == 0, 1, other - 1))
    return nd.where(other == 0, 0, g * slope)


def _exponent_slope(g: Any, nd: Any, input: Any, other: Any, out: Any) -> Any:
    """input ** other * log(input), and 0 at a base of 0, unless the exponent is negative."""
    if not hasattr(input, "shape"):
        kind = complex if isinstance(input, complex) or _is_complex(other) else float
        base = np.log(np.asarray(input, kind)).item() if input else -np.inf
        return nd.where(_real_part(nd, other) >= 0, 0, g * (out * base)) if not input else g * (out * base)
    flat = (input == 0) & (_real_part(nd, other) >= 0)
    base = nd.where(flat, 1, input)
    if nd.records:
        base = base.to(out.dtype)
    elif out.dtype.kind == "c":
        base = base.astype(out.dtype)
    return nd.where(flat, 0, g * (out * nd.log(base)))


def _is_complex(x: Any) -> bool:
    return getattr(x.dtype, "kind", "") == "c" or getattr(x.dtype, "is_complex", False)


def _real_part(nd: Any, x: Any) -> Any:
    if not hasattr(x, "shape"):
        return x.real
    if nd.records:
        return nd.real(x) if x.is_complex() else x
    return nd.xp.real(x)


pointwise("pow", _power, (_power_slope, _exponent_slope), refused="bool")
pointwise(
    "floor_divide",
    "floor_divide",
    (undifferentiable("floor_divide"), undifferentiable("floor_divide")),
    refused="bool complex",
)
pointwise("div_floor", "floor_divide", (zeros_like, zeros_like), refused="bool complex")
pointwise(
    "div_trunc", lambda xp, input, other: _truncated(xp, input, other), (zeros_like, zeros_like), refused="bool complex"
)


def _truncated(xp: ModuleType, input: Any, other: Any) -> Any:
    """The quotient without its fraction, computed with integers where it is one of integers."""
    quotient = xp.true_divide(input, other)
    if getattr(input, "dtype", quotient.dtype).kind not in "iu" or getattr(other, "dtype", quotient.dtype).kind == "f":
        return xp.trunc(quotient)
    floor, rest = xp.divmod(input, other)
    return floor + ((rest != 0) & (floor < 0))


pointwise(
    "remainder",
    "remainder",
    (lambda g: g, lambda g, nd, input, other: -g * nd.div_floor(input, other)),
    refused="bool complex",
)
pointwise(
    "fmod",
    "fmod",
    (lambda g: g, lambda g, nd, input, other: -g * nd.trunc(input / other)),
    refused="bool complex",
)
pointwise(
    "maximum",
    "maximum",
    (lambda g, nd, input, other: _share(g, nd, input, other), lambda g, nd, input, other: _share(g, nd, other, input)),
    refused="complex",
)
pointwise(
    "minimum",
    "minimum",
    (lambda g, nd, input, other: _share(g, nd, other, input), lambda g, nd, input, other: _share(g, nd, input, other)),
    refused="complex",
)
pointwise(
    "fmax",
    "fmax",
    (
        lambda g, nd, input, other: _first_kept(g, nd, input >= other, other),
        lambda g, nd, input, other: _second_kept(g, nd, input >= other, other),
    ),
    refused="complex",
)
pointwise(
    "fmin",
    "fmin",
    (
        lambda g, nd, input, other: _first_kept(g, nd, input <= other, other),
        lambda g, nd, input, other: _second_kept(g, nd, input <= other, other),
    ),
    refused="complex",
)
pointwise(
    "lerp",
    lambda xp, input, end, weight: xp.where(
        abs(weight) < 0.5, input + weight * (end - input), end - (end - input) * (1 - weight)
    ),
    (lambda g, weight: g * (1 - weight), lambda g, weight: g * weight, lambda g, input, end: g * (end - input)),
    inputs="input end weight",
    refused="bool integer",
)


def _share(g: Any, nd: Any, winner: Any, loser: Any) -> Any:
    """The gradient of the larger (or smaller) operand: all of it where it wins or one is NaN, half of it at a tie."""
    lost, tie = winner < loser, winner == loser
    if nd.records:
        return nd.where(lost, 0, nd.where(tie, g / 2, g))
    share = kept(g, nd, ~lost)
    return nd.xp.where(tie, share / 2, share) if nd.xp is not np or tie.any() else share


def _first_kept(g: Any, nd: Any, first: Any, other: Any) -> Any:
    """Of fmax and fmin: the first operand's gradient, who also has ties and NaN beside it."""
    return kept(g, nd, first | nd.isnan(other) if hasattr(other, "shape") else first | (other != other))


def _second_kept(g: Any, nd: Any, first: Any, other: Any) -> Any:
    return kept(g, nd, ~(first | nd.isnan(other)) if hasattr(other, "shape") else ~(first | (other != other)))


# --- exponentials, powers, trigonometry -------------------------------------------------------------------------------

floating = partial(pointwise, flavour="floating")


def _acosh_root(nd: Any, input: Any) -> Any:
    """√(x² - 1), on the branch of acosh for complex numbers."""
    if _is_complex(input):
        return nd.sqrt(input - 1) * nd.sqrt(input + 1)
    return nd.sqrt(input * input - 1)


floating("exp", "exp", (lambda g, out: g * out,))
floating("exp2", "exp2", (lambda g, out: g * out * 0.6931471805599453,))
floating("expm1", "expm1", (lambda g, out: g * (out + 1),))
floating("log", "log", (lambda g, input: g / input,))
floating("log2", "log2", (lambda g, input: g / (input * 0.6931471805599453),))
floating("log10", "log10", (lambda g, input: g / (input * 2.302585092994046),))
floating("log1p", "log1p", (lambda g, input: g / (input + 1),))
floating("sqrt", "sqrt", (lambda g, out: g / (2 * out),))
floating("rsqrt", lambda xp, input: 1 / xp.sqrt(input), (lambda g, out: -0.5 * g * out * out * out,))


def _tanh_slope(g: Any, nd: Any, out: Any) -> Any:
    if not nd.records and _row_major_alike(g, out):
        return kernels.tanh_backward(g, out)
    return g * (1 - out * out)


def _row_major_alike(g: Any, out: Any) -> bool:
    """Whether both are float32 or both float64 in host memory, of one shape and C-contiguous: what kernels take."""
    return (
        g.__class__ is np.ndarray
        and out.__class__ is np.ndarray
        and g.dtype.char in "fd"
        and out.dtype is g.dtype
        and g.shape == out.shape
        and g.flags.c_contiguous
        and out.flags.c_contiguous
    )


floating("reciprocal", "reciprocal", (lambda g, out: -g * out * out,))
floating("sin", "sin", (lambda g, nd, input: g * nd.cos(input),))
floating("cos", "cos", (lambda g, nd, input: -g * nd.sin(input),))
floating("tan", "tan", (lambda g, out: g * (1 + out * out),))
floating("asin", "arcsin", (lambda g, nd, input: g / nd.sqrt(1 - input * input),))
floating("acos", "arccos", (lambda g, nd, input: -g / nd.sqrt(1 - input * input),))
floating("atan", "arctan", (lambda g, input: g / (1 + input * input),))
floating("sinh", "sinh", (lambda g, nd, input: g * nd.cosh(input),))
floating("cosh", "cosh", (lambda g, nd, input: g * nd.sinh(input),))
floating("tanh", "tanh", (_tanh_slope,))
floating("asinh", "arcsinh", (lambda g, nd, input: g / nd.sqrt(input * input + 1),))
floating("acosh", "arccosh", (lambda g, nd, input: g / _acosh_root(nd, input),))
floating("atanh", "arctanh", (lambda g, input: g / (1 - input * input),))
floating(
    "atan2",
    "arctan2",
    (
        lambda g, nd, input, other: g * other * _inverse_square(nd, input, other),
        lambda g, nd, input, other: -g * input * _inverse_square(nd, input, other),
    ),
    refused="complex",
)


def _inverse_square(nd: Any, input: Any, other: Any) -> Any:
    square = input * input + other * other
    return nd.where(square == 0, 0, 1 / nd.where(square == 0, 1, square))


floating(
    "hypot",
    "hypot",
    (lambda g, input, out: g * input / out, lambda g, other, out: g * other / out),
    refused="bool integer complex",
)
floating(
    "logaddexp",
    "logaddexp",
    (
        lambda g, nd, input, other: g / (1 + nd.exp(other - input)),
        lambda g, nd, input, other: g / (1 + nd.exp(input - other)),
    ),
    refused="bool integer complex",
)
pointwise(
    "relu",
    lambda xp, input: _compiled("relu", xp, input, lambda: xp.maximum(input, 0)),
    (lambda g, nd, out: _compiled_slope("relu", g, nd, out, lambda: kept(g, nd, ~(out <= 0))),),
    refused="bool complex",
)
floating(
    "sigmoid",
    lambda xp, input: _compiled("sigmoid", xp, input, lambda: _sigmoid(xp, input)),
    (lambda g, nd, out: _compiled_slope("sigmoid", g, nd, out, lambda: g * out * (1 - out)),),
)


def _compiled(name: str, xp: ModuleType, input: Any, plain: Callable[[], Any]) -> Any:
    """The result of the compiled kernel where it serves, else of `plain`."""
    out = piecewise.activated(name, input) if xp is np else None
    return plain() if out is None else out


def _compiled_slope(name: str, g: Any, nd: Any, out: Any, plain: Callable[[], Any]) -> Any:
    found = None if nd.records or nd.xp is not np else piecewise.slope(name, g, out)
    return plain() if found is None else found


def _sigmoid(xp: ModuleType, input: Any) -> Any:
    # Not by tanh, which would save a quarter of the time and give 0 for float32 below -17.
    result = xp.exp(-input)
    return 1 / (1 + result)


# --- rounding, comparison, logic --------------------------------------------------------------------------------------

pointwise("floor", "floor", (zeros_like,), refused="bool complex")
pointwise("ceil", "ceil", (zeros_like,), refused="bool complex")
pointwise("trunc", "trunc", (zeros_like,), refused="bool complex")
pointwise("round", "rint", (zeros_like,), refused="bool complex")
pointwise("frac", lambda xp, input: input - xp.trunc(input), (lambda g: g,), refused="bool integer complex")

_NO = (None, None)
for _name, _function in (("eq", "equal"), ("ne", "not_equal")):
    pointwise(_name, _function, _NO, flavour="comparison")
for _name, _function in (("lt", "less"), ("le", "less_equal"), ("gt", "greater"), ("ge", "greater_equal")):
    pointwise(_name, _function, _NO, flavour="comparison", refused="complex")
for _name in ("logical_and", "logical_or", "logical_xor"):
    pointwise(_name, _name, _NO, flavour="boolean")
pointwise("logical_not", "logical_not", (None,), flavour="boolean")
for _name in ("isnan", "isinf", "isfinite"):
    pointwise(_name, _name, (None,), flavour="boolean")
pointwise("signbit", "signbit", (None,), flavour="boolean", refused="complex")
for _name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
    pointwise(_name, _name, _NO, refused="float complex")
pointwise("bitwise_not", "invert", (None,), refused="float complex")
pointwise("bitwise_left_shift", "left_shift", _NO, refused="bool float complex")
pointwise("bitwise_right_shift", "right_shift", _NO, refused="bool float complex")

# --- selection --------------------------------------------------------------------------------------------------------


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


def _clamp_rule(input: Spec, low: Any, high: Any) -> Spec:
    if low is None and high is None:
        raise RuntimeError("clamp: At least one of 'min' or 'max' must not be None")
    specs = [spec for spec in (input, low, high) if spec is not None]
    # Bounds that are numbers are parameters here, not operands: they take part in promotion but not in the layout.
    made = _rule("clamp", "arithmetic", "complex", *specs)
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


def clamp(input: Tensor, min: Any = None, max: Any = None, *, out: Tensor | None = None) -> Tensor:
    """Values limited to [min, max]; either bound may be a number, a Tensor or None."""
    if out is not None:
        return deliver(out, clamp, input, min, max, overlap="partial")
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

# --- the names PyTorch gives them, with its extra arguments -----------------------------------------------------------


def add(input: Any, other: Any, *, alpha: Any = 1, out: Tensor | None = None) -> Tensor:
    """input + alpha * other."""
    return FUNCTIONS["add"](input, other if alpha == 1 else scaled("add", input, other, alpha), out=out)


def sub(input: Any, other: Any, *, alpha: Any = 1, out: Tensor | None = None) -> Tensor:
    """input - alpha * other."""
    return FUNCTIONS["sub"](input, other if alpha == 1 else scaled("sub", input, other, alpha), out=out)


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


def div(input: Any, other: Any, *, rounding_mode: str | None = None, out: Tensor | None = None) -> Tensor:
    """input / other; `rounding_mode` "floor" or "trunc" rounds the quotient (and keeps integers)."""
    if rounding_mode is None:
        return FUNCTIONS["div"](input, other, out=out)
    if rounding_mode in ("floor", "trunc"):
        return FUNCTIONS[f"div_{rounding_mode}"](input, other, out=out)
    raise RuntimeError(f"div expected rounding_mode to be one of None, 'trunc', or 'floor' but found '{rounding_mode}'")
