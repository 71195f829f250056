"""`torch.fx`: graphs of modules are not made here."""

from typing import Any, NoReturn

from engine.errors.absent import absent


def wrap(fn_or_name: Any) -> Any:
    """What was given: there is no tracer to keep out of it."""
    return fn_or_name


def symbolic_trace(*args: Any, **kwargs: Any) -> NoReturn:
    """Raises NotImplementedError."""
    raise NotImplementedError("engine.fx.symbolic_trace: modules are not rewritten here; engine.trace shows the calls")


def __getattr__(name: str) -> NoReturn:
    raise absent("engine.fx", name)
