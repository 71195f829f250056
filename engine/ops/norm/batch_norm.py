"""Batch normalisation, forward and backward, by the compiled kernels of engine.ops.norm.kernels.batch_norm on the CPU.

The result carries the input's memory format on. Statistics of half precision inputs are taken in float32.
Source: torch.nn.functional.batch_norm; aten/src/ATen/native/Normalization.cpp; Ioffe and Szegedy (2015).
"""

from math import prod
from types import ModuleType
from typing import Any

from engine.calls.derivative import implements
from engine.calls.dispatch import apply
from engine.calls.listening import heard
from engine.calls.operands import Scalar
from engine.calls.operator import define
from engine.ops.norm.kernels import batch_norm as kernels
from engine.ops.shared.fused import flattened, on_arrays, served
from engine.ops.shared.operands import optional, require_floating
from engine.ops.shared.windows import channels_first, channels_last, compiled, formatted, suggested_format
from engine.rules import layout
from engine.rules.layout import contiguous_format
from engine.rules.spec import Spec
from engine.tensor import Tensor

Array = Any


# --- batch norm: checks -----------------------------------------------------------------------------------------------


def _check_channels(input: Spec, **vectors: Spec | None) -> None:
    if input.ndim < 2:
        raise RuntimeError(
            f"batch_norm: expected an input of at least 2 dimensions (N, C, ...), got {list(input.shape)}"
        )
    require_floating("batch_norm", input)
    for name, spec in vectors.items():
        if spec is not None and spec.shape != (input.shape[1],):
            raise RuntimeError(
                f"batch_norm: {name} should contain {input.shape[1]} elements not {spec.numel}: input "
                f"{list(input.shape)}, "
                f"{name} {list(spec.shape)}"
            )


def _batch_norm_rule(
    input: Spec,
    weight: Spec | None,
    bias: Spec | None,
    running_mean: Spec | None,
    running_var: Spec | None,
    momentum: Spec | None,
    eps: float,
) -> Spec:
    _check_channels(input, weight=weight, bias=bias, running_mean=running_mean, running_var=running_var)
    return _format_of(input)


def _inference_rule(
    input: Spec, weight: Spec | None, bias: Spec | None, running_mean: Spec, running_var: Spec, eps: float
) -> Spec:
    _check_channels(input, weight=weight, bias=bias, running_mean=running_mean, running_var=running_var)
    return _format_of(input)


def _format_of(input: Spec) -> Spec:
    """The input's memory format; channels-last also where that is certain by strides of axes of size > 1 alone."""
    found = suggested_format(input)
    if found is contiguous_format and not input.contiguous and input.ndim in (4, 5):
        last = layout.channels_last if input.ndim == 4 else layout.channels_last_3d
        if layout.is_contiguous(input.shape, input.stride, last):
            found = last
    return formatted(input, input.shape, found)


# --- batch norm: the image as the kernels want it ---------------------------------------------------------------------


def _as_rows(xp: ModuleType, array: Array) -> Array:
    """(M, C) if the array is channels-last in memory, otherwise (N, C, L); a copy where it is neither."""
    if array.ndim > 2 and not array.flags.c_contiguous:
        rows = channels_last(array)
        if rows.flags.c_contiguous:
            return rows.reshape(prod(rows.shape[:-1]), rows.shape[-1])
    if array.ndim == 2:
        return xp.ascontiguousarray(array)
    return xp.ascontiguousarray(array).reshape(*array.shape[:2], prod(array.shape[2:]))


def _like_rows(xp: ModuleType, array: Array, rows: Array) -> Array:
    """`array` brought into the form that `_as_rows` gave another array of its shape."""
    if rows.ndim == 2 and array.ndim > 2:
        return xp.ascontiguousarray(channels_last(array)).reshape(rows.shape)
    return xp.ascontiguousarray(array).reshape(rows.shape)


