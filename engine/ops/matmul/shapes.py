"""Shapes and dtypes of matrix products."""

from typing import Any

from engine.ops.shared.operands import common_dtype
from engine.rules import layout
from engine.rules.dtypes import bool_
from engine.rules.spec import Spec


def _same_dtype(name: str, *specs: Spec) -> None:
    found = {spec.dtype for spec in specs if spec is not None}
    if len(found) > 1:
        listed = " and ".join(str(spec.dtype) for spec in specs if spec is not None)
        raise RuntimeError(
            f"{name}: expected operands to have the same dtype, but got {listed}; convert one with .to()"
        )


def matmul_rule(input: Spec, other: Spec) -> Spec:
    if not input.ndim or not other.ndim:
        raise RuntimeError(
            f"matmul: both arguments need to be at least 1D, but they are {input.ndim}D and {other.ndim}D"
        )
    _same_dtype("matmul", input, other)
    inner = other.shape[-2] if other.ndim > 1 else other.shape[0]
    if input.shape[-1] != inner:
        raise RuntimeError(
            f"matmul: mat1 and mat2 shapes cannot be multiplied ({_by(input)} and {_by(other)}): expected "
            f"{input.shape[-1]} rows in the second, got {inner}"
            + (
                "; if it holds one row per output, transpose it (.T)"
                if other.ndim > 1 and other.shape[-1] == input.shape[-1]
                else ""
            )
        )
    batch = layout.broadcast_shapes(tuple(input.shape[:-2]), tuple(other.shape[:-2]))
    rows = (input.shape[-2],) if input.ndim > 1 else ()
    columns = (other.shape[-1],) if other.ndim > 1 else ()
    return input.like(shape=(*batch, *rows, *columns), dtype=common_dtype(input, other))


def _by(spec: Spec) -> str:
    return "x".join(map(str, spec.shape))


def linear_rule(input: Spec, weight: Spec, bias: Spec | None = None) -> Spec:
    _same_dtype("linear", input, weight, bias)  # type: ignore[arg-type]
    if weight.ndim != 2 or not input.ndim or input.shape[-1] != weight.shape[1]:
        raise RuntimeError(
            f"linear: mat1 and mat2 shapes cannot be multiplied ({_by(input)} and "
            f"{'x'.join(map(str, weight.shape[::-1]))}): the last size of the input, {list(input.shape)}, must be "
            f"in_features, {weight.shape[-1] if weight.ndim else None}"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise RuntimeError(f"linear: expected a bias of shape {[weight.shape[0]]}, got {list(bias.shape)}")
    return input.like(shape=(*input.shape[:-1], weight.shape[0]))


def check_sum(name: str, input: Spec, product: Spec, beta: Any, alpha: Any) -> None:
    """Raises RuntimeError for another dtype or shape of the input than the product has, and for complex factors of real
    tensors; NotImplementedError for bools.
    """
    kind, shape = product.dtype, product.shape
    if input.dtype is not kind:
        raise RuntimeError(
            f"{name}: expected the input and the product to have the same dtype, but got {input.dtype} and {kind}; "
            "convert one with .to()"
        )
    if kind is bool_:
        raise NotImplementedError(f'"{name}" not implemented for {kind}; convert with .int()')
    if input.shape != shape and layout.broadcast_shapes(tuple(input.shape), tuple(shape)) != tuple(shape):
        raise RuntimeError(
            f"{name}: expected an input that expands to the product's shape {list(shape)}, but got {list(input.shape)}"
        )
    if not kind.is_complex and (isinstance(beta, complex) or isinstance(alpha, complex)):
        raise RuntimeError(f"{name}: beta={beta} and alpha={alpha} cannot be converted to {kind}: they are complex")
