"""`frexp`: a number as a mantissa and a power of 2."""

from typing import NamedTuple

import numpy as np

from engine.calls.listening import heard
from engine.memory import backend
from engine.ops.creation.from_data import tensor
from engine.rules import dtypes
from engine.tensor import Tensor


class Frexp(NamedTuple):
    """What `frexp` returns."""

    mantissa: Tensor
    exponent: Tensor


@heard
def frexp(input: Tensor) -> Frexp:
    """(mantissa, exponent) with input = mantissa * 2 ** exponent and mantissas of [0.5, 1); int32 exponents. The
    mantissa has a derivative, 2 ** -exponent.

    Raises: RuntimeError for integers.
    """
    if not input.is_floating_point():
        raise RuntimeError(f"torch.frexp() only supports floating-point dtypes, got {input.dtype}")
    xp = backend.array_module(input.device)
    wide = input.detach()._array.astype(np.float64)
    exponents = xp.frexp(wide)[1].astype(np.int32)
    exponent = tensor(exponents, dtype=dtypes.int32, device=input.device)
    scale = tensor(xp.ldexp(1.0, -exponents), dtype=dtypes.float64, device=input.device)
    return Frexp((input.double() * scale).to(input.dtype), exponent)
