"""A weight divided by its largest singular value, computed anew before each call. Miyato et al. (2018).

`engine.nn.utils.parametrizations.spectral_norm` is the same by parametrization.
"""

from typing import Any, TypeVar

import engine
from engine.nn.functional import normalize
from engine.nn.module import Module
from engine.nn.parameter import Parameter
from engine.tensor import Tensor

AnyModule = TypeVar("AnyModule", bound=Module)


def as_matrix(weight: Tensor, dim: int) -> Tensor:
    """(size of axis `dim`, product of the others)."""
    return (weight.movedim(dim, 0) if dim else weight).reshape(weight.shape[dim], -1)


def power_iteration(matrix: Tensor, first: Tensor, second: Tensor, times: int, eps: float) -> None:
    """Moves `first`, then `second`, in place towards the singular vectors of the largest singular value: `first` is
    matrix · `second`, normalised, and `second` matrixᵀ · `first`.
    """
    with engine.no_grad():
        for _ in range(times):
            first.copy_(normalize(engine.mv(matrix, second), dim=0, eps=eps))
            second.copy_(normalize(engine.mv(matrix.t(), first), dim=0, eps=eps))


def start_vectors(matrix: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Random unit vectors u and v for `power_iteration`."""
    height, width = matrix.shape
    return (
        normalize(matrix.new_empty(height).normal_(0, 1), dim=0, eps=eps),
        normalize(matrix.new_empty(width).normal_(0, 1), dim=0, eps=eps),
    )


def default_axis(module: Module) -> int:
    """The axis of a weight's outputs: 1 for transposed convolutions, else 0."""
    return 1 if getattr(module, "transposed", False) else 0


class SpectralNorm:
    """The forward pre-hook; in training it moves its vectors first."""

    def __init__(self, name: str, n_power_iterations: int, dim: int, eps: float) -> None:
        self.name = name
        self.n_power_iterations = n_power_iterations
        self.dim = dim
        self.eps = eps

    def compute_weight(self, module: Module, do_power_iteration: bool) -> Tensor:
        """weight_orig / σ."""
        weight, u, v = (getattr(module, f"{self.name}_{part}") for part in ("orig", "u", "v"))
        matrix = as_matrix(weight, self.dim)
        if do_power_iteration:
            power_iteration(matrix.t(), v, u, self.n_power_iterations, self.eps)
            u, v = u.clone(), v.clone()  # the graph keeps these; the next iteration writes into the others
        return weight / engine.dot(u, engine.mv(matrix, v))

    def __call__(self, module: Module, inputs: Any) -> None:
        setattr(module, self.name, self.compute_weight(module, module.training))


def spectral_norm(
    module: AnyModule, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12, dim: int | None = None
) -> AnyModule:
    """Replaces a parameter by `<name>_orig` and buffers `<name>_u`, `<name>_v` of the power iteration.

    Raises: ValueError unless n_power_iterations > 0; RuntimeError for a parameter that has spectral norm already.
    """
    if any(isinstance(hook, SpectralNorm) and hook.name == name for hook in module._forward_pre_hooks.values()):
        raise RuntimeError(f"Cannot register two spectral_norm hooks on the same parameter {name}")
    if n_power_iterations <= 0:
        raise ValueError(f"Expected n_power_iterations to be positive, but got n_power_iterations={n_power_iterations}")
    hook = SpectralNorm(name, n_power_iterations, default_axis(module) if dim is None else dim, eps)
    weight = module._parameters[name]
    assert weight is not None
    u, v = start_vectors(as_matrix(weight.detach(), hook.dim), eps)
    del module._parameters[name]
    module.register_parameter(f"{name}_orig", weight)
    setattr(module, name, weight.detach())
    module.register_buffer(f"{name}_u", u)
    module.register_buffer(f"{name}_v", v)
    module.register_forward_pre_hook(hook)
    return module


def remove_spectral_norm(module: AnyModule, name: str = "weight") -> AnyModule:
    """Makes the weight a parameter again. Raises: ValueError where there is no spectral norm."""
    for key, hook in module._forward_pre_hooks.items():
        if isinstance(hook, SpectralNorm) and hook.name == name:
            weight = hook.compute_weight(module, False).detach()
            delattr(module, name)
            for part in ("u", "v"):
                del module._buffers[f"{name}_{part}"]
            del module._parameters[f"{name}_orig"]
            module.register_parameter(name, Parameter(weight))
            del module._forward_pre_hooks[key]
            return module
    raise ValueError(f"spectral_norm of '{name}' not found in {module}")
