"""engine: tensors, automatic differentiation, neural network layers, optimizers and data loading, with PyTorch's names.

Importing it switches NumPy's floating point warnings off on this thread (dividing by zero gives inf here, as in
PyTorch, and says nothing), tells glibc to keep freed memory for the next step (`engine.memory.allocator`), and, where
NumPy is not imported yet, OpenBLAS's threads to sleep after a product (OPENBLAS_THREAD_TIMEOUT, unless it is set).
Tracebacks that end the program are printed without the engine's own frames (`engine.errors.tracebacks`;
ALLSTRIDE_TRACEBACK=full).
"""

# ruff: noqa: F401, F403, I001 - the public face: `as` says to type checkers that a name is exported, and what engine.ops
# defines is what this module is about

import importlib as _importlib
import sys as _sys
from math import e, inf, nan, pi
from os import environ as _environ
from types import ModuleType as _ModuleType
from typing import Any as _Any

# OpenBLAS reads it when NumPy is imported: 2^16 cycles instead of 2^26 that its threads spin after each product, on
# cores that ours need (`engine.sharing.threads`).
_environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "16")

import numpy as _np

from engine import (
    autograd as autograd,
    linalg as linalg,
    methods as methods,
    ops as ops,
    random as random,
    sparse as sparse,
    special as special,
)
from engine.compat import (
    accelerator as accelerator,
    backends as backends,
    func as func,
    fx as fx,
    hub as hub,
    jit as jit,
    onnx as onnx,
    version as version,
)
from engine.rules import dtypes as _dtypes
from engine.errors.absent import found as _found
from engine.memory.allocator import keep_freed_memory as _keep_freed_memory
from engine.autograd.modes import (
    enable_grad as enable_grad,
    inference_mode as inference_mode,
    is_anomaly_enabled as is_anomaly_enabled,
    is_grad_enabled as is_grad_enabled,
    is_inference_mode_enabled as is_inference_mode_enabled,
    no_grad as no_grad,
    set_grad_enabled as set_grad_enabled,
)
from engine.rules.device import (
    device as device,
    get_default_device as get_default_device,
    set_default_device as set_default_device,
)
from engine.rules.dtypes import (
    bfloat16 as bfloat16,
    cdouble as cdouble,
    cfloat as cfloat,
    complex64 as complex64,
    complex128 as complex128,
    double as double,
    dtype as dtype,
    finfo as finfo,
    float16 as float16,
    float32 as float32,
    float64 as float64,
    get_default_dtype as get_default_dtype,
    half as half,
    iinfo as iinfo,
    int8 as int8,
    int16 as int16,
    int32 as int32,
    int64 as int64,
    long as long,
    set_default_dtype as set_default_dtype,
    short as short,
    uint8 as uint8,
)
from engine.rules.layout import MemoryFormat as _MemoryFormat
from engine.rules.layout import (
    channels_last as channels_last,
    channels_last_3d as channels_last_3d,
    contiguous_format as contiguous_format,
    preserve_format as preserve_format,
)
from engine.linalg import (
    cholesky_inverse as cholesky_inverse,
    cholesky_solve as cholesky_solve,
    det as det,
    logdet as logdet,
    lu_unpack as lu_unpack,
    matrix_exp as matrix_exp,
    matrix_power as matrix_power,
    slogdet as slogdet,
)
from engine.autograd.modes import set_anomaly_enabled as set_anomaly_enabled
from engine.ops.creation.constructors import (
    set_default_tensor_type as set_default_tensor_type,
    set_flush_denormal as set_flush_denormal,
)
from engine.ops.creation.from_data import frombuffer as frombuffer, to_dlpack as to_dlpack
from engine.ops.pointwise.queries import get_device as get_device, is_inference as is_inference, typename as typename
from engine.ops.random.tensors import binomial as binomial, poisson as poisson
from engine.ops import *
from engine.beside_linalg import (
    chain_matmul as chain_matmul,
    cholesky as cholesky,
    lu_solve as lu_solve,
    norm as norm,
    qr as qr,
    svd as svd,
)
from engine.ops.writing.taking_out import wrapped as _wrapped
from engine.tensor.printing import (
    get_printoptions as get_printoptions,
    printoptions as printoptions,
    set_printoptions as set_printoptions,
)
from engine.rules.promotion import (
    can_cast as can_cast,
    promote_types as promote_types,
)
from engine.ops.pointwise.queries import (
    allclose as allclose,
    equal as equal,
    is_complex as is_complex,
    is_floating_point as is_floating_point,
    is_tensor as is_tensor,
    numel as numel,
    result_type as result_type,
)
from engine.random import (
    Generator as Generator,
    default_generator as default_generator,
    get_rng_state as get_rng_state,
    initial_seed as initial_seed,
    manual_seed as manual_seed,
    seed as seed,
    set_rng_state as set_rng_state,
)
from engine.reports.layout_report import (
    LayoutBreach as LayoutBreach,
    LayoutError as LayoutError,
    LayoutWarning as LayoutWarning,
    layout_report as layout_report,
    set_layout_report as set_layout_report,
)
from engine.rules.precision import (
    are_deterministic_algorithms_enabled as are_deterministic_algorithms_enabled,
    get_float32_matmul_precision as get_float32_matmul_precision,
    set_float32_matmul_precision as set_float32_matmul_precision,
    use_deterministic_algorithms as use_deterministic_algorithms,
)
from engine.rules.spec import Size as Size
from engine.sparse import sparse_coo_tensor as sparse_coo_tensor, spmm as spmm
from engine.tensor import Tensor as Tensor
from engine.sharing.threads import (
    get_num_threads as get_num_threads,
    set_num_threads as set_num_threads,
)
from engine.reports.trace import trace as trace
from engine.errors.tracebacks import install as _shorten_tracebacks


