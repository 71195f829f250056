"""Layer normalisation and its relative without a mean, forward and backward, by compiled kernels on the CPU and fused
ones on a GPU.

Rows are what is normalised together, (M, N). Statistics of half precision inputs are taken in float32.
Source: torch.nn.functional.layer_norm, rms_norm; aten/src/ATen/native/layer_norm.cpp; Ba et al. (2016), Zhang and
Sennrich (2019).
"""

from collections.abc import Callable
from functools import cache
from math import prod
from types import ModuleType
from typing import Any

from engine.calls.derivative import implements
from engine.calls.dispatch import apply
from engine.calls.listening import heard
from engine.calls.operator import define
from engine.calls.plan import Plan
from engine.ops.norm.batch_norm import work_dtype
from engine.ops.norm.kernels import layer_norm as kernels
from engine.ops.shared.fused import flattened, has_kernels, on_arrays, row_major, served
from engine.ops.shared.operands import optional, require_floating
from engine.ops.shared.windows import compiled, formatted, suggested_format
from engine.rules.dtypes import finfo, float32
from engine.rules.spec import Spec
from engine.tensor import Tensor

Array = Any


def _check(name: str, input: Spec, shape: tuple[int, ...], **vectors: Spec | None) -> None:
    require_floating(name, input)
    if not shape:
        raise RuntimeError(f"{name}: Expected normalized_shape to be at least 1-dimensional, got []")
    for role, spec in vectors.items():
        if spec is not None and spec.shape != shape:
            raise RuntimeError(
                f"{name}: Expected {role} to be of same shape as normalized_shape, but got {role} of shape "
                f"{list(spec.shape)} and normalized_shape = {list(shape)}"
            )
    if tuple(input.shape[max(input.ndim - len(shape), 0) :]) != shape:
        raise RuntimeError(
            f"{name}: Given normalized_shape={list(shape)}, expected input with shape [*, "
            f"{', '.join(map(str, shape))}], "
            f"but got input of size {list(input.shape)}"
        )


def _layer_norm_rule(input: Spec, weight: Spec | None, bias: Spec | None, shape: tuple[int, ...], eps: float) -> Spec:
    _check("layer_norm", input, shape, weight=weight, bias=bias)
    return input.like(shape=input.shape)


def _layer_norm(
    xp: ModuleType, input: Array, weight: Array, bias: Array, shape: tuple[int, ...], eps: float
) -> tuple[Array, Array, Array]:
    rows = _matrix(xp, input, shape)
    if compiled(xp, rows):
        out, mean, rstd = kernels.layer_norm_forward(
            rows, flattened(xp, weight, rows.dtype), flattened(xp, bias, rows.dtype), eps
        )
    else:
        mean = rows.mean(axis=1)
        centred = rows - mean[:, None]
        rstd = 1 / xp.sqrt((centred * centred).mean(axis=1) + rows.dtype.type(eps))
        out = centred * rstd[:, None]
        if weight is not None:
            out *= flattened(xp, weight, rows.dtype)
        if bias is not None:
            out += flattened(xp, bias, rows.dtype)
    return _shaped(out, input.shape).astype(input.dtype, copy=False), mean, rstd


def _matrix(xp: ModuleType, array: Array, shape: tuple[int, ...]) -> Array:
    """(M, N) row-major, N the size of `shape`, in at least single precision."""
    if array.ndim == 2 and len(shape) == 1 and array.flags.c_contiguous and array.dtype.itemsize > 2:
        return array
    return xp.ascontiguousarray(work_dtype(xp, array)).reshape(
        -1 if array.size else _leading(array, shape), prod(shape)
    )


def _leading(array: Array, shape: tuple[int, ...]) -> int:
    return prod(array.shape[: array.ndim - len(shape)])


def _shaped(array: Array, shape: tuple[int, ...]) -> Array:
    """The array itself where it has the shape: a view owns no memory, and becomes a `.grad` by another way."""
    return array if array.shape == shape else array.reshape(shape)


def _layer_norm_backward_composed(
    g: Any, input: Any, weight: Any, shape: tuple[int, ...], eps: float
) -> tuple[Any, ...]:
    dims = tuple(range(input.ndim - len(shape), input.ndim))
    outer = tuple(range(input.ndim - len(shape)))
    centred = input - input.mean(dims, keepdim=True)
    rstd = ((centred * centred).mean(dims, keepdim=True) + eps) ** -0.5
    normalised = centred * rstd
    scaled = g if weight is None else g * weight
    to_input = rstd * (
        scaled - scaled.mean(dims, keepdim=True) - normalised * (scaled * normalised).mean(dims, keepdim=True)
    )
    product = g * normalised
    return to_input, product.sum(outer) if outer else product, g.sum(outer) if outer else g


