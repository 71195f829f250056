"""Attention by cuDNN, where it is installed and switched on: half precision without masks or dropout, every query with
keys of its own. What it keeps for backward is what the kernels of `engine.ops.attention.cuda` keep, so that either may
run the other's backward.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from engine.kernels.cuda.launch import gpu_in_use
from engine.kernels.cuda.rows import aligned
from engine.memory import backend, cudnn
from engine.rules.spec import Spec

Array = Any
Axes = tuple[int, ...]
Layout = tuple[Axes, Axes]  # shape, strides in bytes

_WIDEST = 128  # elements of a row, of all GPUs that it serves
_FLOAT32 = np.dtype(np.float32)


def planned(query: Spec, key: Spec, value: Spec, out: Spec, causal: bool, scale: float) -> Callable[..., Any] | None:
    """A function of query, key and value, laid out so, that returns the result and the memory of the rows' sums, or
    None where another kernel has to serve this time; None where one has to every time.
    """
    dtype, itemsize = query.dtype.numpy, query.dtype.itemsize
    if cudnn.frontend() is None or {each.dtype for each in (query, key, value)} != {out.dtype}:
        return None
    layouts = tuple([(tuple(each.shape), tuple(each.byte_strides)) for each in (query, key, value, out)])
    if not _serves(layouts, dtype.name, itemsize):
        return None
    empty, (sizes, axes), rows = backend.device_empty, out.allocation, tuple(out.shape[:-1])

    def run(query: Array, key: Array, value: Array) -> tuple[Array, Array, None] | None:
        if not (cudnn.attends and cudnn.serves()) or not aligned(query, key, value):
            return None
        operation = _forward(layouts, dtype, causal, scale, gpu_in_use())
        if operation is None:
            return None
        made = empty(sizes, dtype)
        if axes is not None:
            made = made.transpose(axes)
        log_sums = empty(rows, _FLOAT32)
        operation(query, key, value, made, log_sums)
        return made, log_sums.data, None

    return run


def backward(
    slope: Array,
    query: Array,
    key: Array,
    value: Array,
    out: Array,
    log_sums: Array,
    results: Sequence[Array],
    causal: bool,
    scale: float,
) -> bool:
    """Fills `results` with the gradients of query, key and value; False where another kernel has to."""
    if not (cudnn.attends and cudnn.serves()):
        return False
    given = (query, key, value, out, slope)
    layouts = tuple([(each.shape, each.strides) for each in (*given, *results)])
    dtype = query.dtype
    if not (_serves(layouts, dtype.name, dtype.itemsize) and aligned(*given, *results)):
        return False
    operation = _backward(layouts, dtype, causal, scale, gpu_in_use())
    if operation is None:
        return False
    operation(*given, log_sums, *results)
    return True


def _serves(layouts: Sequence[Layout], dtype: str, itemsize: int) -> bool:
    batch = layouts[3][0][:-2]
    return (
        dtype in ("float16", "bfloat16")
        and len(batch) <= 2
        and all(
            shape[:-2] == batch
            and 0 < shape[-1] <= _WIDEST
            and shape[-1] * itemsize % cudnn.ALIGNMENT == 0
            and strides[-1] == itemsize
            and all(step % cudnn.ALIGNMENT == 0 and step > 0 for step in strides[:-1])
            and 0 not in shape
            for shape, strides in layouts
        )
    )


def _in_four_axes(layout: Layout) -> Layout:
    shape, strides = layout
    missing = 4 - len(shape)
    return (1,) * missing + shape, (shape[0] * strides[0],) * missing + strides


def _of_log_sums(out: Layout) -> Layout:
    batch, heads, rows, _ = out[0]
    return (batch, heads, rows, 1), tuple(_FLOAT32.itemsize * step for step in (heads * rows, rows, 1, 1))


@lru_cache(4096)
def _forward(layouts: tuple[Layout, ...], dtype: np.dtype, causal: bool, scale: float, gpu: int) -> Any:
    *given, out = map(_in_four_axes, layouts)

    def describe(module: Any, graph: Any) -> list[Any]:
        query, key, value = (cudnn.described(graph, *each, dtype.itemsize) for each in given)
        result, log_sums = graph.sdpa(
            q=query, k=key, v=value, generate_stats=True, attn_scale=scale, use_causal_mask=causal
        )
        cudnn.delivered(result, *out, dtype.itemsize, cudnn.data_type(dtype))
        cudnn.delivered(log_sums, *_of_log_sums(out), _FLOAT32.itemsize, module.data_type.FLOAT)
        return [query, key, value, result, log_sums]

    return cudnn.build(describe, dtype, False)


@lru_cache(4096)
def _backward(layouts: tuple[Layout, ...], dtype: np.dtype, causal: bool, scale: float, gpu: int) -> Any:
    places = list(map(_in_four_axes, layouts))

    def describe(module: Any, graph: Any) -> list[Any]:
        query, key, value, out, slope = (cudnn.described(graph, *each, dtype.itemsize) for each in places[:5])
        log_sums = cudnn.described(graph, *_of_log_sums(places[3]), _FLOAT32.itemsize)
        log_sums.set_data_type(module.data_type.FLOAT)
        results = graph.sdpa_backward(
            q=query, k=key, v=value, o=out, dO=slope, stats=log_sums, attn_scale=scale, use_causal_mask=causal,
            use_deterministic_algorithm=True,
        )  # fmt: skip
        for result, place in zip(results, places[5:], strict=True):
            cudnn.delivered(result, *place, dtype.itemsize, cudnn.data_type(dtype))
        return [query, key, value, out, slope, log_sums, *results]

    return cudnn.build(describe, dtype, False)
