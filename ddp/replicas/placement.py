"""Where a wrapped module lies, and what PyTorch's `device_ids` and `output_device` say about it."""

from collections.abc import Iterable
from typing import Any

import engine
import engine.nn as nn

_NAME = "DistributedDataParallel"


def read(module: nn.Module, device_ids: Any, output_device: Any) -> tuple[list[engine.device] | None, Exception | None]:
    """The GPU that inputs are moved to, as a list of one, or None; and what is wrong with the arguments, if anything.

    As PyTorch has it: a module on one GPU takes `device_ids=[that GPU]`, or none; any other module takes none.
    """
    if not device_ids and output_device is None:
        return None, None
    used = {parameter.device for parameter in module.parameters()}
    if len(used) != 1 or next(iter(used)).type != "cuda":
        where = ", ".join(sorted(map(str, used)))
        given = " and ".join(
            name
            for name, value in (("device_ids", device_ids), ("output_device", output_device))
            if value not in (None, [])
        )
        return None, ValueError(
            f"{_NAME}: {given} given, but device_ids and output_device have no meaning here: they are for a module on "
            f"one GPU, and this one's parameters are on {where}; leave them out, and move the module to its device "
            "before wrapping it"
        )
    own = next(iter(used))
    named = list(device_ids or [])
    if len(named) > 1:
        return None, ValueError(f"{_NAME}: device_ids can only be None or contain a single element, got {named}")
    for argument, device in [("device_ids", one) for one in named] + [("output_device", output_device)]:
        if device is not None and engine.device(device) is not own:
            return None, ValueError(f"{_NAME}: {argument} names {engine.device(device)}, but the module is on {own}")
    return [own] if named else None, None


def devices(parameters: Iterable[tuple[str, engine.Tensor]]) -> list[engine.device]:
    """The devices of these parameters, in the order in which they occur."""
    return list(dict.fromkeys(parameter.device for _, parameter in parameters))


def check(parameters: Iterable[tuple[str, engine.Tensor]]) -> Exception | None:
    """What is wrong with where these parameters are, if anything: host memory and one GPU can be summed."""
    first: dict[str, tuple[str, engine.device]] = {}
    for name, parameter in parameters:
        device = parameter.device
        if device.type not in ("cpu", "cuda"):
            return ValueError(
                f"{_NAME}: gradients are summed on GPUs and in host memory, but parameter {name} is on {device}"
            )
        other, where = first.setdefault(device.type, (name, device))
        if where is not device:
            return ValueError(
                f"{_NAME}: a rank trains on one GPU, but parameter {other} is on {where} and parameter {name} on "
                f"{device}; start a rank for each GPU"
            )
    return None


class Mover:
    """A hook before `forward` that moves the tensors among its arguments, in lists, tuples and dicts too, to a GPU."""

    def __init__(self, device: engine.device) -> None:
        self.device = device

    def __call__(
        self, module: nn.Module, inputs: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return self.move(inputs), self.move(keywords)

    def move(self, value: Any) -> Any:
        """The value with its tensors on the device; what holds none is handed through."""
        if isinstance(value, engine.Tensor):
            return value.to(self.device, non_blocking=True)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*map(self.move, value))
        if isinstance(value, list | tuple):
            return type(value)(map(self.move, value))
        if isinstance(value, dict):
            return type(value)((key, self.move(each)) for key, each in value.items())
        return value
