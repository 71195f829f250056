"""`engine.nn.utils`: gradient clipping, parameters as one vector, packed sequences, norms of weights, fusion."""

import importlib
from typing import Any

from engine.errors.absent import absent
from engine.nn.utils import rnn
from engine.nn.utils.clip_grad import (
    clip_grad_norm,
    clip_grad_norm_,
    clip_grad_value_,
    clip_grads_with_norm_,
    get_total_norm,
)
from engine.nn.utils.convert_parameters import parameters_to_vector, vector_to_parameters

# Imported when first asked for.
_ON_DEMAND = {
    "fuse_conv_bn_eval": "fusion",
    "fuse_conv_bn_weights": "fusion",
    "fuse_linear_bn_eval": "fusion",
    "fuse_linear_bn_weights": "fusion",
    "remove_spectral_norm": "_spectral_norm",
    "remove_weight_norm": "_weight_norm",
    "skip_init": "_skip_init",
    "spectral_norm": "_spectral_norm",
    "weight_norm": "_weight_norm",
}
_MODULES = ("fusion", "parametrizations", "parametrize", "stateless")

__all__ = [
    "clip_grad_norm",
    "clip_grad_norm_",
    "clip_grad_value_",
    "clip_grads_with_norm_",
    "fuse_conv_bn_eval",
    "fuse_conv_bn_weights",
    "fuse_linear_bn_eval",
    "fuse_linear_bn_weights",
    "fusion",
    "get_total_norm",
    "parameters_to_vector",
    "parametrizations",
    "parametrize",
    "remove_spectral_norm",
    "remove_weight_norm",
    "rnn",
    "skip_init",
    "spectral_norm",
    "stateless",
    "vector_to_parameters",
    "weight_norm",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"engine.nn.utils.{name}")
    if name in _ON_DEMAND:
        return getattr(importlib.import_module(f"engine.nn.utils.{_ON_DEMAND[name]}"), name)
    raise absent("engine.nn.utils", name)
