"""Arithmetic on the CPU with an operand that repeats along axes of the other: where a compiled kernel is faster than
NumPy, whose loops begin anew with every line.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np

from engine.calls.plan import Plan
from engine.kernels.jit import DTYPES
from engine.memory import backend
from engine.ops.pointwise import kernels
from engine.rules.iterator import aligned_strides
from engine.rules.layout import is_non_overlapping_and_dense
from engine.rules.spec import Spec

Array = Any
Axes = tuple[int, ...]

_MANY = 1 << 16  # elements; below, a call costs as much as NumPy
_FIRST = {
    "add": kernels.ADD,
    "subtract": kernels.SUBTRACT,
    "multiply": kernels.MULTIPLY,
    "true_divide": kernels.DIVIDE,
}
_SECOND = _FIRST | {"subtract": kernels.SUBTRACTED, "true_divide": kernels.DIVIDED}


def planned(function: str, plan: Plan) -> Callable[..., Any] | None:
    """The kernel for a plan in which one operand repeats along axes of the other; None for all others."""
    out, specs = plan.out, plan.input_specs
    if out is None or out.numel < _MANY or out.dtype.numpy.char not in DTYPES:
        return None
    if any(spec.number is not None or spec.dtype is not out.dtype for spec in specs):
        return None
    for place, which in enumerate((_FIRST[function], _SECOND[function])):
        whole, other = specs[place], specs[1 - place]
        if _lie_alike(whole, out) and (numbers := _lines(*whole.operand, *other.operand)) is not None:
            return partial(_run, which, place, numbers, out)
    return None


def _run(which: int, place: int, numbers: Array, spec: Spec, *arrays: Array) -> Array:
    out = backend.empty(spec)
    whole, other = (arrays[at].ravel("K") for at in (place, 1 - place))
    kernels.combine(which, whole, other, out.ravel("K"), numbers)
    return out


def times(whole: Array, other: Array) -> Array:
    """``whole * other`` of raw arrays, Tensors or numbers, by the kernel where both are arrays and `other` repeats."""
    numbers = _numbers(whole, other)
    return whole * other if numbers is None else _combined(kernels.MULTIPLY, whole, other, numbers)


def over(whole: Array, other: Array) -> Array:
    """``whole / other``, likewise."""
    numbers = _numbers(whole, other)
    return whole / other if numbers is None else _combined(kernels.DIVIDE, whole, other, numbers)


def _numbers(whole: Array, other: Array) -> Array | None:
    if not isinstance(whole, np.ndarray) or whole.size < _MANY or not isinstance(other, np.ndarray):
        return None
    if whole.shape == other.shape or whole.dtype != other.dtype or whole.dtype.char not in DTYPES:
        return None
    mine, its = (tuple(step // whole.itemsize for step in array.strides) for array in (whole, other))
    return _lines(whole.shape, mine, other.shape, its)


def _combined(which: int, whole: Array, other: Array, numbers: Array) -> Array:
    out = np.empty_like(whole)
    kernels.combine(which, whole.ravel("K"), other.ravel("K"), out.ravel("K"), numbers)
    return out


def _lie_alike(spec: Spec, out: Spec) -> bool:
    return spec.shape == out.shape and all(
        size == 1 or mine == its for size, mine, its in zip(out.shape, spec.stride, out.stride, strict=True)
    )


@lru_cache(4096)
def _lines(shape: Axes, stride: Axes, other_shape: Axes, other_stride: Axes) -> Array | None:
    """`numbers` of `kernels.combine`; None where the other does not repeat, or in too many ways."""
    ends = shape[len(shape) - len(other_shape) :]
    if len(ends) < len(other_shape) or any(its not in (1, mine) for mine, its in zip(ends, other_shape, strict=True)):
        return None
    if not (is_non_overlapping_and_dense(shape, stride) and is_non_overlapping_and_dense(other_shape, other_stride)):
        return None
    steps = aligned_strides(shape, other_shape, other_stride)
    axes: list[Axes] = []  # sizes and steps, from the outermost in memory
    for _, size, step in sorted(zip(stride, shape, steps, strict=True), key=lambda axis: -axis[0]):
        if size == 1:
            continue
        if axes and axes[-1][1] == size * step:
            axes[-1] = axes[-1][0] * size, step
        else:
            axes.append((size, step))
    if len(axes) > 3 or axes[-1][0] < kernels.FEWEST or axes[-1][1] > 1 or [step for _, step in axes] == [1]:
        return None
    *outer, (length, step) = [(1, 0)] * (3 - len(axes)) + axes
    (_, far), (across, near) = outer
    return np.array([length, across, far, near, step], np.int64)
