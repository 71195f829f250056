"""`engine.data` under PyTorch's longer name, for code that says `torch.utils.data.DataLoader`."""

# ruff: noqa: F403 - the names are those of engine.data

from engine.absent import absent
from engine.data import *


def __getattr__(name: str) -> None:
    raise absent("engine.utils.data", name)
