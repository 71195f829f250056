"""Group normalisation: the channels of each sample in groups, each normalised by its own statistics.

The result carries the input's memory format on. Statistics of half precision inputs are taken in float32.
Source: torch.nn.functional.group_norm; aten/src/ATen/native/group_norm.cpp; Wu and He (2018).
"""

from math import prod
from types import ModuleType
from typing import Any

import numpy as np

from engine.calls.derivative import implements
from engine.calls.dispatch import apply
from engine.calls.listening import heard
from engine.calls.operator import define
from engine.ops.norm.batch_norm import statistics_dtype, work_dtype
from engine.ops.norm.kernels import group_norm as kernels
from engine.ops.shared.fused import flattened, on_arrays, served
from engine.ops.shared.operands import optional, require_floating
from engine.ops.shared.windows import (
    channels_first,
    channels_last,
    compiled,
    formatted,
    lies_channels_last,
    suggested_format,
)
from engine.rules.spec import Spec
from engine.tensor import Tensor

Array = Any


def _rule(input: Spec, weight: Spec | None, bias: Spec | None, groups: int, eps: float) -> Spec:
    require_floating("group_norm", input)
    if input.ndim < 2:
        raise RuntimeError(f"group_norm: Expected at least 2 dimensions for input tensor but received {input.ndim}")
    if groups <= 0 or input.shape[1] % groups:
        raise RuntimeError(
            "group_norm: Expected number of channels in input to be divisible by num_groups, but got input of shape "
            f"{list(input.shape)} and num_groups={groups}"
        )
    for spec, name in ((weight, "weight"), (bias, "bias")):
        if spec is not None and spec.shape != (input.shape[1],):
            raise RuntimeError(
                f"group_norm: Expected {name} to be a vector of size equal to the number of channels in input, but "
                f"got {name} "
                f"of shape {list(spec.shape)} and input of shape {list(input.shape)}"
            )
    return formatted(input, input.shape, suggested_format(input))


