"""PyTorch's paths to layers: `nn.modules.batchnorm`, `nn.modules.conv` and so on, made of the files of `engine.nn`."""

import sys
from types import ModuleType

from engine.nn import (
    activation,
    adaptive,
    attention,
    container,
    conv,
    distance,
    dropout,
    embedding,
    lazy,
    linear,
    loss,
    module,
    norm,
    padding,
    parameter_container,
    pooling,
    rnn,
    rnn_cell,
    transformer,
    upsampling,
)
from engine.nn.module import Module as Module
from engine.nn.modules import utils as utils

_FILES: dict[str, tuple[ModuleType, ...]] = {
    "activation": (activation, attention),
    "adaptive": (adaptive,),
    "batchnorm": (lazy, norm),
    "container": (parameter_container, container),
    "conv": (lazy, conv),
    "distance": (distance,),
    "dropout": (dropout,),
    "flatten": (linear,),
    "fold": (upsampling,),
    "instancenorm": (lazy, norm),
    "lazy": (lazy,),
    "linear": (lazy, linear),
    "loss": (loss,),
    "module": (module,),
    "normalization": (norm,),
    "padding": (padding,),
    "pixelshuffle": (upsampling,),
    "pooling": (pooling,),
    "rnn": (rnn_cell, rnn),
    "sparse": (embedding,),
    "transformer": (transformer,),
    "upsampling": (upsampling,),
}


def _joined(name: str, files: tuple[ModuleType, ...]) -> ModuleType:
    """The file itself, or one module with the names of several."""
    if len(files) == 1:
        return files[0]
    made = ModuleType(f"{__name__}.{name}", files[-1].__doc__)
    for file in files:
        made.__dict__.update({key: value for key, value in vars(file).items() if not key.startswith("__")})
    return made


_MODULES = {name: _joined(name, files) for name, files in _FILES.items()}
globals().update(_MODULES)
sys.modules.update({f"{__name__}.{name}": made for name, made in _MODULES.items()})  # for `from nn.modules.conv import`
