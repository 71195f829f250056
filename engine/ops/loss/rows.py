"""What losses over class indices share: their rule, their operands as rows or planes of classes, the reduction.

Source: PyTorch's aten/src/ATen/native/LossNLL.cpp, for the formula, the errors, and the meaning of `weight` and
`ignore_index`.
"""

from types import ModuleType
from typing import Any

import numpy as np

from engine.ops.shared.fused import flattened, row_major
from engine.ops.shared.operands import require_real
from engine.ops.shared.windows import channels_first, channels_last, lies_channels_last
from engine.rules.dtypes import int64, uint8
from engine.rules.spec import Spec

REDUCTIONS = ("none", "mean", "sum")


def check_reduction(reduction: str) -> None:
    """Raises ValueError for an unknown reduction."""
    if reduction not in REDUCTIONS:
        raise ValueError(f"{reduction} is not a valid value for reduction; expected one of {', '.join(REDUCTIONS)}")


def loss_rule(name: str, input: Spec, target: Spec, weight: Spec | None, reduction: str) -> Spec:
    check_reduction(reduction)
    require_real(name, input)
    if not input.ndim:
        raise ValueError(f"{name}: Expected input with at least 1 dimension (classes), got a 0-dim tensor")
    if target.dtype is not int64 and target.dtype is not uint8:
        raise RuntimeError(f"{name}: expected target dtype to be Long or Byte (class indices), but got {target.dtype}")
    if input.ndim > 1 and (not target.ndim or target.shape[0] != input.shape[0]):
        raise ValueError(
            f"{name}: Expected input batch_size ({input.shape[0]}) to match target batch_size "
            f"({target.shape[0] if target.ndim else 'none, it is 0-dim'})."
        )
    expected = (*input.shape[:1], *input.shape[2:]) if input.ndim > 1 else ()
    if input.ndim <= 2 and target.ndim > 1:
        raise RuntimeError(
            f"{name}: 0D or 1D target tensor expected, multi-target not supported (target of shape "
            f"{list(target.shape)})"
        )
    if tuple(target.shape) != expected and not (input.ndim == 1 and target.shape == (1,)):
        raise RuntimeError(f"{name}: Expected target size {list(expected)}, got {list(target.shape)}")
    classes = input.shape[min(1, input.ndim - 1)]
    if weight is not None:
        if weight.shape != (classes,):
            raise RuntimeError(
                f"{name}: weight tensor should be defined either for all {classes} classes or no classes but got "
                f"weight tensor of shape: {list(weight.shape)}"
            )
        if weight.dtype is not input.dtype:
            raise RuntimeError(f"{name}: expected weight of dtype {input.dtype}, but found {weight.dtype}")
    return input.like(shape=target.shape if reduction == "none" else ())


def as_rows(xp: ModuleType, input: Any) -> Any:
    """(N, C, d...) or (C,) as (M, C), row-major; a view where the memory allows it."""
    if input.ndim == 2:
        return xp.ascontiguousarray(input)
    classes = input.shape[min(1, input.ndim - 1)]
    moved = xp.ascontiguousarray(xp.moveaxis(input, 1, -1) if input.ndim > 2 else input)
    return (
        moved.reshape(-1, classes)
        if classes
        else moved.reshape(-1 if input.ndim == 1 else int(np.prod(moved.shape[:-1])), 0)
    )


def from_rows(rows: Any, shape: tuple[int, ...]) -> Any:
    """The inverse of `as_rows`."""
    if len(shape) <= 2:
        return rows.reshape(shape)
    return (
        rows.reshape((shape[0], *shape[2:], shape[1])).swapaxes(1, -1)
        if len(shape) == 3
        else channels_second(rows, shape)
    )


def channels_second(rows: Any, shape: tuple[int, ...]) -> Any:
    last = rows.reshape((shape[0], *shape[2:], shape[1]))
    return last.transpose((0, last.ndim - 1, *range(1, last.ndim - 1)))


def indices_of(xp: ModuleType, target: Any, classes: int, ignore_index: int) -> tuple[Any, Any]:
    """(class of every row, 0 where it is ignored; whether it counts). Raises IndexError for a class out of range."""
    flat = target.reshape(-1).astype(np.int64, copy=False)
    counted = flat != ignore_index
    wrong = counted & ((flat < 0) | (flat >= classes))
    if bool(wrong.any()):
        raise IndexError(
            f"Target {int(flat[wrong][0])} is out of bounds: expected 0..{classes - 1} ({classes} classes) or "
            f"ignore_index {ignore_index}"
        )
    return xp.where(counted, flat, 0), counted


def weights_of(xp: ModuleType, index: Any, counted: Any, weight: Any, kind: Any) -> Any:
    """The weight of every row: that of its class, 0 where it is ignored."""
    return counted.astype(kind) if weight is None else xp.where(counted, weight[index], 0).astype(kind)


def reduced(xp: ModuleType, losses: Any, total: Any, shape: tuple[int, ...], reduction: str, kind: Any) -> Any:
    if reduction == "none":
        return losses.reshape(shape).astype(kind, copy=False)
    return xp.asarray(losses.sum() if reduction == "sum" else losses.sum() / total).astype(kind)


# --- on a GPU ---------------------------------------------------------------------------------------------------------


def as_planes(xp: ModuleType, array: Any) -> Any:
    """(C), (N, C) or (N, C, d...) as row-major (outer, C, inner); channels-last as (N d..., C, 1), without a copy."""
    if array.ndim > 2 and lies_channels_last(array):
        return channels_last(array).reshape(-1, array.shape[1], 1)
    outer = array.shape[0] if array.ndim > 1 else 1
    shape = (outer, array.shape[min(1, array.ndim - 1)], int(np.prod(array.shape[2:])))
    return row_major(xp, array, array.dtype, shape)


def from_planes(planes: Any, like: Any) -> Any:
    """The inverse of `as_planes`."""
    if like.ndim > 2 and lies_channels_last(like):
        return channels_first(planes.reshape(like.shape[0], *like.shape[2:], like.shape[1]))
    return planes.reshape(like.shape)


def flat_targets(xp: ModuleType, target: Any, weight: Any, kind: Any) -> tuple[Any, Any]:
    return flattened(xp, target, np.int64), flattened(xp, weight, kind)
