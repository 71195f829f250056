"""Layouts for the cases of operators with spatial axes, and drawing such cases from a seed."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.data.operators.case import Case, normal

LAYOUTS = ("row-major", "channels-last", "permuted", "sliced")


def laid_out(array: np.ndarray, layout: str) -> np.ndarray:
    """The same numbers with other strides."""
    ndim = array.ndim
    if layout == "row-major" or ndim < 3:
        return np.ascontiguousarray(array)
    if layout == "channels-last":
        return np.ascontiguousarray(array.transpose(0, *range(2, ndim), 1)).transpose(0, ndim - 1, *range(1, ndim - 1))
    if layout == "permuted":
        order = (2, 0, *range(3, ndim), 1)
        return np.ascontiguousarray(array.transpose(order)).transpose(np.argsort(order))
    assert layout == "sliced"
    wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
    wide[..., ::2] = array
    return wide[..., ::2]


def draw(rng: np.random.RandomState, *choices: Any) -> Any:
    """One of the choices."""
    return choices[rng.randint(len(choices))]


def several(rng: np.random.RandomState, count: int, *choices: int) -> tuple[int, ...]:
    """`count` independent choices."""
    return tuple(int(draw(rng, *choices)) for _ in range(count))


def image(seed: int, shape: tuple[int, ...], layout: str) -> np.ndarray:
    """Standard normal numbers in a layout."""
    return laid_out(normal(seed, *shape), layout)


def add(cases: dict[str, Case], name: str, function: Callable[..., Any], *inputs: np.ndarray, **options: Any) -> None:
    """A numbered case, so that drawn ones do not collide."""
    cases[f"{len(cases)} {name}"] = Case(function, inputs, **options)
