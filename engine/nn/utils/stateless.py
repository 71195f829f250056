"""A module called with other parameters than its own."""

from collections.abc import Mapping, Sequence
from typing import Any

from engine.nn.module import Module
from engine.tensor import Tensor

_given: list[tuple[int, str]] = []  # the id of a module's parameters or buffers, and the name: of calls under way


def is_given(members: Mapping[str, Any], name: str) -> bool:
    """Whether `members[name]`, of a module's parameters or buffers, is what a `functional_call` under way was given."""
    return (id(members), name) in _given


def functional_call(
    module: Module,
    parameter_and_buffer_dicts: Mapping[str, Tensor] | Sequence[Mapping[str, Tensor]],
    args: Any = None,
    kwargs: dict[str, Any] | None = None,
    *,
    tie_weights: bool = True,
    strict: bool = False,
) -> Any:
    """`module(*args, **kwargs)` with the given tensors, by dotted name, in the place of parameters and buffers.

    tie_weights: a tensor given for one of several names of a parameter stands for all. strict: every name is given.
    Raises: RuntimeError for unknown names, or missing ones with `strict`.
    """
    given: dict[str, Tensor] = {}
    for part in (
        [parameter_and_buffer_dicts]
        if isinstance(parameter_and_buffer_dicts, Mapping)
        else (parameter_and_buffer_dicts)
    ):
        given |= part
    places: dict[str, tuple[dict[str, Any], str]] = {}
    for path, owner in module.named_modules(remove_duplicate=False):
        for kind in ("_parameters", "_buffers"):
            for name, member in owner.__dict__[kind].items():
                if member is not None:
                    places[f"{path}.{name}" if path else name] = (owner.__dict__[kind], name)
    unknown, missing = given.keys() - places.keys(), places.keys() - given.keys() if strict else set()
    if unknown or missing:
        raise RuntimeError(
            f"functional_call: unexpected name(s) {sorted(unknown)}, missing name(s) {sorted(missing)} of "
            f"{type(module).__name__}"
        )
    before = {name: members[own] for name, (members, own) in places.items()}
    values = dict(given)
    if tie_weights:
        replaced = {id(before[name]): value for name, value in given.items()}
        values |= {name: replaced[id(own)] for name, own in before.items() if id(own) in replaced and name not in given}
    try:
        for name, value in values.items():
            members, own_name = places[name]
            members[own_name] = value
            _given.append((id(members), own_name))
        arguments = () if args is None else args if isinstance(args, tuple) else (args,)
        return module(*arguments, **(kwargs or {}))
    finally:
        for name in values:
            members, own_name = places[name]
            members[own_name] = before[name]
            _given.remove((id(members), own_name))
