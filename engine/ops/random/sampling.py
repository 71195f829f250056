"""Draws of gamma, Poisson and binomial distributions, one an element of the parameters: what functions and
`engine.distributions` are made of. For host memory NumPy draws, for a GPU kernels do.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.memory import backend
from engine.memory.guard import on_gpu_of
from engine.ops.creation.from_data import wrap_array
from engine.random import Generator, default_generator, generator_of
from engine.rules.dtypes import float64
from engine.rules.spec import spec_of
from engine.tensor import Tensor


def standard_gamma(concentration: Tensor, shape: Sequence[int], generator: Generator | None = None) -> Tensor:
    """float64 draws of rate 1, of a shape that the parameters broadcast to; as all below."""
    return _draws("gamma", "standard_gamma", shape, generator, concentration)


def poisson(rate: Tensor, shape: Sequence[int], generator: Generator | None = None) -> Tensor:
    """Whole numbers."""
    return _draws("poisson", "poisson", shape, generator, rate)


def binomial(count: Tensor, prob: Tensor, shape: Sequence[int], generator: Generator | None = None) -> Tensor:
    """How many of `count` trials succeed."""
    return _draws("binomial", "binomial", shape, generator, count, prob)


def _draws(kernel: str, method: str, shape: Sequence[int], generator: Generator | None, *parameters: Tensor) -> Tensor:
    where = parameters[0].device
    arrays: list[Any] = [parameter.detach().to(where)._array for parameter in parameters]
    if where.type == "cuda":
        from engine.ops.random.cuda import sampling

        xp = backend.array_module(where)
        with on_gpu_of(arrays[0]):
            each = [xp.ascontiguousarray(xp.broadcast_to(array, tuple(shape)), dtype=np.float64) for array in arrays]
            made = sampling.draws(kernel, generator_of(where, generator).draw, *each)
        return Tensor(made, spec_of(made.shape, None, float64, where))
    numbers = [array.astype(np.float64) for array in arrays]
    if kernel == "binomial":
        numbers[0] = numbers[0].astype(np.int64)
    drawn = getattr((generator or default_generator).numpy, method)(*numbers, tuple(shape))
    return wrap_array(np.asarray(drawn, dtype=np.float64), where)
