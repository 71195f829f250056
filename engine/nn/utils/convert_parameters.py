"""All parameters as one vector, and back."""

from collections.abc import Iterable

import engine
from engine.autograd.modes import no_grad
from engine.tensor import Tensor


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """The elements of all parameters in a row, in logical order; differentiable. Raises TypeError if devices differ."""
    tensors = list(parameters)
    _check_devices(tensors)
    return engine.cat([tensor.reshape(-1) for tensor in tensors])


def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Writes consecutive pieces of `vec` into the parameters.

    Raises: TypeError if `vec` is no tensor or devices differ; RuntimeError if it is too short.
    """
    if not isinstance(vec, Tensor):
        raise TypeError(f"expected Tensor, but got: {type(vec).__name__}")
    tensors = list(parameters)
    _check_devices(tensors)
    needed = sum(tensor.numel() for tensor in tensors)
    if vec.numel() < needed:
        raise RuntimeError(
            f"vector_to_parameters: the parameters have {needed} elements, the vector only {vec.numel()}"
        )
    at = 0
    with no_grad():
        for tensor in tensors:
            size = tensor.numel()
            tensor.copy_(vec[at : at + size].view(tensor.shape))
            at += size


def _check_devices(tensors: list[Tensor]) -> None:
    for tensor in tensors:
        if tensor.device != tensors[0].device:
            raise TypeError(
                f"Found two parameters on different devices, this is currently not supported: {tensors[0].device} "
                f"and {tensor.device}"
            )