def _assert(condition: _Any, message: str) -> None:
    """AssertionError with `message` unless the condition holds; model files use it in the place of `assert`."""
    if not condition:
        raise AssertionError(message)


_keep_freed_memory()
_shorten_tracebacks()
_np.seterr(divide="ignore", over="ignore", under="ignore", invalid="ignore")

# The star above also brought the modules in which operators are defined, one of them named as a module here.
for _name, _value in list(globals().items()):
    if isinstance(_value, _ModuleType) and _value.__name__.startswith("engine.ops."):
        del globals()[_name]
        if f"engine.{_name}" in _sys.modules:
            globals()[_name] = _sys.modules[f"engine.{_name}"]

globals().update(_wrapped("engine", globals()))
bool, float, int = _dtypes.bool_, _dtypes.float_, _dtypes.int_
memory_format = _MemoryFormat
inverse, pinverse = linalg.inv, linalg.pinv
strided, sparse_coo = "engine.strided", "engine.sparse_coo"
newaxis = None

# Imported when first asked for: a program that only computes need not wait for them.
_ON_DEMAND = (
    *("amp", "cuda", "data", "distributions", "fft", "library", "multiprocessing", "nn", "optim", "profiler"),
    *("serialization", "testing", "utils"),
)

_COMPATIBLE = ("accelerator", "backends", "func", "fx", "hub", "jit", "onnx", "version")


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
    name
    for name, value in globals().items()
    if not (name.startswith("_") or isinstance(value, _ModuleType) or value is _Any)
]


def __getattr__(name: str) -> _Any:
    if name in _ON_DEMAND:
        return _importlib.import_module(f"engine.{name}")
    if name.endswith("Tensor"):
        from engine.ops.creation.constructors import TYPES

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
    modules = ("autograd", "linalg", "random", "sparse", "special", *_COMPATIBLE, *_ON_DEMAND)
    own = (name for name in globals() if name.startswith("__"))
    return sorted({*globals()["__all__"], *modules, *_FUNCTIONAL, *_MIXED_PRECISION, *own})
