"""Draws from gamma, Poisson and binomial distributions on a GPU: the grids and arguments of `sampling.cu`."""

from typing import Any

import numpy as np

from engine.kernels.cuda.launch import Source
from engine.memory import backend
from engine.ops.random.cuda.fills import Draw

Array = Any

_THREADS = 128
_BLOCKS_AT_MOST = 4096
_CALLS = 1 << 16  # more than a draw needs, each accepting with a chance above 0.7

SOURCE = Source(
    "ops/random/cuda/sampling.cu", ["gamma_draws", "poisson_draws", "binomial_draws"], [{}], headers=["philox.cuh"]
)


def draws(name: str, draw: Draw, *parameters: Array) -> Array:
    """A float64 array of draws, one an element of the parameters, which are float64, row-major and of one shape.

    name: "gamma" (concentration, at rate 1), "poisson" (rate), "binomial" (trials, probability). NaN where a parameter
    is not valid.
    """
    first = parameters[0]
    assert all(
        each.dtype == np.float64 and each.flags.c_contiguous and each.shape == first.shape for each in parameters
    )
    out = backend.require_cupy().empty(first.shape, np.float64)
    stream = draw(_CALLS)
    if first.size:
        grid = min(-(-first.size // _THREADS), _BLOCKS_AT_MOST)
        SOURCE.get(f"{name}_draws")((grid,), (_THREADS,), (out, *parameters, np.int64(first.size), *stream))
    return out
