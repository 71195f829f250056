"""Optimizer steps over flat memory: each reads and writes every array once.

Arrays are one-dimensional, contiguous, of one dtype (float32 or float64), equally long, and do not overlap; parameters
and states are updated in place. Results are elementwise IEEE arithmetic in the operation order of PyTorch's
single-tensor CPU path, so they do not depend on alignment, on where a parameter lies in the array, or on the CPU: ranks
stay bit-identical. ``gradient_scale`` multiplies the gradient on the way in (clipping and unscaling in the same pass);
gradients are never written.
"""

import math

import numpy as np

from engine.kernels.jit import kernel
from engine.kernels.language import Read1, Write1, fma, real

Array = np.ndarray


def sgd(
    parameter: Array,
    gradient: Array,
    momentum_buffer: Array | None,
    *,
    lr: float,
    momentum: float = 0.0,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
    maximize: bool = False,
    first_step: bool = False,
    gradient_scale: float = 1.0,
) -> None:
    """One SGD step. ``momentum_buffer`` is None exactly if ``momentum`` is 0; ``first_step`` writes it without reading.

    Source: torch.optim.SGD (``_single_tensor_sgd``).
    """
    scale = -gradient_scale if maximize else gradient_scale
    if momentum_buffer is None:
        _sgd[parameter.dtype.char](parameter, gradient, lr, weight_decay, scale)
        return
    # The first step stores the gradient itself: 0 * buffer + 1 * gradient, without reading a buffer that may hold
    # anything.
    fresh = 1.0 if first_step else 1.0 - dampening
    _sgd_momentum[parameter.dtype.char](
        parameter, gradient, momentum_buffer, lr, momentum, fresh, weight_decay, scale, nesterov, first_step
    )


def adam(
    parameter: Array,
    gradient: Array,
    mean: Array,
    square: Array,
    *,
    step: float,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    decoupled: bool,
    maximum: Array | None = None,
    maximize: bool = False,
    gradient_scale: float = 1.0,
) -> None:
    """One Adam step, or AdamW if ``decoupled``; ``step`` counts this one (1 at the first). ``maximum`` selects AMSGrad.

    ``mean``, ``square`` and ``maximum`` are PyTorch's exp_avg, exp_avg_sq and max_exp_avg_sq.
    Source: torch.optim.Adam (``_single_tensor_adam``, not capturable).
    """
    keep = 1.0 - lr * weight_decay if decoupled else 1.0
    coupled = 0.0 if decoupled else weight_decay
    step_size = lr / (1.0 - beta1**step)
    correction = math.sqrt(1.0 - beta2**step)
    scale = -gradient_scale if maximize else gradient_scale
    char = parameter.dtype.char
    if maximum is None:
        _adam[char](parameter, gradient, mean, square, keep, coupled, beta1, beta2, step_size, correction, eps, scale)
    else:
        _amsgrad[char](
            parameter, gradient, mean, square, maximum, keep, coupled, beta1, beta2, step_size, correction, eps, scale
        )


@kernel
def _sgd(parameter: Write1, gradient: Read1, lr: float, weight_decay: float, scale: float) -> None:
    lr, weight_decay, scale = real(lr), real(weight_decay), real(scale)
    for i in range(parameter.size):
        p = parameter[i]
        g = gradient[i] * scale
        if weight_decay != 0:
            g = fma(weight_decay, p, g)
        parameter[i] = fma(-lr, g, p)


@kernel
def _sgd_momentum(
    parameter: Write1,
    gradient: Read1,
    buffer: Write1,
    lr: float,
    momentum: float,
    fresh: float,
    weight_decay: float,
    scale: float,
    nesterov: bool,
    first: bool,
) -> None:
    lr, momentum, fresh, weight_decay, scale = real(lr), real(momentum), real(fresh), real(weight_decay), real(scale)
    for i in range(parameter.size):
        p = parameter[i]
        g = gradient[i] * scale
        if weight_decay != 0:
            g = fma(weight_decay, p, g)
        b = g
        if not first:
            b = fma(fresh, g, buffer[i] * momentum)
        buffer[i] = b
        parameter[i] = fma(-lr, fma(momentum, b, g) if nesterov else b, p)


# Interleaved by 4 because LLVM chooses 1 for loops with a division: AdamW on 16.8 M floats takes 10.8 ms instead of
# 12.9 in one thread, AMSGrad 13.7 instead of 17.1. NumPy in cache-sized blocks needs 31 ms.
@kernel(interleave=4)
def _adam(
    parameter: Write1,
    gradient: Read1,
    mean: Write1,
    square: Write1,
    keep: float,
    coupled: float,
    beta1: float,
    beta2: float,
    step_size: float,
    correction: float,
    eps: float,
    scale: float,
) -> None:
    keep, coupled, eps, scale = real(keep), real(coupled), real(eps), real(scale)
    rest1, beta2, rest2 = real(1.0 - beta1), real(beta2), real(1.0 - beta2)
    step_size, correction = real(step_size), real(correction)
    for i in range(parameter.size):
        p = parameter[i] * keep
        g = gradient[i] * scale
        if coupled != 0:
            g = fma(coupled, p, g)
        m = mean[i]
        # torch.lerp: the form that is exact at the nearer end.
        m = fma(rest1, g - m, m) if rest1 < real(0.5) else fma(rest1 - real(1.0), g - m, g)
        v = fma(rest2 * g, g, square[i] * beta2)
        mean[i] = m
        square[i] = v
        parameter[i] = p - step_size * m / (np.sqrt(v) / correction + eps)


@kernel(interleave=4)
def _amsgrad(
    parameter: Write1,
    gradient: Read1,
    mean: Write1,
    square: Write1,
    maximum: Write1,
    keep: float,
    coupled: float,
    beta1: float,
    beta2: float,
    step_size: float,
    correction: float,
    eps: float,
    scale: float,
) -> None:
    keep, coupled, eps, scale = real(keep), real(coupled), real(eps), real(scale)
    rest1, beta2, rest2 = real(1.0 - beta1), real(beta2), real(1.0 - beta2)
    step_size, correction = real(step_size), real(correction)
    for i in range(parameter.size):
        p = parameter[i] * keep
        g = gradient[i] * scale
        if coupled != 0:
            g = fma(coupled, p, g)
        m = mean[i]
        m = fma(rest1, g - m, m) if rest1 < real(0.5) else fma(rest1 - real(1.0), g - m, g)
        v = fma(rest2 * g, g, square[i] * beta2)
        largest = maximum[i]
        # torch.maximum: NaN on either side wins.
        largest = largest if (largest >= v or largest != largest) else v
        mean[i] = m
        square[i] = v
        maximum[i] = largest
        parameter[i] = p - step_size * m / (np.sqrt(largest) / correction + eps)
