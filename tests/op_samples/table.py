"""What a sample is, the table of all of them, and arrays to make them of."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from engine.calls.dispatch import apply
from engine.calls.namespaces import OPERATORS

Array = np.ndarray


class Sample(NamedTuple):
    """`function(*tensors)` gives a Tensor or several; `reference(*arrays)` the same with NumPy, where it is obvious.

    Floating point arrays get gradients, save those at the positions `constants`.
    """

    function: Callable[..., Any]
    arrays: tuple[Any, ...]
    reference: Callable[..., Any] | None = None
    constants: tuple[int, ...] = ()
    differentiable: bool = True
    twice: bool = True
    relayout: bool = True  # whether the call allows its inputs another memory layout


SAMPLES: dict[str, list[Sample]] = {}

random = np.random.RandomState(7)


def draw(*shape: int, low: float = -2.0, high: float = 2.0, signs: bool = False) -> Array:
    """Numbers on [low, high), negative ones among them with `signs`; no two the same, none near zero with `signs`."""
    drawn = random.uniform(low, high, shape)
    return np.asarray(drawn * random.choice([-1.0, 1.0], shape) if signs else drawn)


def distinct(*shape: int) -> Array:
    """Numbers that differ by 0.1 at least: maxima stay what they are when they are moved a little."""
    return np.asarray(random.permutation(math.prod(shape)).reshape(shape) * 0.1 - 1.0)


X = draw(2, 3, 4)  # where any three axes will do


def whole(low: int, high: int, *shape: int) -> Array:
    """Integers of low ... high - 1."""
    return np.asarray(random.randint(low, high, shape), dtype=np.int64)


def raw(name: str, *attributes: Any) -> Callable[..., Any]:
    """The operator itself, with canonical attributes."""
    return lambda *tensors: apply(OPERATORS[name], tensors, attributes)


def add(name: str, function: Callable[..., Any], *arrays: Any, **options: Any) -> None:
    """One more sample of an operator."""
    SAMPLES.setdefault(name, []).append(Sample(function, arrays, **options))


def fixed(name: str, function: Callable[..., Any], *arrays: Any, **options: Any) -> None:
    """One whose result carries no gradient."""
    add(name, function, *arrays, differentiable=False, **options)
