"""Checks of optimizer options that several optimizers share."""

from typing import Any

from engine.tensor import Tensor


def check_lr(lr: Any) -> None:
    """Raises ValueError unless `lr` is a number, or a tensor with one element, that is not negative."""
    if isinstance(lr, Tensor) and lr.numel() != 1:
        raise ValueError("Tensor lr must be 1-element")
    if not float(lr) >= 0.0:
        raise ValueError(f"Invalid learning rate: {lr}")


def check_not_negative(**options: Any) -> None:
    """Raises ValueError for the first option below 0 (or NaN); names are spelled as PyTorch's messages spell them."""
    for name, value in options.items():
        if not float(value) >= 0.0:
            raise ValueError(f"Invalid {name} value: {value}")


def check_betas(betas: Any) -> tuple[float, float]:
    """Both as floats. Raises ValueError unless they lie in [0, 1), and both or none are tensors."""
    if isinstance(betas[0], Tensor) != isinstance(betas[1], Tensor):
        raise ValueError(f"betas must be either both floats or both Tensors, got {betas}")
    first, second = (float(beta) for beta in betas)
    for index, beta in enumerate((first, second)):
        if not 0.0 <= beta < 1.0:
            raise ValueError(f"Invalid beta parameter at index {index}: {betas[index]}")
    return first, second


def check_path(foreach: Any = None, fused: Any = None, capturable: bool = False, differentiable: bool = False) -> None:
    """The options with which PyTorch chooses between implementations.

    Here there is one, which batches small parameters and fuses big ones by itself, so `foreach` and `fused` are hints
    without effect. `capturable` asks for what steps of CUDA parameters are anyway; for others the first step refuses
    it. Raises: RuntimeError where PyTorch does; NotImplementedError for `differentiable`.
    """
    if fused and differentiable:
        raise RuntimeError("`fused` does not support `differentiable`")
    if fused and foreach:
        raise RuntimeError("`fused` and `foreach` cannot be `True` together.")
    if differentiable:
        raise NotImplementedError(
            "differentiable=True (gradients through a step) is not supported; use differentiable=False"
        )
