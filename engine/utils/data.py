"""`engine.data` under PyTorch's longer name, for code that says `torch.utils.data.DataLoader`."""

# ruff: noqa: F403 - the names are those of engine.data

import sys
from typing import Any

from engine import data
from engine.data import *
from engine.data import dataloader, dataset, sampler
from engine.errors.absent import found

# for `from ....utils.data.sampler import`: the same modules, not second copies
_MODULES = {"dataloader": dataloader, "dataset": dataset, "sampler": sampler}
sys.modules.update({f"{__name__}.{name}": module for name, module in _MODULES.items()})
__path__: list[str] = []


def __getattr__(name: str) -> Any:
    return found(data.__name__, name)