def _back(rows: Array, shape: tuple[int, ...]) -> Array:
    """The image of `shape` (N, C, d...) that `_as_rows` turned into rows."""
    if rows.shape == shape:
        return rows
    if rows.ndim == 2 and len(shape) > 2:
        return channels_first(rows.reshape(shape[0], *shape[2:], shape[1]))
    return rows.reshape(shape)


def work_dtype(xp: ModuleType, array: Array) -> Array:
    return array.astype(xp.float32) if array.dtype.itemsize < 4 else array


def _moments(xp: ModuleType, rows: Array) -> tuple[Array, Array]:
    """Mean and biased variance (C,) of every channel."""
    if compiled(xp, rows):
        return kernels.moments(rows)
    axes = (0,) if rows.ndim == 2 else (0, 2)
    return rows.mean(axis=axes), rows.var(axis=axes)


def _normalise(xp: ModuleType, rows: Array, mean: Array, rstd: Array, weight: Array, bias: Array) -> Array:
    if compiled(xp, rows):
        return kernels.normalise(rows, mean, rstd, weight, bias)
    shape = (-1,) if rows.ndim == 2 else (-1, 1)
    result = (rows - mean.reshape(shape)) * (rstd if weight is None else rstd * weight).reshape(shape)
    return result if bias is None else result + bias.reshape(shape)


def _batch_norm(
    xp: ModuleType,
    input: Array,
    weight: Array,
    bias: Array,
    running_mean: Array,
    running_var: Array,
    momentum: float,
    eps: float,
) -> tuple[Array, Array, Array]:
    """Normalises by the batch's statistics and moves the running ones towards them, in place; a batch without elements
    has no statistics and moves nothing.
    """
    rows = _as_rows(xp, work_dtype(xp, input))
    if not rows.size:
        empty = xp.zeros(input.shape[1], rows.dtype)
        return input.copy(), empty, empty
    mean, variance = _moments(xp, rows)
    count = rows.size // rows.shape[1]
    rstd = _settled(xp, mean, variance, running_mean, running_var, momentum, count, eps)
    out = _normalise(xp, rows, mean, rstd, flattened(xp, weight, rows.dtype), flattened(xp, bias, rows.dtype))
    return _back(out, input.shape).astype(input.dtype, copy=False), mean, rstd


def _settled(
    xp: ModuleType,
    mean: Array,
    variance: Array,
    running_mean: Array,
    running_var: Array,
    momentum: float,
    count: int,
    eps: float,
) -> Array:
    """Reciprocal standard deviations (C,); the running statistics move towards the batch's, in place."""
    if compiled(xp, mean) and all(each is None or _is_like(each, mean) for each in (running_mean, running_var)):
        return kernels.settle(mean, variance, running_mean, running_var, momentum, count, eps)
    kept, of_mean, of_variance = kernels.shares(momentum, count)
    if running_mean is not None:
        running_mean *= kept
        running_mean += of_mean * mean
    if running_var is not None:
        running_var *= kept
        running_var += of_variance * variance
    return 1 / xp.sqrt(variance + variance.dtype.type(eps))


def _is_like(vector: Array, like: Array) -> bool:
    return vector.dtype == like.dtype and vector.flags.c_contiguous


def _inference(
    xp: ModuleType,
    input: Array,
    weight: Array,
    bias: Array,
    running_mean: Array,
    running_var: Array,
    eps: float,
) -> Array:
    rows = _as_rows(xp, work_dtype(xp, input))
    variance = flattened(xp, running_var, rows.dtype)
    rstd = 1 / xp.sqrt(variance + rows.dtype.type(eps))
    mean = flattened(xp, running_mean, rows.dtype)
    out = _normalise(xp, rows, mean, rstd, flattened(xp, weight, rows.dtype), flattened(xp, bias, rows.dtype))
    return _back(out, input.shape).astype(input.dtype, copy=False)


# --- batch norm: derivatives ------------------------------------------------------------------------------------------


def _spread(vector: Any, ndim: int) -> Any:
    """(C,) as (1, C, 1...)."""
    return vector.reshape((1, -1, *(1,) * (ndim - 2)))