def _split(xp: ModuleType, array: Array, groups: int, as_channels_last: bool) -> Array:
    """(N, C, d...) as (N, G, C / G, L): a view of the array, or of a copy in the layout asked for."""
    batch, channels = array.shape[:2]
    pixels = prod(array.shape[2:])
    if as_channels_last:
        rows = xp.ascontiguousarray(channels_last(work_dtype(xp, array)))
        return rows.reshape(batch, pixels, groups, channels // groups).transpose(0, 2, 3, 1)
    return xp.ascontiguousarray(work_dtype(xp, array)).reshape(batch, groups, channels // groups, pixels)


def _joined(array: Array, shape: tuple[int, ...], as_channels_last: bool) -> Array:
    """What `_split` gave, as (N, C, d...) again; a view."""
    if as_channels_last:
        return channels_first(array.transpose(0, 3, 1, 2).reshape(shape[0], *shape[2:], shape[1]))
    return array.reshape(shape)


def _vector(xp: ModuleType, vector: Array, like: Array) -> Array:
    """(C,) as (1, G, C / G, 1) in the dtype of the computation."""
    return xp.ascontiguousarray(vector, dtype=like.dtype).reshape(1, *like.shape[1:3], 1)


def _group_norm(
    xp: ModuleType, input: Array, weight: Array, bias: Array, groups: int, eps: float
) -> tuple[Array, Array, Array]:
    as_channels_last = lies_channels_last(input)
    if compiled(xp, input) and input.size:
        return _compiled_forward(input, weight, bias, groups, eps, as_channels_last)
    split = _split(xp, input, groups, as_channels_last)
    mean = split.mean(axis=(2, 3))
    out = split - mean[:, :, None, None]
    rstd = 1 / xp.sqrt((out * out).mean(axis=(2, 3)) + split.dtype.type(eps))
    out *= rstd[:, :, None, None]
    if weight is not None:
        out *= _vector(xp, weight, split)
    if bias is not None:
        out += _vector(xp, bias, split)
    return _joined(out, input.shape, as_channels_last).astype(input.dtype, copy=False), mean, rstd


def _backward_composed(g: Any, needs: Any, input: Any, weight: Any, groups: int, eps: float) -> tuple[Any, ...]:
    """The same on Tensors, from the inputs alone."""
    batch, channels = input.shape[:2]
    shape = (batch, groups, channels // groups, prod(input.shape[2:]))
    split, gradient = input.reshape(shape), g.reshape(shape)
    centred = split - split.mean((2, 3), keepdim=True)
    rstd = ((centred * centred).mean((2, 3), keepdim=True) + eps) ** -0.5
    normalised = centred * rstd
    scaled = gradient if weight is None else gradient * weight.reshape(1, groups, -1, 1)
    share = (scaled * normalised).mean((2, 3), keepdim=True)
    to_input = (scaled - scaled.mean((2, 3), keepdim=True) - normalised * share) * rstd
    to_weight = (gradient * normalised).sum((0, 3)).reshape(-1) if needs[1] else None
    return to_input.reshape(input.shape), to_weight, gradient.sum((0, 3)).reshape(-1) if needs[2] else None


@implements(_backward_composed)
def _backward(
    g: Any, nd: Any, needs: Any, input: Any, weight: Any, mean: Any, rstd: Any, groups: int, eps: float
) -> tuple[Any, ...]:
    xp = nd.xp
    as_channels_last = lies_channels_last(input)
    if compiled(xp, input) and input.size and g.dtype == input.dtype:
        return _compiled_backward(g, input, weight, mean, rstd, as_channels_last)
    split, gradient = (_split(xp, array, groups, as_channels_last) for array in (input, g))
    normalised = (split - mean[:, :, None, None]) * rstd[:, :, None, None]
    to_input = to_weight = to_bias = None
    if needs[1]:
        to_weight = (gradient * normalised).sum(axis=(0, 3)).reshape(-1)
    if needs[2]:
        to_bias = gradient.sum(axis=(0, 3)).reshape(-1)
    if needs[0]:
        scaled = gradient if weight is None else gradient * _vector(xp, weight, split)
        share = (scaled * normalised).mean(axis=(2, 3), keepdims=True)
        to_input = scaled - scaled.mean(axis=(2, 3), keepdims=True) - normalised * share
        to_input = _joined(to_input * rstd[:, :, None, None], input.shape, as_channels_last)
    return to_input, to_weight, to_bias


# --- CPU --------------------------------------------------------------------------------------------------------------


def _sample_rows(array: Array, as_channels_last: bool) -> Array:
    """(N, C, d...) as the kernels take it: (N, L, C) or (N, C, L)."""
    if as_channels_last:
        return np.ascontiguousarray(channels_last(array)).reshape(array.shape[0], -1, array.shape[1])
    return np.ascontiguousarray(array).reshape(*array.shape[:2], -1)


def _image(rows: Array, shape: tuple[int, ...], as_channels_last: bool) -> Array:
    if as_channels_last:
        return channels_first(rows.reshape(shape[0], *shape[2:], shape[1]))
    return rows.reshape(shape)


def _compiled_forward(
    input: Array, weight: Array, bias: Array, groups: int, eps: float, as_channels_last: bool
) -> tuple[Array, Array, Array]:
    weight, bias = (None if one is None else np.ascontiguousarray(one, dtype=input.dtype) for one in (weight, bias))
    rows = _sample_rows(input, as_channels_last)
    out, mean, rstd = kernels.forward(rows, weight, bias, groups, eps, as_channels_last)
    return _image(out, input.shape, as_channels_last), mean, rstd


def _compiled_backward(
    g: Array, input: Array, weight: Array, mean: Array, rstd: Array, as_channels_last: bool
) -> tuple[Array, Array, Array]:
    rows, slopes = (_sample_rows(array, as_channels_last) for array in (input, g))
    factors = None if weight is None else np.ascontiguousarray(weight, dtype=input.dtype)
    of_image, of_weight, of_bias = kernels.backward(slopes, rows, mean, rstd, factors, as_channels_last)
    return _image(of_image, input.shape, as_channels_last), of_weight, of_bias


# --- the operator -----------------------------------------------------------------------------------------------------


GROUP_NORM = define(
    "group_norm",
    rule=_rule,
    forward=_group_norm,
    backward=_backward,
    inputs="input weight bias",
    attributes="groups eps",
    residuals="mean rstd",
)


@heard
def group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Normalises each of `num_groups` groups of channels of each sample of (N, C, d...); weight and bias (C,).

    Raises: RuntimeError if the groups do not divide the channels.
    """
    return apply(GROUP_NORM, (input, optional(weight), optional(bias)), (num_groups, eps))


# --- on a GPU ---------------------------------------------------------------------------------------------------------


def _parts(xp: ModuleType, array: Array, as_channels_last: bool, kind: Any) -> Array:
    """(N, C, d...) as rows (N d..., C) or planes (N, C, L), row-major."""
    if as_channels_last:
        return xp.ascontiguousarray(channels_last(array), dtype=kind).reshape(-1, array.shape[1])
    return xp.ascontiguousarray(array, dtype=kind).reshape(*array.shape[:2], -1)


@GROUP_NORM.kernel("cuda")
def _group_norm_cuda(
    xp: ModuleType, input: Array, weight: Array, bias: Array, groups: int, eps: float
) -> tuple[Array, Array, Array]:
    if not input.size or not served(input, weight, bias):
        return _group_norm(xp, input, weight, bias, groups, eps)
    from engine.ops.norm.cuda import batch_norm

    as_channels_last = lies_channels_last(input)
    kind = statistics_dtype(xp, input)
    image = _parts(xp, input, as_channels_last, input.dtype)
    weight, bias = flattened(xp, weight, kind), flattened(xp, bias, kind)
    out, mean, rstd = batch_norm.group_norm_forward(image, input.shape[0], weight, bias, groups, eps)
    return _image(out, input.shape, as_channels_last), mean, rstd


def _backward_cuda(
    g: Any, nd: Any, needs: Any, input: Any, weight: Any, mean: Any, rstd: Any, groups: int, eps: float
) -> tuple[Any, ...]:
    if not input.size:
        return _backward(g, nd, needs, input, weight, mean, rstd, groups, eps)
    from engine.ops.norm.cuda import batch_norm

    as_channels_last = lies_channels_last(input)
    image, gradient = (_parts(nd.xp, array, as_channels_last, input.dtype) for array in (input, g))
    weight = flattened(nd.xp, weight, mean.dtype)
    to_input, to_weight, to_bias = batch_norm.group_norm_backward(gradient, image, mean, rstd, weight, needs)
    if to_input is not None:
        to_input = _image(to_input, input.shape, as_channels_last)
    return to_input, to_weight, to_bias


GROUP_NORM.derivative("cuda", on_arrays(_backward, _backward_cuda))
