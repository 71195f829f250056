"""Whether two recordings of a step are one and the same program.

What a step does may depend on Python that nobody records: a counter, a list, a number that changes. So it is recorded
twice in a row, and only what both recordings agree on is replayed.
"""

from typing import Any

from engine.calls.plan import Plan
from engine.capture.recorder import Constant, Event, External, Group, Known, Offer, Shell, Slot, Wrapped

_COMPARED = (int, float, complex, str, bytes, type(None), slice)


def difference(first: list[Event], second: list[Event]) -> str | None:
    """How two recordings differ, in words; None if they agree."""
    for one, other in zip(first, second, strict=False):
        found = _differ(one, other)
        if found is not None:
            return f"{found} ({other.line})"
    if len(first) != len(second):
        longer = max(first, second, key=len)
        return f"it does not do the same things at every call ({longer[min(len(first), len(second))].line})"
    return None


def settled(first: list[Event], second: list[Event]) -> list[Event]:
    """The second recording without what concerns only tensors that the step itself makes: their versions and flags."""
    return [event for other, event in zip(first, second, strict=True) if not _is_passing(other, event)]


def _is_passing(one: Event, other: Event) -> bool:
    if one.kind == "bump":
        return one.target is not other.target
    if one.kind == "requires_grad":
        return one.arguments[0].tensor is not other.arguments[0].tensor
    return False


def _differ(one: Event, other: Event) -> str | None:
    if one.kind != other.kind or not _same_target(one, other):
        return f"it does not do the same things at every call: {_name(one)}, then {_name(other)}"
    if one.results != other.results or len(one.arguments) != len(other.arguments):
        return f"{_name(one)} does not give the same kind of result at every call"
    if _is_passing(one, other):
        return None
    for mine, theirs in zip(one.arguments, other.arguments, strict=True):
        found = atoms_differ(mine, theirs)
        if found is not None:
            return f"{_name(one)} is given {found}"
    return None


def _same_target(one: Event, other: Event) -> bool:
    if one.kind in ("operator", "rule", "write"):
        mine, theirs = one.target, other.target
        if one.kind == "operator":
            return _same_plan(mine, theirs)
        return _same_plan(mine[0], theirs[0]) and mine[1] is theirs[1]
    return one.kind == "bump" or one.target is other.target


def _same_plan(one: Plan, other: Plan) -> bool:
    return (
        one.operator is other.operator
        and one.input_specs == other.input_specs
        and same_value(one.attributes, other.attributes)
    )


def _name(event: Event) -> str:
    if event.kind == "operator":
        return event.target.operator.name
    if event.kind == "rule":
        return f"the derivative of {event.target[0].operator.name}"
    if event.kind == "write":
        return f"{event.target[0].operator.name}_"
    return getattr(event.target, "__name__", event.kind.replace("_", " "))


def atoms_differ(one: Any, other: Any) -> str | None:
    """How what two events refer to differs, in words; None if it is the same."""
    if isinstance(one, External) and isinstance(other, External):
        if one.array is other.array:
            return None
        return (
            f"a tensor of shape {list(other.array.shape)} that is another one at every call: made from Python or NumPy "
            "data inside the step, or kept from the call before; pass it as an argument"
        )
    if type(one) is not type(other):
        return "a tensor from elsewhere than before"
    if isinstance(one, Known):
        return None if one.tensor is other.tensor else "another tensor at every call"
    if isinstance(one, Constant):
        if same_value(one.value, other.value):
            return None
        return f"another value at every call: {one.value!r:.60}, then {other.value!r:.60}"
    if isinstance(one, Group):
        if one.kind is not other.kind or one.keys != other.keys or len(one.items) != len(other.items):
            return "another structure at every call"
        for mine, theirs in zip(one.items, other.items, strict=True):
            found = atoms_differ(mine, theirs)
            if found is not None:
                return found
        return None
    assert isinstance(one, Slot | Wrapped | Shell | Offer)
    return None if one == other else "a tensor from elsewhere than before"


def same_value(one: Any, other: Any) -> bool:
    """Whether two Python objects can stand for each other in a replay: equal numbers or strings, or one object."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, float | complex):
        return repr(one) == repr(other)  # -0.0 is not 0.0, and NaN is NaN
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(same_value, one, other))
    return isinstance(one, _COMPARED) and bool(one == other)
