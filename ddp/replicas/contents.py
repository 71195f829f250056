"""What of a wrapped module is averaged and copied: its parameters and buffers, but for those to be ignored."""

from collections.abc import Collection, Iterable
from operator import is_
from typing import Any

import engine
import engine.nn as nn
from ddp.execution.layouts import TensorLayout
from engine.nn.state import own_modules, own_parameters
from engine.nn.utils.stateless import is_given

Named = list[tuple[str, Any]]  # by path, as in `state_dict`


class Contents:
    """Of `module`, without the paths in `ignored`.

    `note` remembers what is there when the module is wrapped; `check`, at every forward, tells what has changed since.
    """

    def __init__(self, module: nn.Module, ignored: Collection[str]) -> None:
        self._module = module
        self._ignored = ignored
        # At `note`: of each parameter the dict of its module that has it, its name there, itself and its path;
        self._members: list[dict[str, Any]] = []
        self._names: list[str] = []
        self._parameters: list[nn.Parameter] = []
        self._paths: list[str] = []
        self._frozen: list[nn.Parameter] = []
        # of each module with children the dict of those, the children and its own path.
        self._families: list[dict[str, Any]] = []
        self._children: list[tuple[Any, ...]] = []
        self._parents: list[str] = []
        self._owners_of_buffers: list[tuple[str, nn.Module]] = []

    def _kept(self, named: Iterable[tuple[str, Any]]) -> Named:
        return [(name, tensor) for name, tensor in named if name not in self._ignored]

    def parameters(self) -> Named:
        return self._kept(self._module.named_parameters())

    def trainable(self) -> Named:
        return [(name, parameter) for name, parameter in self.parameters() if parameter.requires_grad]

    def buffers(self) -> Named:
        return self._kept(self._module.named_buffers())

    def tensors(self, buffers: bool) -> list[engine.Tensor]:
        """Parameters, and buffers if wanted."""
        return [tensor for _, tensor in (*self.parameters(), *(self.buffers() if buffers else ()))]

    def note(self) -> None:
        """The module is wrapped: from now on its parameters and the modules that have them may not change."""
        modules = list(self._module.named_modules())
        found = [
            (own_parameters(owner), name, parameter, _path(where, name))
            for where, owner in modules
            for name, parameter in owner.named_parameters(recurse=False)
            if _path(where, name) not in self._ignored
        ]
        self._members = [members for members, _, _, _ in found]
        self._names = [name for _, name, _, _ in found]
        self._parameters = [parameter for _, _, parameter, _ in found]
        self._paths = [path for _, _, _, path in found]
        self._frozen = [parameter for parameter in self._parameters if not parameter.requires_grad]
        families = [(where, children) for where, owner in modules if (children := own_modules(owner))]
        self._families = [children for _, children in families]
        self._children = [tuple(children.values()) for _, children in families]
        self._parents = [where for where, _ in families]
        self._owners_of_buffers = [
            (where, owner)
            for where, owner in modules
            if any(_path(where, name) not in self._ignored for name, _ in owner.named_buffers(recurse=False))
        ]

    def check(self) -> bool:
        """Whether a parameter was unfrozen since `note`. RuntimeError where one, or a module with some, was exchanged.

        What `functional_call` puts in the place of a parameter is its caller's: nobody averages its gradient.
        """
        # Loops in C: one in Python takes 0.2 µs a parameter.
        if [*map(tuple, map(dict.values, self._families))] != self._children:
            for modules, children, where in zip(self._families, self._children, self._parents, strict=True):
                self._refuse_new_modules(modules, children, where)
        if not all(map(is_, map(dict.get, self._members, self._names), self._parameters)):
            self._refuse_new_parameters()
        return bool(self._frozen) and any(parameter.requires_grad for parameter in self._frozen)

    def _refuse_new_parameters(self) -> None:
        for members, name, parameter, path in zip(
            self._members, self._names, self._parameters, self._paths, strict=True
        ):
            if members.get(name) is not parameter and not is_given(members, name):
                raise RuntimeError(
                    f"DistributedDataParallel: parameter {path} was exchanged for another one since the module was "
                    "wrapped; wrap it again"
                )

    def _refuse_new_modules(self, modules: dict[str, Any], children: tuple[Any, ...], where: str) -> None:
        """One without parameters to be averaged, or with none but those that are, may come and go."""
        noted = set(map(id, self._parameters))
        for name, module in modules.items():
            if module is None or any(module is child for child in children):
                continue
            found = [path for path, parameter in Contents(module, ()).trainable() if id(parameter) not in noted]
            if any(_path(_path(where, name), path) not in self._ignored for path in found):
                raise RuntimeError(
                    f"DistributedDataParallel: module {_path(where, name)} is another one than when the model was "
                    "wrapped, so nobody would average its gradients; wrap the model again"
                )

    def has_buffers(self) -> bool:
        """Whether there were any at `note`."""
        return bool(self._owners_of_buffers)

    def current_buffers(self) -> list[engine.Tensor]:
        """Those of this moment, of the modules that had some at `note`: they may have been assigned anew."""
        named = (
            (_path(where, name), buffer)
            for where, owner in self._owners_of_buffers
            for name, buffer in owner.named_buffers(recurse=False)
        )
        return [buffer for _, buffer in self._kept(named)]


def layouts(named: Named) -> list[TensorLayout]:
    """What must be equal on all ranks."""
    return [TensorLayout(name, tuple(t.shape), tuple(t.stride()), t.dtype.name) for name, t in named]


def _path(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name
