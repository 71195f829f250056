"""Where autocast listens: functions of the lists are exchanged for stand-ins while some block is open, and are as ever
otherwise, so that a program without autocast pays nothing.
"""

import threading
from collections.abc import Callable
from functools import cache
from types import CodeType, FunctionType, ModuleType
from typing import Any

from engine.amp.modes import modes
from engine.amp.policies import LISTS, Policy, tensors
from engine.capture.stand_in import stand_in
from engine.tensor import Tensor

_lock = threading.Lock()
_listeners = 0  # threads with a block that is switched on
_own_codes: list[CodeType] = []


def listen() -> None:
    """One more thread has autocast switched on."""
    global _listeners
    with _lock:
        _listeners += 1
        if _listeners == 1:
            table = _exchanged()
            _own_codes[:] = [function.__code__ for function, _ in table]
            for function, code in table:
                function.__code__ = code


def stop_listening() -> None:
    """One thread less has it."""
    global _listeners
    with _lock:
        _listeners -= 1
        if _listeners == 0:
            for (function, _), code in zip(_exchanged(), _own_codes, strict=True):
                function.__code__ = code


@cache
def _exchanged() -> list[tuple[FunctionType, CodeType]]:
    """Functions and the code that they have while autocast is on."""
    return [(function, stand_in(function, _handler(policies))) for function, policies in listed().items()]


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
    from engine.ops import recurrent

    family, _, rest = name.partition("_")
    places: tuple[ModuleType | type, ...] = (engine, functional, Tensor, recurrent)
    if family in ("linalg", "fft"):
        places, name = (getattr(engine, family),), rest
    values = (vars(place).get(name) for place in places)
    return [value for value in values if isinstance(value, FunctionType)]


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
