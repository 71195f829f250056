"""`out=`: tensors of several kinds are written into by both libraries; results, strides, warnings and refusals."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import compare
import torch
from outcome import outcome, told
from translate import tensor


def _strided_otherwise(result: torch.Tensor) -> torch.Tensor:
    return torch.zeros([*result.shape, 2], dtype=result.dtype)[..., 1]


def _of_another_shape(result: torch.Tensor) -> torch.Tensor:
    return torch.zeros([*result.shape, 3], dtype=result.dtype)


def _wider(result: torch.Tensor) -> torch.Tensor | None:
    wider = {torch.float32: torch.float64, torch.complex64: torch.complex128, torch.int32: torch.int64}
    return torch.zeros(result.shape, dtype=wider[result.dtype]) if result.dtype in wider else None


def _lower(result: torch.Tensor) -> torch.Tensor | None:
    return torch.zeros(result.shape, dtype=torch.int64) if result.dtype.is_floating_point else None


def _differentiable(result: torch.Tensor) -> torch.Tensor | None:
    return torch.zeros_like(result).requires_grad_() if result.dtype.is_floating_point else None


_KINDS: dict[str, Callable[[torch.Tensor], torch.Tensor | None]] = {
    "alike": torch.zeros_like,
    "strided otherwise": _strided_otherwise,
    "empty": lambda result: torch.zeros(0, dtype=result.dtype),
    "of another shape": _of_another_shape,
    "of a wider dtype": _wider,
    "of a lower category": _lower,
    "differentiable": _differentiable,
}


def differences(
    op: Callable[..., Any],
    ours: Callable[..., Any],
    sample: Any,
    results: list[Any],
    single: bool,
    translated: Callable[[Any], Any],
) -> Iterator[str]:
    """What differs, or nothing, for each kind of `out` that there is for such results."""
    if not all(isinstance(result, torch.Tensor) for result in results):
        return
    for kind, make in _KINDS.items():
        theirs = [make(result) for result in results]
        if any(out is None for out in theirs):
            continue
        mine = [tensor(out) for out in theirs]  # type: ignore[arg-type]
        arguments, keywords = translated(sample)
        wanted = _written(op, [sample.input, *sample.args], sample.kwargs, theirs, single)
        got = _written(ours, arguments, keywords, mine, single)
        difference = "" if got == wanted else f"{_in_words(got)} where {_in_words(wanted)}"
        if isinstance(wanted, Exception):
            difference = "" if isinstance(got, Exception) else difference
        elif not isinstance(got, Exception):
            values = compare.values(mine, theirs, computed_in=results[0].dtype)
            difference = values or compare.strides(mine, theirs) or difference
        yield difference and f"{kind}: {difference}"


def _written(
    function: Callable[..., Any], arguments: list[Any], keywords: dict[str, Any], outs: list[Any], single: bool
) -> Any:
    """(whether a resize was warned of, whether `out` is what is returned), or the error."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        returned = outcome(function, *arguments, **keywords, out=outs[0] if single else tuple(outs))
    if isinstance(returned, Exception):
        return returned
    same = all(a is b for a, b in zip(compare.flat(returned), outs, strict=False))
    return any("resized" in str(each.message) for each in said), same


def _in_words(value: Any) -> str:
    return told(value) if isinstance(value, Exception) else f"(warned, returned) {value}"