@implements(_layer_norm_backward_composed)
def _layer_norm_backward(
    g: Any,
    nd: Any,
    needs: Any,
    input: Any,
    weight: Any,
    mean: Any,
    rstd: Any,
    shape: tuple[int, ...],
    eps: float,
) -> tuple[Any, ...]:
    xp = nd.xp
    rows = _matrix(xp, input, shape)
    gradient = _matrix(xp, g, shape)
    if compiled(xp, rows):
        to_input, to_weight, to_bias = kernels.layer_norm_backward(
            gradient, rows, mean, rstd, flattened(xp, weight, rows.dtype)
        )
    else:
        normalised = (rows - mean[:, None]) * rstd[:, None]
        scaled = gradient if weight is None else gradient * flattened(xp, weight, rows.dtype)
        to_input = rstd[:, None] * (
            scaled - scaled.mean(axis=1)[:, None] - normalised * (scaled * normalised).mean(axis=1)[:, None]
        )
        to_weight, to_bias = (gradient * normalised).sum(axis=0), gradient.sum(axis=0)
    return _shaped(to_input, input.shape), _shaped(to_weight, shape), _shaped(to_bias, shape)


LAYER_NORM = define(
    "layer_norm",
    rule=_layer_norm_rule,
    forward=_layer_norm,
    backward=_layer_norm_backward,
    inputs="input weight bias",
    attributes="shape eps",
    residuals="mean rstd",
)


