"""`assert_close`: two results agree within the tolerances of their dtype."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import engine
from engine.tensor import Tensor

# (relative, absolute) by dtype; exact for integers and bools. torch.testing.assert_close.
_TOLERANCES = {
    "float16": (1e-3, 1e-5),
    "bfloat16": (1.6e-2, 1e-5),
    "float32": (1.3e-6, 1e-5),
    "float64": (1e-7, 1e-7),
    "complex64": (1.3e-6, 1e-5),
    "complex128": (1e-7, 1e-7),
}


class _Checks(NamedTuple):
    rtol: float | None
    atol: float | None
    equal_nan: bool
    device: bool
    dtype: bool
    stride: bool


def assert_close(
    actual: Any,
    expected: Any,
    *,
    allow_subclasses: bool = True,
    rtol: float | None = None,
    atol: float | None = None,
    equal_nan: bool = False,
    check_device: bool = True,
    check_dtype: bool = True,
    check_stride: bool = False,
    msg: str | None = None,
) -> None:
    """|actual - expected| <= atol + rtol |expected| at every element of tensors, arrays, numbers, or containers of
    them.

    Tolerances default to those of the dtype; where two differ, the wider. Raises: AssertionError saying where it does
    not hold; TypeError for a subclass of Tensor beside another class unless `allow_subclasses`; ValueError for one
    tolerance without the other.
    """
    if (rtol is None) != (atol is None):
        raise ValueError(f"assert_close: give both tolerances or none, got rtol={rtol} and atol={atol}")
    if not allow_subclasses and type(actual) is not type(expected):
        raise TypeError(f"assert_close: expected one class, got {type(actual).__name__} and {type(expected).__name__}")
    try:
        _compare(actual, expected, "", _Checks(rtol, atol, equal_nan, check_device, check_dtype, check_stride))
    except AssertionError as difference:
        raise AssertionError(str(difference) if msg is None else msg) from None


def assert_allclose(
    actual: Any,
    expected: Any,
    rtol: float | None = None,
    atol: float | None = None,
    equal_nan: bool = True,
    msg: str = "",
) -> None:
    """`assert_close` by its older name, which does not compare dtypes or devices, and where NaN is NaN."""
    assert_close(
        actual,
        expected,
        rtol=rtol,
        atol=atol,
        equal_nan=equal_nan,
        check_device=False,
        check_dtype=False,
        msg=msg or None,
    )


def _compare(actual: Any, expected: Any, place: str, checks: _Checks) -> None:
    if isinstance(expected, Mapping):
        if not isinstance(actual, Mapping) or actual.keys() != expected.keys():
            raise AssertionError(f"The keys of the mappings{place} do not match: {actual!r} and {expected!r}")
        for key in expected:
            _compare(actual[key], expected[key], f"{place}[{key!r}]", checks)
    elif isinstance(expected, Sequence) and not isinstance(expected, str):
        if not isinstance(actual, Sequence) or len(actual) != len(expected):
            raise AssertionError(f"The lengths of the sequences{place} do not match: {actual!r} and {expected!r}")
        for which, (mine, theirs) in enumerate(zip(actual, expected, strict=True)):
            _compare(mine, theirs, f"{place}[{which}]", checks)
    else:
        _compare_tensors(engine.as_tensor(actual), engine.as_tensor(expected), place, checks)


def _compare_tensors(actual: Tensor, expected: Tensor, place: str, checks: _Checks) -> None:
    attributes = {"shape": True, "dtype": checks.dtype, "device": checks.device}
    for name, checked in attributes.items():
        mine, theirs = getattr(actual, name), getattr(expected, name)
        if checked and mine != theirs:
            raise AssertionError(f"The values for attribute '{name}'{place} do not match: {mine} != {theirs}.")
    if checks.stride and actual.stride() != expected.stride():
        raise AssertionError(f"The strides{place} do not match: {actual.stride()} != {expected.stride()}.")
    rtol, atol = checks.rtol, checks.atol
    if rtol is None or atol is None:
        rtol, atol = max(_TOLERANCES.get(each.dtype.name, (0.0, 0.0)) for each in (actual, expected))
    kind = np.complex128 if actual.is_complex() or expected.is_complex() else np.float64
    mine, theirs = (each.detach().cpu()._array.astype(kind) for each in (actual, expected))
    wrong = ~np.isclose(mine, theirs, rtol, atol, equal_nan=checks.equal_nan)
    if wrong.any():
        gap = np.where(wrong, np.nan_to_num(np.abs(mine - theirs), nan=np.inf), -1.0)
        worst = tuple(map(int, np.unravel_index(int(gap.argmax()), gap.shape)))
        raise AssertionError(
            f"Tensor-likes{place} are not close!\n\nMismatched elements: {wrong.sum()} / {wrong.size}\n"
            f"Greatest absolute difference: {gap[worst]} at index {worst} (up to {atol} allowed, and {rtol} relative)"
        )
