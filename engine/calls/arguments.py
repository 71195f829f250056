"""Arguments and results: nested tuples, lists and dictionaries of tensors and other things."""

from typing import Any

from engine.tensor import Tensor


def signature(value: Any, tensors: list[Tensor], objects: list[Any] | None = None) -> Any:
    """What calls must have in common to share a recording; collects the tensors in `value`, and other objects."""
    kind = type(value)
    if kind is Tensor or isinstance(value, Tensor):
        for place, other in enumerate(tensors):
            if other is value:
                tensors.append(value)
                return (place, value._spec)
        tensors.append(value)
        return value._spec
    if kind is tuple or kind is list:
        return (kind, *[signature(each, tensors, objects) for each in value])
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return (kind, *[signature(each, tensors, objects) for each in value])
    if kind is dict:
        return (kind, *value, *[signature(each, tensors, objects) for each in value.values()])
    if isinstance(value, int | float | complex | str | bytes | type(None)):
        return (kind, repr(value))
    if objects is not None:
        objects.append(value)
    return _Identity(value)


class _Identity:
    """An object that is nothing but itself."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def with_tensors(value: Any, tensors: Any) -> Any:
    """`value` with its tensors, in order, exchanged for the next ones of an iterator."""
    kind = type(value)
    if isinstance(value, Tensor):
        return next(tensors)
    if kind in (tuple, list):
        return kind(with_tensors(each, tensors) for each in value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return kind(*[with_tensors(each, tensors) for each in value])
    if kind is dict:
        return {key: with_tensors(each, tensors) for key, each in value.items()}
    return value


def alias_of(tensor: Tensor) -> Tensor:
    alias = tensor.detach()
    if alias._array is not None:
        alias._array = alias._array[...]
    return alias


def tensors_in(value: Any) -> list[Tensor]:
    found: list[Tensor] = []
    signature(value, found)
    return found


def exchanged(result: Any, aliases: list[Tensor], tensors: list[Tensor]) -> Any:
    """The result with arguments in place of their aliases."""
    by_alias = {id(alias): tensor for alias, tensor in zip(aliases, tensors, strict=True)}
    return with_tensors(result, iter([by_alias.get(id(tensor), tensor) for tensor in tensors_in(result)]))
