"""engine: tensors, automatic differentiation, neural network layers, optimizers and data loading, with PyTorch's names.

Importing it switches NumPy's floating point warnings off on this thread (dividing by zero gives inf here, as in
PyTorch, and says nothing), and tells glibc to keep freed memory for the next step (`engine.allocator`).
"""

# ruff: noqa: F401, F403 - the public face: it re-exports, and what engine.ops defines is what this module is about

import importlib as _importlib
from math import e, inf, nan, pi
from typing import Any as _Any

import numpy as _np

from engine import autograd, linalg, methods, more_methods, ops, random, special, utils
from engine.absent import absent as _absent
from engine.allocator import keep_freed_memory as _keep_freed_memory
from engine.autograd.modes import (
    enable_grad,
    inference_mode,
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
from engine.linalg import cholesky_inverse, cholesky_solve, det, logdet, matrix_power, slogdet
from engine.linalg import inv as inverse
from engine.linalg import pinv as pinverse
from engine.ops import *
from engine.printing import set_printoptions
from engine.promotion import can_cast, promote_types
from engine.queries import allclose, equal, is_complex, is_floating_point, is_tensor, numel, result_type
from engine.random import Generator, default_generator, get_rng_state, initial_seed, manual_seed, seed, set_rng_state
from engine.report import LayoutBreach, LayoutError, LayoutWarning, layout_report, set_layout_report
from engine.serialization import load, save
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

_keep_freed_memory()
_np.seterr(divide="ignore", over="ignore", under="ignore", invalid="ignore")

strided = "engine.strided"
newaxis = None

# Imported when first asked for: a program that only computes need not wait for them.
_ON_DEMAND = ("accelerator", "amp", "backends", "cuda", "data", "distributions", "multiprocessing", "nn", "optim")


def __getattr__(name: str) -> _Any:
    if name in _ON_DEMAND:
        return _importlib.import_module(f"engine.{name}")
    if name.endswith("Tensor"):
        from engine.legacy import TYPES

        if name in TYPES:
            return TYPES[name]
    if name == "autocast":
        return __getattr__("amp").autocast
    if name == "__version__":
        from importlib import metadata

        try:
            return metadata.version("allstride")
        except metadata.PackageNotFoundError:
            pass
    raise _absent("engine", name)
