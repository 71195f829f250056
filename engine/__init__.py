"""engine: tensors, automatic differentiation, neural network layers, optimizers and data loading, with PyTorch's names.

Importing it switches NumPy's floating point warnings off on this thread (dividing by zero gives inf here, as in
PyTorch, and says nothing), and tells glibc to keep freed memory for the next step (`engine.allocator`).
"""

# ruff: noqa: F401, F403 - the public face: it re-exports, and what engine.ops defines is what this module is about

import importlib as _importlib
import sys as _sys
from math import e, inf, nan, pi
from types import ModuleType as _ModuleType
from typing import Any as _Any

import numpy as _np

from engine import autograd, linalg, memory_methods, methods, more_methods, ops, random, special
from engine.absent import found as _found
from engine.allocator import keep_freed_memory as _keep_freed_memory
from engine.autograd.modes import (
    enable_grad,
    inference_mode,
    is_anomaly_enabled,
    is_grad_enabled,
    is_inference_mode_enabled,
    no_grad,
    set_grad_enabled,
)
from engine.device import device, get_default_device, set_default_device
from engine.dtypes import (
    bfloat16,
    cdouble,
    cfloat,
    complex64,
    complex128,
    double,
    dtype,
    finfo,
    float16,
    float32,
    float64,
    get_default_dtype,
    half,
    iinfo,
    int8,
    int16,
    int32,
    int64,
    long,
    set_default_dtype,
    short,
    uint8,
)
from engine.dtypes import bool_ as bool
from engine.dtypes import float_ as float
from engine.dtypes import int_ as int
from engine.layout import MemoryFormat as memory_format
from engine.layout import channels_last, channels_last_3d, contiguous_format, preserve_format
from engine.linalg import cholesky_inverse, cholesky_solve, det, logdet, lu_unpack, matrix_exp, matrix_power, slogdet
from engine.linalg import inv as inverse
from engine.linalg import pinv as pinverse
from engine.miscellany import (
    binomial,
    frombuffer,
    get_device,
    is_inference,
    poisson,
    set_anomaly_enabled,
    set_default_tensor_type,
    set_flush_denormal,
    to_dlpack,
    typename,
)
from engine.older import cholesky, lu_solve, qr, svd
from engine.ops import *
from engine.printing import get_printoptions, printoptions, set_printoptions
from engine.promotion import can_cast, promote_types
from engine.queries import allclose, equal, is_complex, is_floating_point, is_tensor, numel, result_type
from engine.random import Generator, default_generator, get_rng_state, initial_seed, manual_seed, seed, set_rng_state
from engine.report import LayoutBreach, LayoutError, LayoutWarning, layout_report, set_layout_report
from engine.settings import (
    are_deterministic_algorithms_enabled,
    get_float32_matmul_precision,
    set_float32_matmul_precision,
    use_deterministic_algorithms,
)
from engine.spec import Size
from engine.tensor import Tensor
from engine.threads import get_num_threads, set_num_threads
from engine.trace import trace


def _assert(condition: _Any, message: str) -> None:
    """AssertionError with `message` unless the condition holds; model files use it in the place of `assert`."""
    if not condition:
        raise AssertionError(message)


_keep_freed_memory()
_np.seterr(divide="ignore", over="ignore", under="ignore", invalid="ignore")

# The star above also brought the modules in which operators are defined, one of them named as a module here.
for _name, _value in list(globals().items()):
    if isinstance(_value, _ModuleType) and _value.__name__.startswith("engine.ops."):
        del globals()[_name]
        if f"engine.{_name}" in _sys.modules:
            globals()[_name] = _sys.modules[f"engine.{_name}"]

strided = "engine.strided"
newaxis = None

# Imported when first asked for: a program that only computes need not wait for them.
_ON_DEMAND = (
    *("accelerator", "amp", "backends", "cuda", "data", "distributions", "fft", "func", "fx", "hub", "jit"),
    *("multiprocessing", "nn", "onnx", "optim", "serialization", "testing", "utils", "version"),
)


# Functions of engine.nn.functional that PyTorch has here, too.
_FUNCTIONAL = (
    *("alpha_dropout", "bilinear", "binary_cross_entropy_with_logits", "celu_", "channel_shuffle"),
    *("cosine_embedding_loss", "cosine_similarity", "ctc_loss", "embedding_bag", "feature_alpha_dropout"),
    *("hinge_embedding_loss", "instance_norm", "kl_div", "margin_ranking_loss", "pairwise_distance"),
    *("poisson_nll_loss", "rrelu", "rrelu_", "selu_", "threshold_", "triplet_margin_loss"),
)

# Names of engine.amp that PyTorch has here, too.
_MIXED_PRECISION = (
    *("GradScaler", "autocast", "autocast_decrement_nesting", "autocast_increment_nesting", "clear_autocast_cache"),
    *("get_autocast_cpu_dtype", "get_autocast_dtype", "get_autocast_gpu_dtype", "is_autocast_cache_enabled"),
    *("is_autocast_cpu_enabled", "is_autocast_enabled", "set_autocast_cache_enabled", "set_autocast_cpu_dtype"),
    *("set_autocast_cpu_enabled", "set_autocast_dtype", "set_autocast_enabled", "set_autocast_gpu_dtype"),
)

# What `from engine import *` brings: as PyTorch's, no modules.
globals()["__all__"] = ["load", "save"] + [
    name for name, value in globals().items() if not (name.startswith("_") or isinstance(value, _ModuleType))
]


def __getattr__(name: str) -> _Any:
    if name in _ON_DEMAND:
        return _importlib.import_module(f"engine.{name}")
    if name.endswith("Tensor"):
        from engine.legacy import TYPES

        if name in TYPES:
            return TYPES[name]
    if name in ("load", "save"):
        return getattr(_importlib.import_module("engine.serialization"), name)
    if name in ("compile", "CaptureWarning"):
        return getattr(_importlib.import_module("engine.capture.compiled"), name)
    if name in _FUNCTIONAL:
        return getattr(_importlib.import_module("engine.nn.functional"), name)
    if name == "detach" or (name.endswith("_") and not name.startswith("_") and hasattr(Tensor, name)):
        return getattr(Tensor, name)  # exp_(x) is x.exp_()
    if name == "OutOfMemoryError":
        return _importlib.import_module("engine.cuda.memory").OutOfMemoryError
    if name in _MIXED_PRECISION:
        return getattr(__getattr__("amp"), name)
    if name == "__version__":
        from importlib import metadata

        try:
            return metadata.version("allstride")
        except metadata.PackageNotFoundError:
            pass
    return _found("engine", name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_ON_DEMAND, *_FUNCTIONAL, *_MIXED_PRECISION, "load", "save"})
