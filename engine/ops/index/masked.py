"""Where a mask is true, or elements are not zero: masked_fill, masked_select, nonzero."""

from types import ModuleType
from typing import Any

import numpy as np

from engine.calls.dispatch import apply
from engine.calls.listening import heard
from engine.calls.operands import Scalar
from engine.calls.operator import define
from engine.memory import backend
from engine.ops.index.operator import getitem, wrap_device_array
from engine.ops.shared.scalars import checked
from engine.ops.writing.out import deliver
from engine.rules import layout
from engine.rules.dtypes import bool_, int64
from engine.rules.spec import Spec, spec_of
from engine.tensor import Tensor


def _masked_fill_rule(input: Spec, mask: Spec, value: Any) -> Spec:
    if mask.dtype is not bool_:
        raise RuntimeError(
            f"masked_fill_ only supports boolean masks, but got mask with dtype {mask.dtype}; compare it, as in "
            "mask != 0"
        )
    return input.like(shape=layout.broadcast_shapes(tuple(input.shape), tuple(mask.shape)))


def _masked_fill(xp: ModuleType, input: Any, mask: Any, value: Any) -> Any:
    out = xp.empty(layout.broadcast_shapes(input.shape, mask.shape), input.dtype)
    out[...] = input
    xp.copyto(out, value, where=mask, casting="unsafe")
    return out


MASKED_FILL = define(
    "masked_fill",
    rule=_masked_fill_rule,
    forward=_masked_fill,
    backward=(
        lambda g, nd, mask: nd.masked_fill(g, mask, 0),
        None,
        lambda g, nd, mask: nd.masked_fill(g, ~mask, 0),
    ),
    inputs="input mask value",
)


def masked_fill(input: Tensor, mask: Tensor, value: Any) -> Tensor:
    """`input` with `value` (a number or a 0-dim Tensor) where the mask is true; row-major, as PyTorch's.

    Raises: RuntimeError for a mask that is not bool, a value with axes, or a number that the dtype does not hold.
    """
    if isinstance(value, Tensor):
        if value.ndim:
            raise RuntimeError(
                "masked_fill_ only supports a 0-dimensional value tensor, but got tensor with "
                f"{value.ndim} dimension(s); where(mask, value, input) takes any"
            )
        if value.is_complex() and not input.is_complex():
            raise RuntimeError(f"masked_fill: a value of {value.dtype} cannot be converted to {input.dtype}")
        if value.dtype is not input.dtype:
            value = value.to(input.dtype)
    else:
        value = Scalar(checked("masked_fill", value, input.dtype))
    return apply(MASKED_FILL, (input, mask, value))


@heard
def masked_select(input: Tensor, mask: Tensor, *, out: Tensor | None = None) -> Tensor:
    """The elements where the mask is true, as a vector."""
    if out is not None:
        return deliver(out, masked_select, input, mask, overlap="any")
    shape = layout.broadcast_shapes(tuple(input.shape), tuple(mask.shape))
    return getitem(input.expand(shape), mask.expand(shape))


@heard
def nonzero(input: Tensor, *, as_tuple: bool = False, out: Tensor | None = None) -> Any:
    """Indices of the non-zero elements: (N, ndim), or one vector an axis."""
    if out is not None:
        return deliver(out, nonzero, input, overlap="any")
    xp = backend.array_module(input.device)
    found = [
        wrap_device_array(array, input) for array in xp.nonzero(input._array if input.ndim else input._array.reshape(1))
    ]
    if as_tuple:
        return tuple(found)
    rows = [index._array for index in found[: input.ndim]]
    places = xp.stack(rows).T if rows else xp.zeros((found[0].numel(), 0), np.int64)  # column-major, as PyTorch's
    return Tensor(places, spec_of(places.shape, layout.strides_in_order(places.shape, (0, 1)), int64, input.device))


@heard
def nonzero_static(input: Tensor, *, size: int, fill_value: int = -1) -> Tensor:
    """The first `size` rows of `nonzero`, filled up with `fill_value`."""
    found = nonzero(input)
    result = found.new_full((size, found.shape[1]), fill_value)
    count = min(size, found.shape[0])
    result[:count] = found[:count]
    return result
