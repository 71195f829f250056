"""Attention on a GPU by the fused kernels of `engine.ops.attention.cuda`, or by cuDNN where that is installed and
serves (`engine.ops.attention.cudnn`): no array of all scores is made.

The arrays are those of `engine.ops.attention.operator`, with the attributes of its operator; `kept` is where dropout
draws from, two 64-bit numbers in device memory, and not a mask. What the kernels do not serve (float64, rows of more
than 256 elements, no elements) is computed by the formulas for any array module.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from engine.calls.plan import Plan
from engine.kernels.cuda.launch import gpu_in_use
from engine.memory import backend
from engine.memory.guard import on_gpu
from engine.ops.attention import cuda as kernels
from engine.ops.attention import cudnn
from engine.ops.attention.cuda import serves as serves
from engine.ops.attention.results import like_query
from engine.random import generator_of
from engine.rules import layout
from engine.rules import precision as settings

Array = Any


def draws(where: Any) -> Array:
    """Where one call's dropout draws from: int64 (2,) on the device."""
    return kernels.draw(generator_of(where, None).draw(1)).view(np.int64)


def keep_mask(kept: Array, query: Array, key: Array, value: Array, kept_scale: float) -> Array:
    """The bool mask of dropout in whole, in the scores' shape; None for None."""
    if kept is None:
        return None
    batch = layout.broadcast_shapes(tuple(query.shape[:-2]), tuple(key.shape[:-2]), tuple(value.shape[:-2]))
    return kernels.keep_mask(kept, (*batch, query.shape[-2], key.shape[-2]), kept_scale)


def planned(plan: Plan) -> Callable[..., tuple[Array, Array, None]] | None:
    """`forward` for one plan of the operator; None where operands are copied or the formulas serve."""
    query, key, value, mask, kept = plan.input_specs
    with on_gpu(plan.out.device.index):
        shapes = tuple([tuple(spec.shape) for spec in (query, key, value)])
        if not kernels.serves_shapes(query.dtype.numpy, shapes, gpu_in_use()):
            return None
    own = kernels.planned_forward(query, key, value, mask, plan.out, kept is not None, *plan.attributes)
    causal, scale, _ = plan.attributes
    library = cudnn.planned(query, key, value, plan.out, causal, scale)
    if own is None or library is None or mask is not None or kept is not None:
        return own

    def run(query: Array, key: Array, value: Array, mask: None, kept: None) -> tuple[Array, Array, None]:
        return library(query, key, value) or own(query, key, value, mask, kept)

    return run


def forward(
    query: Array, key: Array, value: Array, mask: Array, kept: Array, causal: bool, scale: float, kept_scale: float
) -> tuple[Array, Array, None]:
    """The result and the memory of the logarithms of the rows' sums; of arrays that it `serves`."""
    batch = layout.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    out = like_query(backend.device_empty, query, (*batch, query.shape[-2], value.shape[-1]), kept)
    flat = _few_axes(out, batch)
    log_sums = kernels.forward(
        _few_axes(query, batch),
        _few_axes(key, batch),
        _few_axes(value, batch),
        _few_axes(mask, batch),
        kept,
        flat,
        causal,
        scale,
        kept_scale,
        settings.matmul.allow_tf32,
    )
    return flat.reshape(out.shape) if flat.ndim < out.ndim else out, log_sums.data, None


def slopes(
    g: Array,
    query: Array,
    key: Array,
    value: Array,
    mask: Array,
    kept: Array,
    causal: bool,
    scale: float,
    kept_scale: float,
    out: Array,
    log_sums: Any,
) -> list[Array]:
    """The gradients of query, key and value; None for the masks. log_sums: the memory that `forward` gave."""
    batch = out.shape[:-2]
    flat = _few_axes(out, batch)
    found = kernels.backward(
        _few_axes(g, batch),
        _few_axes(query, batch),
        _few_axes(key, batch),
        _few_axes(value, batch),
        _few_axes(mask, batch),
        kept,
        flat,
        backend.device_empty(flat.shape[:-1], np.dtype(np.float32), log_sums),
        causal,
        scale,
        kept_scale,
        settings.matmul.allow_tf32,
    )
    if len(batch) > 3:
        found = tuple(each.reshape(*batch[:-1], *each.shape[-3:]) for each in found)
    return [*found, None, None]


def _few_axes(array: Array, batch: tuple[int, ...]) -> Array:
    """The array with at most three leading axes."""
    if array is None or len(batch) <= 3:
        return array
    rows = (array.shape[-2] if array.ndim > 1 else 1, array.shape[-1])
    whole = backend.require_cupy().broadcast_to(array, (*batch, *rows))
    return whole.reshape(-1, *batch[-2:], *rows)
