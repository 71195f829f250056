"""Parametrizations: an attribute that is computed from other parameters by modules, whenever it is read."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import engine
from engine.nn.container import ModuleDict, ModuleList
from engine.nn.module import Module
from engine.nn.parameter import Parameter
from engine.tensor import Tensor

_cache: dict[tuple[int, str], Tensor] = {}
_caching = 0


@contextmanager
def cached() -> Iterator[None]:
    """Computes each parametrized tensor once inside a `with` block."""
    global _caching
    _caching += 1
    try:
        yield
    finally:
        _caching -= 1
        if not _caching:
            _cache.clear()


class ParametrizationList(ModuleList):
    """The modules of one tensor, applied one after the other, and what they start from.

    That is `original`, or `original0`, `original1`, ... where the first module's `right_inverse` gives several.
    """

    def __init__(self, modules: list[Module], original: Tensor, unsafe: bool = False) -> None:
        super().__init__(modules)
        self.unsafe = unsafe
        value: Any = original
        with engine.no_grad():
            for module in reversed(modules):
                value = module.right_inverse(value) if hasattr(module, "right_inverse") else value
        self.is_tensor = isinstance(value, Tensor)
        for name, start in zip(self._names(1 if self.is_tensor else len(value)), self._several(value), strict=True):
            if isinstance(original, Parameter):
                keep = start is original
                setattr(self, name, original if keep else Parameter(start.detach(), original.requires_grad))
            else:
                self.register_buffer(name, start)
        self.ntensors = 1 if self.is_tensor else len(value)

    def _names(self, count: int) -> list[str]:
        return ["original"] if self.is_tensor else [f"original{which}" for which in range(count)]

    def _several(self, value: Any) -> list[Tensor]:
        return [value] if self.is_tensor else list(value)

    def right_inverse(self, value: Tensor) -> None:
        """Sets what the tensor is computed from so that it becomes `value`.

        Raises: RuntimeError where a module has no `right_inverse`.
        """
        with engine.no_grad():
            found: Any = value
            for module in reversed(list(self)):
                if not hasattr(module, "right_inverse"):
                    raise RuntimeError(f"parametrization {type(module).__name__} does not implement right_inverse.")
                found = module.right_inverse(found)
            for name, start in zip(self._names(self.ntensors), self._several(found), strict=True):
                getattr(self, name).data = start

    def forward(self) -> Tensor:
        """The tensor."""
        modules = list(self)
        value = modules[0](*(getattr(self, name) for name in self._names(self.ntensors)))
        for module in modules[1:]:
            value = module(value)
        return value


def _inject(module: Module) -> None:
    """Gives the module a class of its own, to put properties on."""
    base = type(module)
    made = type(f"Parametrized{base.__name__}", (base,), {"__module__": base.__module__, "_unparametrized": base})
    made.__deepcopy__ = _deepcopy  # type: ignore[attr-defined]
    made.__reduce_ex__ = _refuse_pickle  # type: ignore[assignment, method-assign]
    module.__class__ = made
    module.parametrizations = ModuleDict()


def _deepcopy(self: Module, memo: dict[int, Any]) -> Module:
    copied = memo[id(self)] = self.__class__.__new__(self.__class__)
    copied.__dict__.update(deepcopy(self.__dict__, memo))
    copied.__class__ = type(type(self).__name__, type(self).__bases__, dict(type(self).__dict__))
    return copied


def _refuse_pickle(self: Module, protocol: Any) -> Any:
    raise RuntimeError("Serialization of parametrized modules is only supported through state_dict().")


def _put_property(module: Module, name: str) -> None:
    def value(self: Module) -> Tensor:
        parametrization = self.parametrizations[name]
        if not _caching:
            return parametrization()
        key = (id(self), name)
        if key not in _cache:
            _cache[key] = parametrization()
        return _cache[key]

    def assign(self: Module, given: Tensor) -> None:
        self.parametrizations[name].right_inverse(given)

    setattr(type(module), name, property(value, assign))


def register_parametrization(
    module: Module, tensor_name: str, parametrization: Module, *, unsafe: bool = False
) -> Module:
    """Makes `module.<tensor_name>` what `parametrization` computes from it; several are applied one after the other.

    Raises: ValueError for a name that is no parameter or buffer, or for a result of another shape or dtype (unless
    `unsafe`).
    """
    parametrization.train(module.training)
    if is_parametrized(module, tensor_name):
        chain: ParametrizationList = module.parametrizations[tensor_name]
        before = getattr(module, tensor_name)
        if not unsafe:
            _require_same(before, parametrization(before), tensor_name)
        chain.append(parametrization)
        return module
    if tensor_name not in module._parameters and tensor_name not in module._buffers:
        raise ValueError(
            f"Module '{module}' does not have a parameter, a buffer, or a parametrized element with name "
            f"'{tensor_name}'"
        )
    original = getattr(module, tensor_name)
    chain = ParametrizationList([parametrization], original, unsafe)
    if not unsafe:
        with engine.no_grad():
            _require_same(original, chain(), tensor_name)
    if not is_parametrized(module):
        _inject(module)
    delattr(module, tensor_name)
    module.parametrizations[tensor_name] = chain
    _put_property(module, tensor_name)
    return module


def _require_same(before: Tensor, after: Any, name: str) -> None:
    if not isinstance(after, Tensor) or after.shape != before.shape or after.dtype is not before.dtype:
        shape = (tuple(after.shape), after.dtype) if isinstance(after, Tensor) else type(after).__name__
        raise ValueError(
            f"register_parametrization: expected a result like {name!r}, {tuple(before.shape)} and {before.dtype}, got "
            f"{shape}; unsafe=True allows it"
        )


def is_parametrized(module: Module, tensor_name: str | None = None) -> bool:
    """Whether the module, or this tensor of it, is parametrized."""
    chains = module._modules.get("parametrizations")
    if not isinstance(chains, ModuleDict):
        return False
    return len(chains) > 0 if tensor_name is None else tensor_name in chains


def remove_parametrizations(module: Module, tensor_name: str, leave_parametrized: bool = True) -> Module:
    """Makes the tensor an ordinary one again: its value, or what it was computed from.

    Raises: ValueError for a tensor that is not parametrized, or several originals and not `leave_parametrized`.
    """
    if not is_parametrized(module, tensor_name):
        raise ValueError(f"Module {module} does not have a parametrization on {tensor_name}")
    chain: ParametrizationList = module.parametrizations[tensor_name]
    if not leave_parametrized and not chain.is_tensor:
        raise ValueError(
            "Cannot leave unparametrized (`leave_parametrized=False`) a tensor that is parametrized in terms of a "
            "sequence of tensors."
        )
    trained = any(True for _ in chain.parameters(recurse=False))
    if leave_parametrized:
        with engine.no_grad():
            value = getattr(module, tensor_name).detach()
        kept: Any = Parameter(value) if trained else value
    else:
        kept = chain.original
    delattr(type(module), tensor_name)
    del module.parametrizations[tensor_name]
    if trained:
        module.register_parameter(tensor_name, kept)
    else:
        module.register_buffer(tensor_name, kept)
    if not is_parametrized(module):
        delattr(module, "parametrizations")
        module.__class__ = type(module)._unparametrized  # type: ignore[attr-defined]
    return module
