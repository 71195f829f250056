"""What the tests of transports share, on the CPU and on a GPU."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ddp.transport import Transport
from ddp.transport.base import ACCUMULATORS

DTYPES = {name: np.dtype(getattr(ml_dtypes, name, None) or name) for name in ACCUMULATORS}


def integers(rank: int, count: int, dtype: Any, seed: int = 0) -> np.ndarray:
    """Addends of one rank whose sums over four ranks are exact in every dtype, and fit it."""
    return np.random.default_rng([seed, rank]).integers(0, 16, count).astype(dtype)


def check_misuse(transport: Transport) -> None:
    """A buffer out of turn, and dtypes that are not summed, are refused."""
    buffer = transport.allocate(1, np.float32)
    with pytest.raises(RuntimeError, match="not started"):
        transport.wait(buffer)
    transport.start(buffer)
    with pytest.raises(RuntimeError, match="started twice"):
        transport.start(buffer)
    transport.wait(buffer)
    with pytest.raises(TypeError, match="a sum of int32 cannot be divided by 2"):
        transport.start(transport.allocate(1, np.int32), divisor=2)
    with pytest.raises(TypeError, match="dtype bool are not summed, expected one of float16, bfloat16, float32"):
        transport.allocate(1, np.bool_)
