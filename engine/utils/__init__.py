"""torch.utils as far as it exists here: `checkpoint`, `hooks`, `_pytree`, and `data`, which is `engine.data`."""

import importlib as _importlib
from types import ModuleType as _ModuleType

from engine.errors.absent import absent as _absent
from engine.utils import checkpoint as checkpoint
from engine.utils import hooks as hooks


def __getattr__(name: str) -> _ModuleType:
    if name == "data":
        return _importlib.import_module("engine.utils.data")
    raise _absent("engine.utils", name)


def __dir__() -> list[str]:
    return ["checkpoint", "data", "hooks"]
