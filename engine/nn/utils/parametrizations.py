"""Weight norm and spectral norm by parametrization."""

from typing import TypeVar

import engine
from engine.nn.functional import normalize
from engine.nn.module import Module
from engine.nn.utils._spectral_norm import as_matrix, default_axis, power_iteration, start_vectors
from engine.nn.utils._weight_norm import norm_except_dim
from engine.nn.utils.parametrize import register_parametrization
from engine.tensor import Tensor

AnyModule = TypeVar("AnyModule", bound=Module)


class _WeightNorm(Module):
    def __init__(self, dim: int | None) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, weight_g: Tensor, weight_v: Tensor) -> Tensor:
        return weight_v * (weight_g / norm_except_dim(weight_v, self.dim))

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        return norm_except_dim(weight, self.dim), weight


class _SpectralNorm(Module):
    def __init__(self, weight: Tensor, n_power_iterations: int, dim: int, eps: float) -> None:
        super().__init__()
        if n_power_iterations <= 0:
            raise ValueError(
                f"Expected n_power_iterations to be positive, but got n_power_iterations={n_power_iterations}"
            )
        self.dim = dim
        self.eps = eps
        self.n_power_iterations = n_power_iterations
        if weight.ndim > 1:
            matrix = as_matrix(weight.detach(), dim)
            u, v = start_vectors(matrix, eps)
            power_iteration(matrix, u, v, 15, eps)
            self.register_buffer("_u", u)
            self.register_buffer("_v", v)

    def forward(self, weight: Tensor) -> Tensor:
        if weight.ndim == 1:
            return normalize(weight, dim=0, eps=self.eps)
        matrix = as_matrix(weight, self.dim)
        if self.training:
            power_iteration(matrix, self._u, self._v, self.n_power_iterations, self.eps)
        u, v = self._u.clone(), self._v.clone()
        return weight / engine.dot(u, engine.mv(matrix, v))

    def right_inverse(self, value: Tensor) -> Tensor:
        return value


def weight_norm(module: AnyModule, name: str = "weight", dim: int | None = 0) -> AnyModule:
    """A weight as magnitude times direction: `parametrizations.<name>.original0` and `original1`."""
    register_parametrization(module, name, _WeightNorm(dim), unsafe=True)
    return module


def spectral_norm(
    module: AnyModule, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12, dim: int | None = None
) -> AnyModule:
    """A weight divided by its largest singular value, which a power iteration follows in training.

    Raises: ValueError for a missing parameter, or n_power_iterations below 1.
    """
    weight = getattr(module, name, None)
    if not isinstance(weight, Tensor):
        raise ValueError(f"Module '{module}' has no parameter or buffer with name '{name}'")
    axis = default_axis(module) if dim is None else dim
    register_parametrization(module, name, _SpectralNorm(weight, n_power_iterations, axis, eps))
    return module
