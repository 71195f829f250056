"""Clipping of gradients, in place, by their joint norm or by value."""

import math
import types
import warnings
from collections.abc import Iterable

import numpy as np

import engine
from engine.autograd.modes import no_grad
from engine.calls.listening import heard
from engine.memory.guard import on_gpu_of
from engine.rules.spec import spec_of
from engine.tensor import Tensor
from engine.tensor.flat import flat_view

_KERNEL_FROM = 65536  # elements; below, a NumPy pass costs less than the import of the compiled kernels


def _gradients(parameters: Tensor | Iterable[Tensor]) -> list[Tensor]:
    if isinstance(parameters, Tensor):
        parameters = [parameters]
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


@heard
def get_total_norm(
    tensors: Tensor | Iterable[Tensor],
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """The `norm_type`-norm of all tensors as if they were one vector: a 0-dim tensor on the first one's device.

    `foreach` chooses between loops in PyTorch and has no effect here. Raises: RuntimeError for a norm that is not
    finite, if asked.
    """
    tensors = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    norm_type = float(norm_type)
    if not tensors:
        return engine.tensor(0.0)
    with no_grad():
        first = tensors[0]
        if norm_type == 2.0 and all(tensor.device.type == "cpu" for tensor in tensors):
            # One pass over memory, summed in float64 in an order that depends on the sizes only.
            total = engine.tensor(
                math.sqrt(sum(_sum_of_squares(tensor) for tensor in tensors)), dtype=_real(first.dtype)
            )
        elif _kernels_serve(tensors) and norm_type in _POWERS and (norm_type == 2.0 or not first.is_complex()):
            total = _norm_on_device(tensors, _POWERS[norm_type])
        else:
            norms = [tensor.norm(norm_type).to(device=first.device) for tensor in tensors]
            total = engine.stack(norms).norm(norm_type)
    if error_if_nonfinite and not math.isfinite(float(total)):
        raise RuntimeError(
            f"The total norm of order {norm_type} for gradients from `parameters` is non-finite, so it cannot be "
            "clipped. To disable this error and scale the gradients by the non-finite norm anyway, set "
            "`error_if_nonfinite=False`"
        )
    return total


# What a norm's order is called in engine.ops.buckets.cuda.
_POWERS = {2.0: 2, 1.0: 1, math.inf: 0}


def _kernels_serve(tensors: list[Tensor]) -> bool:
    """Whether kernels over flat memory of one GPU do for all of these."""
    where = tensors[0].device
    return where.type == "cuda" and all(
        tensor.device is where and tensor._spec.dense and (tensor.is_floating_point() or tensor.is_complex())
        for tensor in tensors
    )


def _norm_on_device(tensors: list[Tensor], power: int) -> Tensor:
    from engine.ops.buckets import cuda as buckets

    first = tensors[0]
    kind = _real(first.dtype)
    with on_gpu_of(first._array):
        norm = buckets.norm([flat_view(tensor) for tensor in tensors], power).astype(kind.numpy).reshape(())
    return Tensor(norm, spec_of((), (), kind, first.device))


def _real(dtype: "engine.dtype") -> "engine.dtype":
    return dtype.to_real()


def _sum_of_squares(tensor: Tensor) -> float:
    flat = flat_view(tensor)
    array = tensor._array if flat is None else flat
    if array.dtype.kind == "c":
        array = np.concatenate([array.real.reshape(-1), array.imag.reshape(-1)])
    if flat is not None and array.size >= _KERNEL_FROM and array.dtype.char in "fd":
        from engine.ops.buckets.kernels import sum_of_squares

        return sum_of_squares(array)
    wide = array.astype(np.float64)
    return float(np.add.reduce(np.square(wide, out=wide), axis=None))


@heard
def clip_grads_with_norm_(
    parameters: Tensor | Iterable[Tensor], max_norm: float, total_norm: Tensor, foreach: bool | None = None
) -> None:
    """Multiplies every gradient by min(1, max_norm / (total_norm + 1e-6)), in place."""
    gradients = _gradients(parameters)
    if not gradients:
        return
    with no_grad():
        factor = (float(max_norm) / (total_norm + 1e-6)).clamp(max=1.0)
        if all(gradient.device.type == "cpu" for gradient in gradients):
            share = float(factor)
            if share != 1.0:  # multiplying by 1 would be one pass over memory for nothing
                for gradient in gradients:
                    gradient._array *= gradient._array.dtype.type(share)
                    gradient._bump_version("clip_grads_with_norm_")
            return
        if _kernels_serve(gradients) and factor.device is gradients[0].device:
            from engine.ops.buckets import cuda as buckets

            with on_gpu_of(factor._array):
                by = factor._array if factor._array.dtype.char in "fd" else factor._array.astype(np.float32)
                buckets.scale([flat_view(gradient) for gradient in gradients], by=by)
            for gradient in gradients:
                gradient._bump_version("clip_grads_with_norm_")
            return
        for gradient in gradients:
            gradient.mul_(factor.to(device=gradient.device))


@heard
def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Scales the gradients to a joint norm of at most `max_norm`; returns the norm they had (0 without gradients).

    A norm that is not finite makes the gradients NaN or 0, or raises RuntimeError with `error_if_nonfinite`.
    """
    if isinstance(parameters, Tensor):
        parameters = [parameters]
    else:
        is_generator = isinstance(parameters, types.GeneratorType)
        parameters = list(parameters)
        if is_generator and not parameters:
            warnings.warn("`parameters` is an empty generator, no gradient clipping will occur.", stacklevel=2)
    total = get_total_norm(_gradients(parameters), norm_type, error_if_nonfinite, foreach)
    clip_grads_with_norm_(parameters, max_norm, total, foreach)
    return total


@heard
def clip_grad_value_(parameters: Tensor | Iterable[Tensor], clip_value: float, foreach: bool | None = None) -> None:
    """Clamps every element of every gradient to [-clip_value, clip_value], in place."""
    limit = float(clip_value)
    gradients = _gradients(parameters)
    with no_grad():
        if gradients and _kernels_serve(gradients) and not any(gradient.is_complex() for gradient in gradients):
            from engine.ops.buckets import cuda as buckets

            with on_gpu_of(gradients[0]._array):
                buckets.clamp([flat_view(gradient) for gradient in gradients], limit)
            for gradient in gradients:
                gradient._bump_version("clip_grad_value_")
            return
        for gradient in gradients:
            gradient.clamp_(-limit, limit)


def clip_grad_norm(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """The older name of `clip_grad_norm_`."""
    warnings.warn(
        "`engine.nn.utils.clip_grad_norm` is now deprecated in favor of `engine.nn.utils.clip_grad_norm_`.",
        FutureWarning,
        stacklevel=2,
    )
    return clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite, foreach)
