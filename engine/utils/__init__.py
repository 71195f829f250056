"""torch.utils as far as it exists here: `checkpoint`, `hooks`, and `data`, which is `engine.data`."""

import importlib
from types import ModuleType

from engine.absent import absent
from engine.utils import checkpoint as checkpoint
from engine.utils import hooks as hooks


def __getattr__(name: str) -> ModuleType:
    if name == "data":
        return importlib.import_module("engine.utils.data")
    raise absent("engine.utils", name)