def _channel_mean(value: Any) -> Any:
    axes = (0, *range(2, value.ndim))
    return value.mean(axes, keepdim=True)


def _channel_sum(value: Any) -> Any:
    return value.sum((0, *range(2, value.ndim)))


def _batch_norm_backward_composed(g: Any, needs: Any, input: Any, weight: Any, eps: float) -> tuple[Any, ...]:
    centred = input - _channel_mean(input)
    rstd = (_channel_mean(centred * centred) + eps) ** -0.5
    normalised = centred * rstd
    scaled = g if weight is None else g * _spread(weight, g.ndim)
    to_input = rstd * (scaled - _channel_mean(scaled) - normalised * _channel_mean(scaled * normalised))
    to_weight = _channel_sum(g * normalised) if needs[1] else None
    return to_input, to_weight, _channel_sum(g) if needs[2] else None, None, None, None


@implements(_batch_norm_backward_composed)
def _batch_norm_backward(
    g: Any, nd: Any, needs: Any, input: Any, weight: Any, mean: Any, rstd: Any, eps: float
) -> tuple[Any, ...]:
    xp = nd.xp
    rows = _as_rows(xp, work_dtype(xp, input))
    gradient = _like_rows(xp, work_dtype(xp, g), rows)
    total, projected = _gradient_sums(xp, gradient, rows, mean)
    to_input = None
    if needs[0]:
        to_input = _input_gradient(xp, gradient, rows, mean, rstd, flattened(xp, weight, rows.dtype), total, projected)
        to_input = _back(to_input, input.shape)
    return to_input, projected * rstd if needs[1] else None, total if needs[2] else None, None, None, None


def _gradient_sums(xp: ModuleType, gradient: Array, rows: Array, mean: Array) -> tuple[Array, Array]:
    if compiled(xp, rows):
        return kernels.gradient_sums(gradient, rows, mean)
    axes, shape = ((0,), (-1,)) if rows.ndim == 2 else ((0, 2), (-1, 1))
    return gradient.sum(axis=axes), (gradient * (rows - mean.reshape(shape))).sum(axis=axes)


def _input_gradient(
    xp: ModuleType,
    gradient: Array,
    rows: Array,
    mean: Array,
    rstd: Array,
    weight: Array,
    total: Array,
    projected: Array,
) -> Array:
    count = rows.size // max(rows.shape[1], 1)
    if compiled(xp, rows):
        return kernels.input_gradient(gradient, rows, mean, rstd, weight, total, projected, count)
    shape = (-1,) if rows.ndim == 2 else (-1, 1)
    scale = rstd if weight is None else rstd * weight
    slope = projected * rstd * rstd / count
    inner = gradient - (total / count).reshape(shape) - (rows - mean.reshape(shape)) * slope.reshape(shape)
    return inner * scale.reshape(shape)


def _inference_backward(
    g: Any, nd: Any, needs: Any, input: Any, weight: Any, running_mean: Any, running_var: Any, eps: float
) -> tuple[Any, ...]:
    ndim = g.ndim
    rstd = (running_var + eps) ** -0.5
    to_input = to_weight = None
    if needs[0]:
        to_input = g * _spread(rstd if weight is None else rstd * weight, ndim)
    if needs[1]:
        to_weight = _channel_sum(g * (input - _spread(running_mean, ndim)) * _spread(rstd, ndim))
    return to_input, to_weight, _channel_sum(g) if needs[2] else None, None, None


BATCH_NORM = define(
    "batch_norm_training",
    rule=_batch_norm_rule,
    forward=_batch_norm,
    backward=_batch_norm_backward,
    inputs="input weight bias running_mean running_var momentum",
    attributes="eps",
    residuals="mean rstd",
)
BATCH_NORM_INFERENCE = define(
    "batch_norm_inference",
    rule=_inference_rule,
    forward=_inference,
    backward=_inference_backward,
    inputs="input weight bias running_mean running_var",
    attributes="eps",
)


