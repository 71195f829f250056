"""How a row of elementwise operators becomes an operator: where dtypes meet, the layout of the result, the cheapest way
to run it. The rows themselves are in `engine.ops.pointwise.rows` and the files of families.

A row is `pointwise(name, function, rules, ...)`: `function` is the name of a NumPy/CuPy ufunc, or a Python function
of (xp, *arrays). Its flavour says how dtypes meet: "arithmetic" (promote), "floating" (integers become the default
dtype), "comparison" (promote, result bool), "boolean" (result bool, no promotion needed).

Source of the rules: TensorIterator as described in PyTorch's aten/src/ATen/TensorIterator.cpp.
"""

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from engine.autograd.modes import open_blocks
from engine.calls.dispatch import apply, apply_binary, apply_unary
from engine.calls.listening import hears, tell, wanted
from engine.calls.operands import Scalar
from engine.calls.operator import Operator, define
from engine.calls.plan import Plan
from engine.memory import backend
from engine.ops.pointwise import repeating
from engine.ops.shared.operands import (
    common_dtype,
    floating_dtype,
    operand,
    refuse_dtypes,
)
from engine.ops.shared.scalars import bounds, wrapped
from engine.ops.writing.inplace import TENSORS_ONLY
from engine.ops.writing.out import write_into
from engine.rules import iterator, layout
from engine.rules.dtypes import INTEGER_CATEGORY, bfloat16, bool_, complex32, dtype
from engine.rules.spec import Spec, spec_of
from engine.tensor import Tensor

Rule = Callable[..., Any] | None
Function = str | Callable[..., Any]

FUNCTIONS: dict[str, Callable[..., Tensor]] = {}  # the public function of each pointwise operator
COMPARISONS = frozenset({"comparison", "boolean"})


class Facts(NamedTuple):
    """What an operator does otherwise than most.

    real: its result of complex numbers is real. divides: integers cannot be divided by 0. plain_errors, each_bool: how
    it refuses dtypes, see `refuse_dtypes`. exact_numbers: Python integers do not wrap around in the dtype of the
    tensor. row_major_of_number: its result is where the first operand is a number. like_complex: its result lies like
    a complex input, as empty_like has it.
    """

    real: bool = False
    divides: bool = False
    plain_errors: bool = False
    each_bool: bool = False
    exact_numbers: bool = False
    row_major_of_number: bool = False
    like_complex: bool = False


USUAL = Facts()


def result_spec(name: str, flavour: str, refused: str, *specs: Spec, facts: Facts = USUAL) -> Spec:
    """The Spec of a row's result; raises every shape and dtype error."""
    tensors = [spec for spec in specs if spec.number is None] or list(specs)
    if refused:
        refuse_dtypes(name, refused, specs, facts.plain_errors, facts.each_bool)
    if flavour == "floating":
        kind = floating_dtype(*specs)
    elif flavour in COMPARISONS:
        kind = bool_
    else:
        kind = common_dtype(*specs)
    if facts.real:
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
    if facts.row_major_of_number and specs[0].number is not None:
        stride = layout.contiguous_strides(planned.shape)
    if facts.like_complex and specs[0].dtype.is_complex:
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


def _prepare(function: Function, flavour: str, facts: Facts, xp: ModuleType, plan: Plan) -> Callable[..., Any]:
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
        run = _with_integers(run, plan, meet, facts, xp)
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


def _with_integers(
    run: Callable[..., Any], plan: Plan, meet: dtype, facts: Facts, xp: ModuleType
) -> Callable[..., Any]:
    """`run` as PyTorch computes with integers: numbers wrap around, and dividing by zero is an error."""
    if facts.divides and xp is np:
        run = partial(_without_zero_division, plan.operator.name, run)
    numbers = tuple(place for place, spec in enumerate(plan.input_specs) if spec.number is int)
    if not numbers or facts.exact_numbers:
        return run
    return partial(_with_wrapped_numbers, run, numbers, meet, *bounds(meet))


