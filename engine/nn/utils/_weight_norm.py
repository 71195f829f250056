"""A weight as magnitude times direction, computed anew before each call. Salimans and Kingma (2016).

`engine.nn.utils.parametrizations.weight_norm` is the same by parametrization.
"""

from typing import Any, TypeVar

from engine.nn.module import Module
from engine.nn.parameter import Parameter
from engine.tensor import Tensor

AnyModule = TypeVar("AnyModule", bound=Module)


def norm_except_dim(weight: Tensor, dim: int | None) -> Tensor:
    """The 2-norm over all axes but one, which keep size 1; over all without one."""
    if dim is None or dim == -1:
        return weight.norm()
    axes = [axis for axis in range(weight.ndim) if axis != dim % weight.ndim]
    return weight.square().sum(axes, keepdim=True).sqrt() if axes else weight.abs()


class WeightNorm:
    """The forward pre-hook: weight = g v / |v|."""

    def __init__(self, name: str, dim: int | None) -> None:
        self.name = name
        self.dim = dim

    def compute_weight(self, module: Module) -> Tensor:
        """The weight of the parameters as they are."""
        direction = getattr(module, f"{self.name}_v")
        return direction * (getattr(module, f"{self.name}_g") / norm_except_dim(direction, self.dim))

    def __call__(self, module: Module, inputs: Any) -> None:
        setattr(module, self.name, self.compute_weight(module))


def weight_norm(module: AnyModule, name: str = "weight", dim: int | None = 0) -> AnyModule:
    """Replaces a parameter by `<name>_g`, its norms along `dim` (one over all for None), and `<name>_v`.

    Raises: RuntimeError for a parameter that has weight norm already.
    """
    if any(isinstance(hook, WeightNorm) and hook.name == name for hook in module._forward_pre_hooks.values()):
        raise RuntimeError(f"Cannot register two weight_norm hooks on the same parameter {name}")
    weight = getattr(module, name)
    hook = WeightNorm(name, dim)
    del module._parameters[name]
    module.register_parameter(f"{name}_g", Parameter(norm_except_dim(weight, dim).detach()))
    module.register_parameter(f"{name}_v", Parameter(weight.detach()))
    setattr(module, name, hook.compute_weight(module))
    module.register_forward_pre_hook(hook)
    return module


def remove_weight_norm(module: AnyModule, name: str = "weight") -> AnyModule:
    """Makes the weight a parameter again. Raises: ValueError where there is no weight norm."""
    for key, hook in module._forward_pre_hooks.items():
        if isinstance(hook, WeightNorm) and hook.name == name:
            weight = hook.compute_weight(module).detach()
            delattr(module, name)
            for part in ("g", "v"):
                del module._parameters[f"{name}_{part}"]
            setattr(module, name, Parameter(weight))
            del module._forward_pre_hooks[key]
            return module
    raise ValueError(f"weight_norm of '{name}' not found in {module}")
