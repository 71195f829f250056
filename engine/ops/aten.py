"""`torch.ops.aten`: names of PyTorch's operators, to say which ones are meant (`engine.utils.selective`).

They cannot be called: use the functions of `engine`.
"""

from typing import NoReturn


class Overload:
    """One name, as `aten.mm` or `aten.mm.default`; equal to another one for the same operator."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._key = name.replace("_", "").lower().removesuffix("forcpu")

    def __getattr__(self, overload: str) -> "Overload":
        if overload.startswith("__"):
            raise AttributeError(overload)
        return Overload(self._name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Overload) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __call__(self, *_: object, **__: object) -> NoReturn:
        raise NotImplementedError(f"aten.{self._name} is a name here; call engine.{self._name.strip('_')}")

    def __repr__(self) -> str:
        return f"aten.{self._name}"


def __getattr__(name: str) -> Overload:
    if name.startswith("__"):
        raise AttributeError(name)
    return Overload(name)