def _with_wrapped_numbers(
    run: Callable[..., Any], numbers: tuple[int, ...], meet: dtype, low: int, high: int, *arrays: Any, **out: Any
) -> Any:
    for place in numbers:
        if not low <= arrays[place] <= high:
            arrays = (*arrays[:place], wrapped(arrays[place], meet), *arrays[place + 1 :])
    return run(*arrays, **out)


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


def _arithmetic(function: str, plan: Plan) -> Callable[..., Any] | None:
    from engine.ops.pointwise import cuda  # no part of import engine, which it makes slower

    return cuda.planned(function, plan)


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
    facts: Facts = USUAL,
) -> Operator:
    """Defines an elementwise operator and its public function (positional tensors or numbers).

    `analytic`: the rules are those of a complex differentiable function, see
    `engine.calls.operator.Operator.for_complex`.
    """
    names = inputs or {1: "input", 2: "input other"}[len(backward) if backward else 1]
    operator = define(
        name,
        rule=partial(result_spec, name, flavour, refused, facts=facts),
        forward=partial(_raw, function) if isinstance(function, str) else function,
        backward=backward,
        inputs=names,
        prepare=partial(_prepare, function, flavour, facts),
    )
    operator.analytic, operator.elementwise = analytic, True
    if isinstance(function, str) and flavour in ("arithmetic", "floating") and "float" not in refused:
        operator.direct = getattr(np, function)
        if function in ("add", "subtract", "multiply", "true_divide"):
            operator.plans_for("cuda")(partial(_arithmetic, function))
            operator.plans_for("cpu")(partial(repeating.planned, function))
    FUNCTIONS[name] = _public(operator, len(names.split()))
    return operator


_TENSOR_FIRST = TENSORS_ONLY | {"copysign", "eq", "fmod", "ge", "gt", "le", "lt", "ne"}
_NUMBERS_ONLY = frozenset({"add", "div", "floor_divide", "mul", "sub"})  # take two numbers as well


def refuse_numbers(name: str, input: Any, other: Any) -> None:
    """Raises TypeError for numbers where PyTorch's functions take Tensors; Python's operators do not ask."""
    first, second = isinstance(input, Scalar), isinstance(other, Scalar)
    if first and (second or name in _TENSOR_FIRST):
        raise TypeError(f"{name}(): argument 'input' (position 1) must be Tensor, not {type(input._array).__name__}")
    if second and name in TENSORS_ONLY:
        raise TypeError(f"{name}(): argument 'other' (position 2) must be Tensor, not {type(other._array).__name__}")


def _public(operator: Operator, arity: int) -> Callable[..., Tensor]:
    name = operator.name
    if arity == 1:

        def function(input: Tensor, *, out: Tensor | None = None) -> Tensor:
            if open_blocks.open and wanted(function):
                return tell(function, input, out=out)
            if not isinstance(input, Tensor):
                raise TypeError(f"{name}(): argument 'input' must be Tensor, not {type(input).__name__}")
            return apply_unary(operator, input) if out is None else write_into(out, operator, (input,))
    elif arity == 2:
        particular = name not in _NUMBERS_ONLY

        def function(input: Any, other: Any, *, out: Tensor | None = None) -> Tensor:  # type: ignore[misc]
            if open_blocks.open and wanted(function):
                return tell(function, input, other, out=out)
            if type(input) is not Tensor:
                input = operand(input, name)
                if particular:
                    refuse_numbers(name, input, other)
            if type(other) is not Tensor:
                other = operand(other, name)
                if particular:
                    refuse_numbers(name, input, other)
            return apply_binary(operator, input, other) if out is None else write_into(out, operator, (input, other))
    else:

        def function(*given: Any, out: Tensor | None = None) -> Tensor:  # type: ignore[misc]
            if open_blocks.open and wanted(function):
                return tell(function, *given, out=out)
            operands = tuple(operand(value, name) for value in given)
            return apply(operator, operands) if out is None else write_into(out, operator, operands)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = (
        f"Elementwise {name}; operands broadcast and promote as in PyTorch. `out`: a Tensor to write into."
    )
    return hears(function)


floating = partial(pointwise, flavour="floating")