@heard
def layer_norm(
    input: Tensor,
    normalized_shape: tuple[int, ...],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """(x - mean) / sqrt(var + eps) * weight + bias over the last axes, which must have `normalized_shape`.

    Raises: RuntimeError for shapes that do not fit.
    """
    return apply(LAYER_NORM, (input, optional(weight), optional(bias)), (tuple(normalized_shape), eps))


# --- without a mean ---------------------------------------------------------------------------------------------------


def _rms_norm_rule(input: Spec, weight: Spec | None, shape: tuple[int, ...], eps: float) -> Spec:
    _check("rms_norm", input, shape, weight=weight)
    return formatted(input, input.shape, suggested_format(input))


def _rms_norm(xp: ModuleType, input: Array, weight: Array, shape: tuple[int, ...], eps: float) -> tuple[Array, Array]:
    rows = _matrix(xp, input, shape)
    rstd = 1 / xp.sqrt(xp.einsum("ij,ij->i", rows, rows) / rows.dtype.type(rows.shape[1]) + rows.dtype.type(eps))
    out = rows * rstd[:, None]
    if weight is not None:
        out *= flattened(xp, weight, rows.dtype)
    return out.reshape(input.shape).astype(input.dtype, copy=False), rstd


def _rms_norm_backward_composed(g: Any, input: Any, weight: Any, shape: tuple[int, ...], eps: float) -> tuple[Any, ...]:
    dims = tuple(range(input.ndim - len(shape), input.ndim))
    outer = tuple(range(input.ndim - len(shape)))
    rstd = ((input * input).mean(dims, keepdim=True) + eps) ** -0.5
    normalised = input * rstd
    scaled = g if weight is None else g * weight
    product = g * normalised
    to_input = rstd * (scaled - normalised * (scaled * normalised).mean(dims, keepdim=True))
    return to_input, product.sum(outer) if outer else product


@implements(_rms_norm_backward_composed)
def _rms_norm_backward(
    g: Any, nd: Any, needs: Any, input: Any, weight: Any, rstd: Any, shape: tuple[int, ...], eps: float
) -> tuple[Any, ...]:
    xp = nd.xp
    rows, gradient = _matrix(xp, input, shape), _matrix(xp, g, shape)
    normalised = rows * rstd[:, None]
    scaled = gradient if weight is None else gradient * flattened(xp, weight, rows.dtype)
    share = xp.einsum("ij,ij->i", scaled, normalised) / rows.dtype.type(rows.shape[1])
    to_input = (scaled - normalised * share[:, None]) * rstd[:, None]
    to_weight = xp.einsum("ij,ij->j", gradient, normalised) if needs[1] else None
    return _shaped(to_input, input.shape), None if to_weight is None else _shaped(to_weight, shape)


RMS_NORM = define(
    "rms_norm",
    rule=_rms_norm_rule,
    forward=_rms_norm,
    backward=_rms_norm_backward,
    inputs="input weight",
    attributes="shape eps",
    residuals="rstd",
)


@heard
def rms_norm(
    input: Tensor, normalized_shape: tuple[int, ...], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last axes; eps defaults to the dtype's machine epsilon.

    Raises: RuntimeError for shapes that do not fit.
    """
    require_floating("rms_norm", input._spec)
    if eps is None:
        eps = finfo(input.dtype).eps
    return apply(RMS_NORM, (input, optional(weight)), (tuple(normalized_shape), eps))


# --- on a GPU ---------------------------------------------------------------------------------------------------------


@cache
def _kernels() -> Any:
    from engine.ops.norm.cuda import layer_norm  # no part of import engine, which it makes slower

    return layer_norm


def _rows(xp: ModuleType, array: Array, shape: tuple[int, ...], kind: Any) -> Array:
    """(M, N) row-major in the dtype `kind`, N the size of `shape`."""
    if array.ndim == 2 and len(shape) == 1 and array.dtype == kind and array.flags.c_contiguous:
        return array
    return row_major(xp, array, kind, (_leading(array, shape), prod(shape)))


def _vectors(xp: ModuleType, like: Array, *vectors: Array) -> list[Array]:
    """Weight and bias (N,) in one dtype, which the kernels ask for: the rows', or float32 beside half precision."""
    single = like.dtype.itemsize == 2 and any(one is not None and one.dtype.itemsize > 2 for one in vectors)
    return [flattened(xp, one, xp.float32 if single else like.dtype) for one in vectors]


def _all_shaped(gradients: tuple[Array, ...], input: Array, shape: tuple[int, ...]) -> tuple[Array, ...]:
    """Gradients of rows and vectors in the shapes of input and parameters."""
    shapes = (input.shape, shape, shape)
    pairs = zip(gradients, shapes, strict=False)
    return tuple(None if each is None else _shaped(each, its) for each, its in pairs)


@LAYER_NORM.kernel("cuda")
def _layer_norm_cuda(
    xp: ModuleType, input: Array, weight: Array, bias: Array, shape: tuple[int, ...], eps: float
) -> tuple[Array, Array, Array]:
    if not served(input, weight, bias):
        return _layer_norm(xp, input, weight, bias, shape, eps)
    norm = _kernels()
    rows = _rows(xp, input, shape, input.dtype)
    weight, bias = _vectors(xp, input, weight, bias)
    out, mean, rstd = norm.layer_norm_forward(rows, weight, bias, eps)
    return out if out.shape == input.shape else out.reshape(input.shape), mean, rstd


@LAYER_NORM.plans_for("cuda")
def _layer_norm_planned(plan: Plan) -> Callable[..., Any] | None:
    """Of row-major operands, which are read as they lie."""
    input, *given = plan.input_specs
    shape, eps = plan.attributes
    vectors = [spec for spec in given if spec is not None]
    kind = vectors[0].dtype if vectors else input.dtype
    beside = kind is input.dtype or (input.dtype.itemsize == 2 and kind is float32)
    if not (input.numel and beside and has_kernels(input.dtype.numpy)):
        return None
    if not (input.contiguous and all(spec.contiguous and spec.dtype is kind for spec in vectors)):
        return None
    made: Callable[..., Any] = _kernels().planned_forward(
        tuple(input.shape), prod(shape), input.dtype.numpy, kind.numpy, eps
    )
    return made


def _layer_norm_backward_cuda(
    g: Any, nd: Any, needs: Any, input: Any, weight: Any, mean: Any, rstd: Any, shape: tuple[int, ...], eps: float
) -> tuple[Any, ...]:
    norm = _kernels()
    rows, gradient = (_rows(nd.xp, array, shape, input.dtype) for array in (input, g))
    (weight,) = _vectors(nd.xp, input, weight)
    found = norm.layer_norm_backward(gradient, rows, mean, rstd, weight, needs)
    return _all_shaped(found, input, shape)


LAYER_NORM.derivative("cuda", on_arrays(_layer_norm_backward, _layer_norm_backward_cuda))


@RMS_NORM.kernel("cuda")
def _rms_norm_cuda(
    xp: ModuleType, input: Array, weight: Array, shape: tuple[int, ...], eps: float
) -> tuple[Array, Array]:
    if not served(input, weight):
        return _rms_norm(xp, input, weight, shape, eps)
    norm = _kernels()
    rows = _rows(xp, input, shape, input.dtype)
    (weight,) = _vectors(xp, input, weight)
    out, rstd = norm.rms_norm_forward(rows, weight, eps)
    return out.reshape(input.shape), rstd


def _rms_norm_backward_cuda(
    g: Any, nd: Any, needs: Any, input: Any, weight: Any, rstd: Any, shape: tuple[int, ...], eps: float
) -> tuple[Any, ...]:
    norm = _kernels()
    rows, gradient = (_rows(nd.xp, array, shape, input.dtype) for array in (input, g))
    (weight,) = _vectors(nd.xp, input, weight)
    found = norm.rms_norm_backward(gradient, rows, rstd, weight, needs)
    return _all_shaped(found, input, shape)


RMS_NORM.derivative("cuda", on_arrays(_rms_norm_backward, _rms_norm_backward_cuda))
