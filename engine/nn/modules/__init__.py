"""PyTorch's paths to layers: `nn.modules.batchnorm`, `nn.modules.conv` and so on name the files of `engine.nn`."""

import sys

from engine.nn import (
    activation,
    container,
    conv,
    distance,
    dropout,
    embedding,
    linear,
    loss,
    module,
    norm,
    padding,
    pooling,
    rnn,
    transformer,
    upsampling,
)
from engine.nn.module import Module as Module
from engine.nn.modules import utils as utils

_FILES = {
    "activation": activation,
    "batchnorm": norm,
    "container": container,
    "conv": conv,
    "distance": distance,
    "dropout": dropout,
    "flatten": linear,
    "instancenorm": norm,
    "linear": linear,
    "loss": loss,
    "module": module,
    "normalization": norm,
    "padding": padding,
    "pixelshuffle": upsampling,
    "pooling": pooling,
    "rnn": rnn,
    "sparse": embedding,
    "transformer": transformer,
    "upsampling": upsampling,
}
globals().update(_FILES)
sys.modules.update({f"{__name__}.{name}": file for name, file in _FILES.items()})  # for `from nn.modules.conv import`
