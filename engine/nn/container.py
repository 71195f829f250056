"""Containers of modules: Sequential, ModuleList, ModuleDict."""

from collections import OrderedDict
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from itertools import chain
from operator import index as as_index
from typing import Any, Self

from engine.nn.module import Module


class _Indexed(Module):
    """What Sequential and ModuleList share: children in a row, named "0", "1", ... unless named by the user."""

    def _name_at(self, position: int) -> str:
        """The name of the child at `position`, which may be negative. Raises IndexError."""
        position = as_index(position)
        if not -len(self._modules) <= position < len(self._modules):
            raise IndexError(f"index {position} is out of range")
        return list(self._modules)[position]

    def _renumber(self, modules: Iterable[Module]) -> None:
        """Makes `modules` the children, named by their positions."""
        replaced = {str(position): module for position, module in enumerate(modules)}
        for name in list(self._modules):
            del self._modules[name]
        for name, module in replaced.items():
            self.add_module(name, module)

    def __setitem__(self, index: int, module: Module) -> None:
        setattr(self, self._name_at(index), module)

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return iter(self._modules.values())

    def append(self, module: Module) -> Self:
        self.add_module(str(len(self)), module)
        return self

    def extend(self, modules: Iterable[Module]) -> Self:
        if not isinstance(modules, Iterable):
            raise TypeError(
                f"{type(self).__name__}.extend should be called with an iterable, but got {type(modules).__name__}"
            )
        for module in list(modules):
            self.append(module)
        return self

    def __getitem__(self, index: slice | int) -> Any:
        raise NotImplementedError(f"{type(self).__name__} defines no indexing")

    def __delitem__(self, index: slice | int) -> None:
        raise NotImplementedError(f"{type(self).__name__} defines no deletion")

    def pop(self, key: int) -> Module:
        module = self[key]
        del self[key]
        return module

    def __iadd__(self, other: Iterable[Module]) -> Self:
        return self.extend(other)


class Sequential(_Indexed):
    """Calls its children one after another, each on the result of the one before.

    Args: modules, or one OrderedDict of named modules. Indexing gives a child, slicing a Sequential of the same
    children.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__()
        named = args[0].items() if len(args) == 1 and isinstance(args[0], OrderedDict) else enumerate(args)
        for name, module in named:
            self.add_module(str(name), module)

    def forward(self, input: Any) -> Any:
        for module in self._modules.values():
            input = module(input)
        return input

    def __getitem__(self, index: slice | int) -> Any:
        if isinstance(index, slice):
            return self.__class__(OrderedDict(list(self._modules.items())[index]))
        return self._modules[self._name_at(index)]

    def __delitem__(self, index: slice | int) -> None:
        for name in list(self._modules)[index] if isinstance(index, slice) else [self._name_at(index)]:
            delattr(self, name)
        # names are renumbered as in PyTorch, user-given ones included
        self._renumber(list(self))

    def insert(self, index: int, module: Module) -> Self:
        """Puts `module` before position `index`, which may be negative. Raises IndexError out of range."""
        if not isinstance(module, Module):
            raise AssertionError(f"module should be of type: {Module}")
        if not -len(self) <= index <= len(self):
            raise IndexError(f"Index out of range: {index}")
        children = list(self)
        children.insert(index, module)
        self._renumber(children)
        return self

    def __add__(self, other: "Sequential") -> "Sequential":
        if not isinstance(other, Sequential):
            raise ValueError(f"add operator supports only objects of Sequential class, but {type(other)} is given.")
        return Sequential(*self, *other)

    def __mul__(self, times: int) -> "Sequential":
        """A Sequential that calls the same children `times` times over."""
        _check_times(times)
        return Sequential(*(module for _ in range(times) for module in self))

    __rmul__ = __mul__

    def __imul__(self, times: int) -> Self:
        _check_times(times)
        children = list(self)
        for _ in range(times - 1):
            self.extend(children)
        return self


def _check_times(times: int) -> None:
    if not isinstance(times, int):
        raise TypeError(f"unsupported operand type(s) for *: {type(Sequential)} and {type(times)}")
    if times <= 0:
        raise ValueError(f"Non-positive multiplication factor {times} for {type(Sequential)}")


class ModuleList(_Indexed):
    """A list whose modules are registered, so that their parameters are found. Has no forward of its own."""

    def __init__(self, modules: Iterable[Module] | None = None) -> None:
        super().__init__()
        if modules is not None:
            self.extend(modules)

    def __getitem__(self, index: slice | int) -> Any:
        if isinstance(index, slice):
            return self.__class__(list(self)[index])
        return self._modules[self._name_at(index)]

    def __delitem__(self, index: slice | int) -> None:
        children = list(self)
        if not isinstance(index, slice):
            self._name_at(index)
        del children[index]
        self._renumber(children)

    def insert(self, index: int, module: Module) -> None:
        children = list(self)
        children.insert(index, module)
        self._renumber(children)

    def __add__(self, other: Iterable[Module]) -> "ModuleList":
        return ModuleList(chain(self, other))

    def __repr__(self) -> str:
        """Like other modules, but a run of equal children is printed once: `(0-2): 3 x Linear(...)`."""
        runs: list[tuple[int, int, str]] = []
        for position, child in enumerate(self):
            text = repr(child)
            if runs and runs[-1][2] == text:
                runs[-1] = (runs[-1][0], position, text)
            else:
                runs.append((position, position, text))
        if not runs:
            return f"{self._get_name()}()"
        lines = [
            f"({first}): {text}" if first == last else f"({first}-{last}): {last - first + 1} x {text}"
            for first, last, text in runs
        ]
        body = "\n".join(lines).replace("\n", "\n  ")
        return f"{self._get_name()}(\n  {body}\n)"


class ModuleDict(Module):
    """A dict of registered modules, in order of insertion. Has no forward of its own."""

    def __init__(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]] | None = None) -> None:
        super().__init__()
        if modules is not None:
            self.update(modules)

    def __getitem__(self, key: str) -> Module:
        return self._modules[key]

    def __setitem__(self, key: str, module: Module) -> None:
        self.add_module(key, module)

    def __delitem__(self, key: str) -> None:
        del self._modules[key]

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __contains__(self, key: str) -> bool:
        return key in self._modules

    def clear(self) -> None:
        self._modules.clear()

    def pop(self, key: str) -> Module:
        return self._modules.pop(key)

    def keys(self) -> KeysView[str]:
        return self._modules.keys()

    def items(self) -> ItemsView[str, Module]:
        return self._modules.items()

    def values(self) -> ValuesView[Module]:
        return self._modules.values()

    def update(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]]) -> None:
        """Adds the modules of a mapping or of (key, module) pairs. Raises TypeError or ValueError for anything else."""
        if not isinstance(modules, Iterable):
            raise TypeError(
                "ModuleDict.update should be called with an iterable of key/value pairs, but got "
                f"{type(modules).__name__}"
            )
        pairs = modules.items() if isinstance(modules, Mapping | ModuleDict) else modules
        for position, pair in enumerate(pairs):
            if not isinstance(pair, Iterable):
                raise TypeError(
                    f"ModuleDict update sequence element #{position} should be Iterable; is {type(pair).__name__}"
                )
            pair = tuple(pair)
            if len(pair) != 2:
                raise ValueError(
                    f"ModuleDict update sequence element #{position} has length {len(pair)}; 2 is required"
                )
            self[pair[0]] = pair[1]
