"""From objects with a state to JSON and tensors, and back.

Three kinds of entry: an object with `state_dict` and `load_state_dict`; one whose state is divided among the ranks; and
plain data, a state dict for instance.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import engine
from engine.optim import Optimizer
from engine.rules import layout
from engine.serialization import structure


@runtime_checkable
class Stateful(Protocol):
    """An object that gives its state and takes it back; the same on every rank."""

    def state_dict(self) -> Any:
        """The state: tensors, arrays and plain data."""

    def load_state_dict(self, state_dict: Any) -> Any:
        """Takes a state over."""


@runtime_checkable
class Divided(Protocol):
    """An object each rank of which has a part of the state, as ZeroRedundancyOptimizer."""

    def local_state_dict(self) -> dict[Any, Any]:
        """This rank's part. The whole is the union of the nested dicts of all ranks; what several have is equal."""

    def keeps(self, place: tuple[Any, ...]) -> bool:
        """Whether this rank wants the item at these keys of the nested dicts; those inside are asked for as well."""

    def load_state_dict(self, state_dict: Any) -> Any:
        """Takes over the whole, less what `keeps` left out."""


class Packed(NamedTuple):
    """A state. shared, own: for each entry its JSON, what all ranks hold and what this one does; tensors by name.

    firsts: the names of shared tensors that are those of the first rank.
    """

    shared: dict[str, Any]
    own: dict[str, Any]
    shared_tensors: dict[str, engine.Tensor]
    own_tensors: dict[str, engine.Tensor]
    firsts: set[str]

    def digests(self) -> dict[str, str]:
        """Of each shared entry: equal where the ranks hold the same apart from tensors' values."""
        return {key: hashlib.sha256(json.dumps(content).encode()).hexdigest() for key, content in self.shared.items()}


def pack(state: Mapping[str, Any]) -> Packed:
    """What a checkpoint holds of `state`.

    Raises: TypeError for a key that is no string, or for a value that is more than data, saying where.
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"checkpoint: expected a mapping of names to what is to be saved, got {type(state).__name__}")
    packed = Packed({}, {}, {}, {}, set())
    for key, value in state.items():
        if not isinstance(key, str):
            raise TypeError(f"checkpoint: expected names as keys, got {key!r}")
        contents, tensors = packed.shared, packed.shared_tensors
        if isinstance(value, Divided):
            contents, tensors = packed.own, packed.own_tensors
            value = value.local_state_dict()
        elif isinstance(value, Stateful):
            if isinstance(value, engine.nn.Module):  # whose buffers are the first rank's in data parallel training
                packed.firsts.update(f"{key}.{name}" for name, _ in value.named_buffers())
            value = value.state_dict()
        try:
            contents[key] = structure.pack(value, tensors, key)
        except structure.MoreThanDataError as error:
            raise TypeError(
                f"checkpoint: {error}; a checkpoint holds tensors, arrays, numbers, strings, bytes, None and dicts, "
                "lists and tuples of them, and objects with state_dict and load_state_dict"
            ) from None
    return packed


def stored_layout(shape: tuple[int, ...], stride: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The strides a tensor is stored with, its own where it is dense, and its axes from the slowest to the fastest."""
    stride = layout.preserve_strides(shape, stride)
    return stride, tuple(reversed(layout.permutation(shape, (stride,)))) if len(shape) > 1 else tuple(range(len(shape)))


def merge(key: str, contents: Sequence[Any]) -> Any:
    """One JSON of what each rank has of a divided entry. Raises: ValueError where they contradict each other."""
    merged = contents[0]
    for content in contents[1:]:
        merged = _merge(merged, content, key)
    return merged


def _merge(left: Any, right: Any, place: str) -> Any:
    if left == right:
        return left
    if isinstance(left, dict) and isinstance(right, dict):
        for kind in ("dict", "ordered"):
            if left.keys() == right.keys() == {kind}:
                return {kind: _merge_items(left[kind], right[kind], place)}
    raise ValueError(f"checkpoint: {place} differs between ranks: one has {left!r:.200}, another {right!r:.200}")


def _merge_items(left: list[Any], right: list[Any], place: str) -> list[Any]:
    items = {json.dumps(key): (key, value) for key, value in left}
    for key, value in right:
        text = json.dumps(key)
        items[text] = key, _merge(items[text][1], value, f"{place}.{key}") if text in items else value
    numbers = all(type(key) is int for key, _ in items.values())
    return [list(item) for item in (sorted(items.values()) if numbers else items.values())]


def prune(content: Any, keeps: Callable[[tuple[Any, ...]], bool], place: tuple[Any, ...] = ()) -> Any:
    """The JSON without what `keeps` does not want."""
    if isinstance(content, dict):
        for kind in ("dict", "ordered"):
            if content.keys() == {kind}:
                return {kind: [[key, prune(value, keeps, (*place, _plain(key)))]
                               for key, value in content[kind] if keeps((*place, _plain(key)))]}  # fmt: skip
    return content


def _plain(key: Any) -> Any:
    return key if isinstance(key, str | int) else json.dumps(key)


def check_fit(key: str, value: Any, loaded: Any) -> None:
    """Before anything is changed: whether an object will take a state.

    Raises: ValueError for missing or unexpected names of a module, for a tensor of another shape, for another number of
    parameters of an optimizer.
    """
    if not isinstance(value, Stateful) or isinstance(value, Divided):
        return
    if isinstance(value, engine.nn.Module):
        names, found = set(value.state_dict()), set(loaded)
        if names != found:
            raise ValueError(
                f"checkpoint: {key!r} does not fit: missing are {sorted(names - found)}, unexpected "
                f"{sorted(found - names)}"
            )
    if isinstance(value, Optimizer):
        sizes, found_sizes = ([len(group["params"]) for group in groups]
                              for groups in (value.param_groups, loaded["param_groups"]))  # fmt: skip
        if sizes != found_sizes:
            raise ValueError(f"checkpoint: {key!r} has parameter groups of {sizes}, the checkpoint of {found_sizes}")
    _check_shapes(key, value.state_dict(), loaded)


def _check_shapes(place: str, own: Any, loaded: Any) -> None:
    if isinstance(own, engine.Tensor) and isinstance(loaded, engine.Tensor):
        if own.shape != loaded.shape:
            raise ValueError(f"checkpoint: {place} has shape {tuple(own.shape)}, the checkpoint {tuple(loaded.shape)}")
    elif isinstance(own, dict) and isinstance(loaded, dict):
        for key in own:  # in the object's order: all ranks name the same one
            if key in loaded:
                _check_shapes(f"{place}.{key}", own[key], loaded[key])


def apply(state: MutableMapping[str, Any] | Mapping[str, Any], loaded: Mapping[str, Any]) -> None:
    """Objects take their state over; other entries of `state` are replaced."""
    for key, value in loaded.items():
        target = state[key]
        if isinstance(target, Stateful | Divided):
            target.load_state_dict(value)
        else:
            state[key] = value  # type: ignore[index]
