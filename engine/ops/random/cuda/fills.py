"""Fills of device memory with random values: the grids and arguments of `random.cu`.

`draws` is what `engine.random.DeviceGenerator.draw` gives: where the launch draws from, as three kernel arguments
(address of the captured state or 0, seed, offset).
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from engine.kernels.cuda.launch import Source, cuda_type
from engine.memory.guard import on_gpu_of
from engine.random import DeviceGenerator

Array = Any
Draws = tuple[np.uint64, np.uint64, np.uint64]
Draw = Callable[[int], Draws]  # takes the number of offsets

_AXES = 6
_GROUP = 4  # values a thread draws at a time
_THREADS = 256
_BLOCKS_AT_MOST = 4096  # each thread goes on from there in strides of the grid

_FLOATS = ("float", "double", "float16", "bfloat16")
_INTEGERS = ("signed char", "short", "int", "long long", "unsigned char", "bool")

SOURCE = Source(
    "ops/random/cuda/fills.cu",
    ["uniform", "normal", "exponential", "integers", "bernoulli", "bernoulli_of", "set_state"],
    [{"ELEMENT": kind} for kind in (*_FLOATS, *_INTEGERS)],
    headers=["philox.cuh"],
)


def uniform(target: Array, draw: Draw, low: float, high: float) -> None:
    """Uniform on [low, high), also after rounding to the element type."""
    _fill("uniform", target, draw, _calls(target), np.float64(low), np.float64(high))


def normal(target: Array, draw: Draw, mean: float, deviation: float) -> None:
    """Normal, by the method of Box and Muller."""
    _fill("normal", target, draw, _calls(target), np.float64(mean), np.float64(deviation))


def exponential(target: Array, draw: Draw, rate: float) -> None:
    """Exponential with the given rate; never 0."""
    _fill("exponential", target, draw, _calls(target), np.float64(rate))


def integers(target: Array, draw: Draw, low: int, high: int) -> None:
    """Integers uniform on [low, high), which may be all 2**64 of int64: -2**63 and 2**63."""
    _fill("integers", target, draw, 2, np.int64(low), np.uint64((high - low) % 2**64))


def bernoulli(target: Array, draw: Draw, probability: float) -> None:
    """1 with a probability, else 0."""
    _fill("bernoulli", target, draw, 1, np.float64(probability))


def bernoulli_of(target: Array, draw: Draw, probabilities: Array) -> None:
    """1 with the probability each element of a row-major float64 array of the target's shape gives, else 0."""
    assert probabilities.shape == target.shape
    assert probabilities.dtype == np.float64
    assert probabilities.flags.c_contiguous
    _fill("bernoulli_of", target, draw, 1, probabilities)


def set_state(state: Array, seed: np.uint64, offset: np.uint64) -> None:
    """Writes {seed, offset} into a uint64 array of two, on the current stream."""
    SOURCE.get("set_state", ELEMENT="float")((1,), (1,), (state, seed, offset))


def set_captured(generator: DeviceGenerator, captured: Array, calls: int) -> None:
    """Before a CUDA graph's replay, on its stream: writes where its launches draw from, and takes their offsets.

    captured, calls: what `Generator.end_capture` gave.
    """
    with on_gpu_of(captured):
        set_state(captured, *generator.draw(calls)[1:])


def _calls(target: Array) -> int:
    return 2 if target.dtype == np.float64 else 1


def _fill(kernel: str, target: Array, draw: Draw, calls: int, *arguments: Any) -> None:
    count = target.size
    draws = draw(calls)
    if not count:
        return
    steps = tuple(step // target.itemsize for step in target.strides)
    sizes, steps = _merged(target.shape, steps)
    if len(sizes) > _AXES:  # seven axes that do not merge: made row-major, then put in place
        made = target.copy(order="C")
        _fill(kernel, made, lambda _: draws, calls, *arguments)
        target[...] = made
        return
    missing = _AXES - len(sizes)
    layout = [np.int64(number) for number in ((1,) * missing + sizes) + ((0,) * missing + steps)]
    launch = SOURCE.get(kernel, ELEMENT=cuda_type(target.dtype))
    groups = -(-count // _GROUP)
    grid = min(-(-groups // _THREADS), _BLOCKS_AT_MOST)
    launch((grid,), (_THREADS,), (target, np.int64(count), *layout, *draws, *arguments))


def _merged(shape: tuple[int, ...], steps: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Axes from slowest to fastest without those of size 1; neighbours that one axis can stand for are one."""
    sizes: list[int] = []
    strides: list[int] = []
    for size, step in zip(shape, steps, strict=True):
        if size == 1:
            continue
        if sizes and strides[-1] == size * step:
            sizes[-1] *= size
            strides[-1] = step
        else:
            sizes.append(size)
            strides.append(step)
    return (tuple(sizes), tuple(strides)) if sizes else ((1,), (1,))
