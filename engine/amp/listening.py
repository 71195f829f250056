"""Where autocast listens (`engine.calls.listening`): functions of the lists, while a block is open on the thread."""

from collections.abc import Callable
from functools import cache
from types import FunctionType, ModuleType
from typing import Any

from engine.amp.modes import modes
from engine.amp.policies import LISTS, Policy, tensors
from engine.calls import listening
from engine.calls.listening import HEARD, Handler
from engine.tensor import Tensor


def listen() -> None:
    """This thread has autocast switched on."""
    listening.add(_listener, functions_only=True)


def stop_listening() -> None:
    """It has it no longer."""
    listening.remove(_listener)


def _listener(key: str, target: Any) -> Handler | None:
    return _handlers().get(target)


@cache
def _handlers() -> dict[FunctionType, Handler]:
    return {function: _handler(policies) for function, policies in (listed() | _added).items()}


_added: dict[FunctionType, dict[str, Policy]] = {}


def add_policy(function: Any, device_type: str, policy: Policy) -> None:
    """What is done with the arguments of one more function, which is `heard`, on a type of device."""
    _added.setdefault(function, {})[device_type] = policy
    _handlers.cache_clear()


def listed() -> dict[FunctionType, dict[str, Policy]]:
    """Every function that a name in the lists stands for, and what is done there on which device."""
    found: dict[FunctionType, dict[str, Policy]] = {}
    for device_type, policies in LISTS.items():
        for name, policy in policies.items():
            for function in _named(name):
                found.setdefault(function, {})[device_type] = policy
    return found


def _named(name: str) -> list[FunctionType]:
    import engine
    from engine.nn import functional
    from engine.ops.rnn import operator as recurrent
    from engine.ops.rnn import steps

    family, _, rest = name.partition("_")
    places: tuple[ModuleType | type, ...] = (engine, functional, Tensor, recurrent, steps)
    if family in ("linalg", "fft"):
        places, name = (getattr(engine, family),), rest
    values = (vars(place).get(name) for place in places)
    return [value for value in values if isinstance(value, FunctionType) and value in HEARD]


def _handler(policies: dict[str, Policy]) -> Callable[..., Any]:
    def autocasted(original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        state = modes.__dict__  # of this thread
        if state["inside"] or not state["active"]:
            return original(*args, **kwargs)
        where = _device_type(args, kwargs, state["enabled"])
        if where is None or where not in policies:
            return original(*args, **kwargs)
        state["inside"] = True
        try:
            if kwargs and kwargs.get("out") is not None:
                return original(*args, **kwargs)
            args, kwargs = policies[where](args, kwargs, where)
            return original(*args, **kwargs)
        finally:
            state["inside"] = False

    return autocasted


def _device_type(args: tuple[Any, ...], kwargs: dict[str, Any], enabled: dict[str, bool]) -> str | None:
    """The device type whose lists serve a call: "cuda" before "cpu" where autocast is on for both."""
    found = None
    for tensor in tensors(args, kwargs):
        device_type = tensor._spec.device.type
        if enabled.get(device_type):
            if device_type == "cuda":
                return device_type
            found = device_type
    return found