@heard
def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """(x - mean) / sqrt(var + eps) * weight + bias for each channel of (N, C, d...).

    In training by the batch's statistics (biased variance), and the running ones move by `momentum` towards them
    (unbiased variance) in place; otherwise by the running ones. Raises: RuntimeError for vectors that do not have C
    elements, or missing running statistics outside training.
    """
    if input.ndim == 1 and not input.numel():
        return input.clone()  # no channels and nothing to normalise
    if not training:
        if running_mean is None or running_var is None:
            raise RuntimeError(
                "batch_norm: Expected running_mean and running_var to be defined when training=False; "
                "pass them, or training=True to use the batch's own statistics"
            )
        inputs = (input, optional(weight), optional(bias), running_mean, running_var)
        return apply(BATCH_NORM_INFERENCE, inputs, (eps,))
    out = apply(
        BATCH_NORM,
        (input, optional(weight), optional(bias), optional(running_mean), optional(running_var), Scalar(momentum)),
        (eps,),
    )
    for statistics in (running_mean, running_var):
        if statistics is not None:
            statistics._bump_version("batch_norm")
    return out


# --- on a GPU ---------------------------------------------------------------------------------------------------------


def statistics_dtype(xp: ModuleType, array: Array) -> Any:
    """In which the kernels of engine.ops.norm.cuda.batch_norm keep statistics, weight and bias."""
    return xp.float32 if array.dtype.itemsize == 2 else array.dtype


@BATCH_NORM.kernel("cuda")
def _batch_norm_cuda(
    xp: ModuleType,
    input: Array,
    weight: Array,
    bias: Array,
    running_mean: Array,
    running_var: Array,
    momentum: float,
    eps: float,
) -> tuple[Array, Array, Array]:
    if not input.size or not served(input, weight, bias, running_mean, running_var):
        return _batch_norm(xp, input, weight, bias, running_mean, running_var, momentum, eps)
    from engine.ops.norm.cuda import batch_norm

    kind = statistics_dtype(xp, input)
    running = [running_mean, running_var]
    moving = [flattened(xp, each, kind) for each in running]
    weight, bias = flattened(xp, weight, kind), flattened(xp, bias, kind)
    out, mean, rstd = batch_norm.batch_norm_forward(
        _as_rows(xp, input), weight, bias, moving[0], moving[1], float(momentum), eps
    )
    for own, moved in zip(running, moving, strict=True):
        if moved is not own and own is not None:
            own[...] = moved
    return _back(out, input.shape), mean, rstd


def _batch_norm_backward_cuda(
    g: Any, nd: Any, needs: Any, input: Any, weight: Any, mean: Any, rstd: Any, eps: float
) -> tuple[Any, ...]:
    from engine.ops.norm.cuda import batch_norm

    rows = _as_rows(nd.xp, input)
    gradient = _like_rows(nd.xp, g.astype(input.dtype, copy=False), rows)
    weight = flattened(nd.xp, weight, mean.dtype)
    to_input, to_weight, to_bias = batch_norm.batch_norm_backward(gradient, rows, mean, rstd, weight, needs[0])
    if to_input is not None:
        to_input = _back(to_input, input.shape)
    return to_input, to_weight if needs[1] else None, to_bias if needs[2] else None, None, None, None


BATCH_NORM.derivative("cuda", on_arrays(_batch_norm_backward, _batch_norm_backward_cuda))


@BATCH_NORM_INFERENCE.kernel("cuda")
def _inference_cuda(
    xp: ModuleType, input: Array, weight: Array, bias: Array, running_mean: Array, running_var: Array, eps: float
) -> Array:
    if not served(input, weight, bias, running_mean, running_var):
        return _inference(xp, input, weight, bias, running_mean, running_var, eps)
    from engine.ops.norm.cuda import batch_norm

    kind = statistics_dtype(xp, input)
    weight, bias, mean, variance = (flattened(xp, each, kind) for each in (weight, bias, running_mean, running_var))
    rows = _as_rows(xp, input)
    out = batch_norm.normalised(rows, mean, batch_norm.rstd_of(variance, eps), weight, bias)
    return _back(out, input.shape)
