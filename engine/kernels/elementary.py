"""Elementary functions that kernels inline and LLVM vectorises; Numba's own call the C library element by element.

float64 kernels use the C library (exact enough, and float64 is not the dtype of long runs).
"""

import math
from typing import Any

import numpy as np

from engine.kernels.jit import helper
from engine.kernels.language import bits, fma, from_bits, real


def _exp64(x: Any) -> Any:
    return math.exp(x)


def _normal64(x: Any) -> Any:
    return 0.5 * math.erfc(-0.7071067811865476 * x), 0.3989422804014327 * math.exp(-0.5 * x * x)


@helper(float64=_exp64)
def exp(x: Any) -> Any:
    """``e**x`` within 1.3 ulp; 0 below -87.33, where the result would be subnormal, and infinity above 88.37 (float32).

    512 K floats in 0.11 ms, against 0.24 ms by ``numpy.exp``. Source: Cephes ``expf`` (polynomial), range reduction
    with fma.
    """
    limited = min(x, np.float32(89.0))  # its power of two, 128, is infinity's exponent
    # Adding 1.5 * 2**23 rounds to an integer, which then sits in the low bits of the float's pattern.
    shifted = fma(limited, np.float32(1.44269504), np.float32(12582912.0))
    power = shifted - np.float32(12582912.0)
    rest = fma(power, np.float32(2.12194440e-4), fma(power, np.float32(-0.693359375), limited))
    p = fma(np.float32(1.9875691500e-4), rest, np.float32(1.3981999507e-3))
    p = fma(p, rest, np.float32(8.3334519073e-3))
    p = fma(p, rest, np.float32(4.1665795894e-2))
    p = fma(p, rest, np.float32(1.6666665459e-1))
    p = fma(p, rest, np.float32(5.0000001201e-1))
    p = fma(fma(p, rest, np.float32(1.0)), rest, np.float32(1.0))
    scale = from_bits(np.int32((bits(np.float32(shifted)) - np.int32(0x4B400000 - 127)) << 23))
    return np.float32(0.0) if x < np.float32(-87.33) else p * scale


@helper(float64=_normal64)
def normal(x: Any) -> Any:
    """Distribution and density of the standard normal at x, from one exponential.

    The tail is ``exp(-x**2 / 2)`` times a polynomial in ``1 / (1 + 0.35 |x|)``, fitted to a relative error of 3.2e-8
    up to 14: unlike ``(1 + erf) / 2`` it keeps its digits left of 0. Relative error below 1e-6 for x > -5, absolute
    below 1.6e-7.
    """
    bell = exp(np.float32(-0.5) * x * x)
    t = np.float32(1.0) / fma(abs(x), np.float32(0.35), np.float32(1.0))
    p = fma(t, np.float32(-2.914593897e-2), np.float32(1.439717393e-1))
    p = fma(p, t, np.float32(-2.557143388e-1))
    p = fma(p, t, np.float32(1.591742555e-1))
    p = fma(p, t, np.float32(-2.310990003e-2))
    p = fma(p, t, np.float32(1.055080314e-1))
    p = fma(p, t, np.float32(1.198328607e-1))
    p = fma(p, t, np.float32(1.398618706e-1))
    tail = fma(p, t, np.float32(1.396214042e-1)) * t * bell
    return tail if x < np.float32(0.0) else np.float32(1.0) - tail, np.float32(0.3989422804014327) * bell


@helper
def sigmoid(x: Any) -> Any:
    """``1 / (1 + exp(-x))``."""
    return real(1.0) / (real(1.0) + exp(-x))


def _tanh64(x: Any) -> Any:
    return math.tanh(x)


@helper(float64=_tanh64)
def tanh(x: Any) -> Any:
    """Hyperbolic tangent within 2 ulp (float32). Source: Cephes ``tanhf``: a polynomial below 0.625, exp above."""
    size = abs(x)
    square = x * x
    p = fma(np.float32(-5.70498872745e-3), square, np.float32(2.06390887954e-2))
    p = fma(p, square, np.float32(-5.37397155531e-2))
    p = fma(p, square, np.float32(1.33314422036e-1))
    p = fma(p, square, np.float32(-3.33332819422e-1))
    near = fma(p * square, x, x)
    far = np.float32(1.0) - np.float32(2.0) / (exp(size + size) + np.float32(1.0))
    return near if size < np.float32(0.625) else (far if x > np.float32(0.0) else -far)


def _expm1_64(x: Any) -> Any:
    return math.expm1(x)


@helper(float64=_expm1_64)
def expm1(x: Any) -> Any:
    """``e**x - 1``, exact near 0 as well: 2 t / (1 - t) with t = tanh(x / 2)."""
    t = tanh(np.float32(0.5) * x)
    return (t + t) / (np.float32(1.0) - t)


def _log1p_64(x: Any) -> Any:
    return math.log1p(x)


@helper(float64=_log1p_64)
def log1p_below_1(x: Any) -> Any:
    """``log(1 + x)`` for x in [0, 1] within 2 ulp: the series of 2 artanh(x / (2 + x))."""
    s = x / (np.float32(2.0) + x)
    square = s * s
    p = fma(square, np.float32(2.0 / 15), np.float32(2.0 / 13))
    p = fma(p, square, np.float32(2.0 / 11))
    p = fma(p, square, np.float32(2.0 / 9))
    p = fma(p, square, np.float32(2.0 / 7))
    p = fma(p, square, np.float32(2.0 / 5))
    p = fma(p, square, np.float32(2.0 / 3))
    return fma(p * square, s, s + s)
