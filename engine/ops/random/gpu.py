"""Random tensors on GPUs: `engine.ops.random.tensors` comes here for them. Kernels draw; nothing is copied or waited
for.
"""

import math
from typing import Any

import numpy as np

from engine.memory import backend
from engine.memory.guard import on_gpu_of
from engine.ops.creation.factories import empty
from engine.ops.writing.inplace import fill_by
from engine.random import Generator, generator_of
from engine.rules.device import device as as_device
from engine.rules.dtypes import float64, int64
from engine.rules.spec import spec_of
from engine.tensor import Tensor


def _draw_into(array: Any, where: as_device, generator: Generator | None, kernel: str, *arguments: Any) -> None:
    if backend.several_gpus:
        with on_gpu_of(array):
            _draw_here(array, where, generator, kernel, *arguments)
    else:
        _draw_here(array, where, generator, kernel, *arguments)


def _draw_here(array: Any, where: as_device, generator: Generator | None, kernel: str, *arguments: Any) -> None:
    from engine.ops.random.cuda import fills as kernels

    if array.dtype.kind == "c":  # real and imaginary parts, which share the variance
        if kernel == "normal":
            arguments = (arguments[0], arguments[1] / math.sqrt(2))
        if array.flags.c_contiguous:
            array = array.view(array.real.dtype)
        else:
            parts = backend.array_module(where).empty((*array.shape, 2), array.real.dtype)
            getattr(kernels, kernel)(parts, generator_of(where, generator).draw, *arguments)
            array.real[...], array.imag[...] = parts[..., 0], parts[..., 1]
            return
    getattr(kernels, kernel)(array, generator_of(where, generator).draw, *arguments)


def made_there(
    shape: tuple[int, ...],
    kind: Any,
    where: Any,
    requires_grad: bool,
    generator: Generator | None,
    kernel: str,
    *arguments: Any,
) -> Tensor:
    """A new tensor on a GPU, filled by a kernel."""
    made = empty(shape, dtype=kind, device=where)
    _draw_into(made._array, made.device, generator, kernel, *arguments)
    return made.requires_grad_() if requires_grad else made


def filled_there(target: Tensor, name: str, generator: Generator | None, kernel: str, *arguments: Any) -> Tensor:
    """A tensor on a GPU, filled in place by a kernel."""
    return fill_by(target, name, lambda array: _draw_into(array, target.device, generator, kernel, *arguments))


def permutation_there(n: int, kind: Any, where: Any, generator: Generator | None) -> Tensor:
    """The order of n random 64-bit keys."""
    keys = made_there((n,), int64, where, False, generator, "integers", -(2**63), 2**63)
    with on_gpu_of(keys._array):
        order = backend.array_module(keys.device).argsort(keys._array).astype(kind.numpy, copy=False)
    return Tensor(order, spec_of((n,), None, kind, keys.device))


def bernoulli_there(target: Tensor, p: Tensor, generator: Generator | None) -> Tensor:
    """Filled in place, with the probabilities of another tensor."""
    xp = backend.array_module(target.device)
    with on_gpu_of(target._array):
        each = xp.broadcast_to(p.detach().to(target.device)._array, tuple(target.shape))
        return filled_there(
            target, "bernoulli_", generator, "bernoulli_of", xp.ascontiguousarray(each, dtype=np.float64)
        )


def multinomial_there(input: Tensor, samples: int, replacement: bool, generator: Generator | None) -> Tensor:
    """With replacement: where uniform numbers fall among the running sums, all rows laid end to end in one search.
    Without: the `samples` first arrivals when class i arrives after an exponential time of rate weight i.
    """
    with on_gpu_of(input._array):
        return _multinomial(input, samples, replacement, generator)


def _multinomial(input: Tensor, samples: int, replacement: bool, generator: Generator | None) -> Tensor:
    xp = backend.array_module(input.device)
    classes = input.shape[-1]
    rows = input.detach()._array.reshape(-1, classes).astype(np.float64)
    count = len(rows)
    if not count:
        picked = xp.empty((0, samples), np.int64)
    elif replacement:
        drawn = made_there((count, samples), float64, input.device, False, generator, "uniform", 0.0, 1.0)._array
        sums = rows.cumsum(axis=1)
        sums /= sums[:, -1:]
        place = xp.arange(count, dtype=np.float64)[:, None]
        found = xp.searchsorted((sums + place).ravel(), (drawn + place).ravel(), side="right").reshape(count, samples)
        picked = xp.clip(found - xp.arange(count)[:, None] * classes, 0, classes - 1)
    else:
        times = made_there((count, classes), float64, input.device, False, generator, "exponential", 1.0)._array
        picked = xp.argsort(times / rows, axis=1)[:, :samples]
    shape = (*input.shape[:-1], samples)
    picked = xp.ascontiguousarray(picked.astype(np.int64, copy=False)).reshape(shape)
    return Tensor(picked, spec_of(shape, None, int64, input.device))
