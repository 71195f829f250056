"""`torch.func` as far as it is modules: `functional_call`. Its transforms (`grad`, `vmap` and so on) are not here."""

from typing import NoReturn

from engine.errors.absent import absent
from engine.nn.utils.stateless import functional_call as functional_call


def __getattr__(name: str) -> NoReturn:
    raise absent("engine.func", name)
