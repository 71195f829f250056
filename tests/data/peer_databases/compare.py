"""Whether two results are the same: structure, shapes, values; dtypes and strides apart."""

from typing import Any

import torch
from translate import DTYPES, back

import engine

# Absolute and relative, beside the largest finite number of the result: sums come in another order.
_TOLERANCES = {
    torch.float16: 4e-3,
    torch.bfloat16: 3e-2,
    torch.float32: 2e-5,
    torch.complex64: 2e-5,
    torch.float64: 1e-9,
    torch.complex128: 1e-9,
}


def flat(result: Any) -> list[Any]:
    """The tensors and other values in nested results, in order."""
    if isinstance(result, tuple | list):
        return [each for item in result for each in flat(item)]
    return [result]


def values(
    ours: list[Any], theirs: list[Any], shapes_only: bool = False, computed_in: torch.dtype | None = None
) -> str:
    """What differs, or nothing. `computed_in`: the dtype whose tolerance holds, where the results were cast."""
    if len(ours) != len(theirs):
        return f"{len(ours)} results where there are {len(theirs)}"
    for mine, other in zip(ours, theirs, strict=True):
        if not isinstance(other, torch.Tensor):
            if isinstance(mine, engine.Tensor):
                return f"a tensor where {other!r} is"
            if not isinstance(other, bool | int | float | complex | str) or shapes_only:
                continue
            if not (mine == other or (mine != mine and other != other)):
                return f"{mine!r} where {other!r} is"
            continue
        if not isinstance(mine, engine.Tensor):
            return f"{mine!r} where a tensor is"
        if tuple(mine.shape) != tuple(other.shape):
            return f"shape {tuple(mine.shape)} where {tuple(other.shape)} is"
        if other.dtype in DTYPES and not shapes_only:
            difference = _numbers(back(mine), other.detach().resolve_conj().resolve_neg(), computed_in or other.dtype)
            if difference:
                return difference
    return ""


def _numbers(mine: torch.Tensor, other: torch.Tensor, computed_in: torch.dtype) -> str:
    if not other.numel():
        return ""
    tolerance = max(_TOLERANCES.get(each, 0.0) for each in (mine.dtype, other.dtype, computed_in))
    wide = torch.complex128 if mine.is_complex() or other.is_complex() else torch.float64
    if wide is torch.float64 and tolerance == 0:
        same = mine.to(torch.int64) == other.to(torch.int64)
    else:
        mine, other = mine.to(wide), other.to(wide)
        finite = other[torch.isfinite(other)].abs()
        scale = max(1.0, finite.max().item()) if finite.numel() else 1.0
        same = torch.isclose(mine, other, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
        if wide is torch.complex128:  # an infinity of any kind is one: parts of it are nobody's promise
            same |= ~torch.isfinite(mine) & ~torch.isfinite(other)
    if same.all():
        return ""
    place = tuple((~same).nonzero()[0].tolist())
    return f"{mine[place].item()} where {other[place].item()} is, at {place} of {tuple(other.shape)}"


def dtypes(ours: list[Any], theirs: list[Any]) -> str:
    """What differs, or nothing; for results of one structure."""
    for mine, other in zip(ours, theirs, strict=True):
        if isinstance(other, torch.Tensor) and DTYPES.get(other.dtype) is not mine.dtype:
            return f"{mine.dtype} where {other.dtype} is"
    return ""


def strides(ours: list[Any], theirs: list[Any]) -> str:
    """What differs where it can be told: axes of more than one element, of tensors with elements."""
    for mine, other in zip(ours, theirs, strict=True):
        if isinstance(other, torch.Tensor) and other.layout is torch.strided and other.numel():
            told = [axis for axis, size in enumerate(other.shape) if size > 1]
            if [mine.stride(axis) for axis in told] != [other.stride(axis) for axis in told]:
                return f"{mine.stride()} where {other.stride()} is, shape {tuple(other.shape)}"
    return ""


def gradients(ours: list[Any], theirs: list[Any]) -> str:
    """What differs, or nothing; None and zeros are one gradient."""
    for mine, other in zip(ours, theirs, strict=True):
        if mine is None or other is None:
            rest = mine if other is None else other
            if rest is not None and not bool((abs(rest) <= 1e-12).all()):
                return f"{'no' if mine is None else 'a'} gradient"
        elif difference := values([mine], [other]):
            return difference
    return ""
