"""Modules whose parameters are never initialised."""

from collections.abc import Callable
from typing import Any

from engine.nn.module import Module


def skip_init(module_cls: Callable[..., Module], *args: Any, **kwargs: Any) -> Module:
    """`module_cls(*args, **kwargs)` with uninitialised parameters, for values that are loaded right after."""
    device = kwargs.pop("device", None) or "cpu"
    return module_cls(*args, device="meta", **kwargs).to_empty(device=device)
