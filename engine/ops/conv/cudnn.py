"""Convolution by cuDNN, where it is installed and switched on (`engine.backends.cudnn.enabled`): float32 and the half
types. The arrays are those of `engine.ops.conv.cuda`.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from engine.kernels.cuda.launch import gpu_in_use
from engine.kernels.cuda.rows import aligned
from engine.memory import cudnn
from engine.ops.shared.windows import Axes, ConvWindow

Array = Any
Layout = tuple[Axes, Axes]  # shape, strides in bytes


def convolve(
    source: Array, weight: Array, bias: Array | None, out: Array, window: ConvWindow, adjoint: bool, tf32: bool
) -> bool:
    """Fills `out` from a source, or with `adjoint` from the gradient of a result; False where other kernels have to."""
    if not _run("conv_dgrad" if adjoint else "conv_fprop", (source, weight, out), window, tf32):
        return False
    if bias is not None:
        out += bias.reshape(-1, *[1] * (out.ndim - 2))
    return True


def weight_gradient(gradient: Array, source: Array, out: Array, window: ConvWindow, tf32: bool) -> bool:
    """Fills `out` with the gradient of the weight; False where other kernels have to."""
    return _run("conv_wgrad", (source, gradient, out), window, tf32)


def _run(name: str, arrays: Sequence[Array], window: ConvWindow, tf32: bool) -> bool:
    if not cudnn.serves() or not aligned(*arrays):
        return False
    layouts = tuple([(each.shape, each.strides) for each in arrays])
    operation = _operation(name, layouts, arrays[0].dtype, window, tf32, gpu_in_use())
    if operation is None:
        return False
    operation(*arrays)
    return True


@lru_cache(4096)
def _operation(
    name: str, layouts: tuple[Layout, ...], dtype: np.dtype, window: ConvWindow, tf32: bool, gpu: int
) -> Any:
    if cudnn.data_type(dtype) is None or any(step <= 0 for _, strides in layouts for step in strides):
        return None
    if len(window.stride) == 1:
        window, layouts = window.in_two_dimensions(), tuple(map(_in_two_dimensions, layouts))
    names = {"conv_fprop": ("image", "weight"), "conv_dgrad": ("loss", "filter"), "conv_wgrad": ("image", "loss")}[name]

    def describe(module: Any, graph: Any) -> list[Any]:
        given = [cudnn.described(graph, *each, dtype.itemsize) for each in layouts[:2]]
        result = getattr(graph, name)(
            **dict(zip(names, given, strict=True)),
            padding=list(window.padding),
            stride=list(window.stride),
            dilation=list(window.dilation),
        )
        return [*given, cudnn.delivered(result, *layouts[2], dtype.itemsize, cudnn.data_type(dtype))]

    return cudnn.build(describe, dtype, dtype.name == "float32" and not tf32)


def _in_two_dimensions(layout: Layout) -> Layout:
    """(N, C, L) as (N, C, 1, L)."""
    shape, strides = layout
    return (*shape[:2], 1, shape[2]), (*strides[:2], shape[2] * strides[2], strides[2])
