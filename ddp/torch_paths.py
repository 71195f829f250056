"""Puts names of this package where PyTorch has them, for code that says `torch.nn.parallel.DistributedDataParallel` or
imports from `torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook`.
"""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ddp import hooks
from ddp.execution.futures import Future, collect_all, wait_all
from ddp.training import hook_types, local_sgd, sampler
from ddp.training.buffers import _BufferCommHookLocation
from ddp.training.parallel import DistributedDataParallel
from ddp.training.sampler import DistributedSampler
from ddp.training.sync_batch_norm import SyncBatchNorm
from ddp.training.zero import ZeroRedundancyOptimizer
from engine.errors.absent import provide
from engine.utils import checkpoint_wrapper

provide("engine.distributed", sys.modules["ddp"])
provide("engine.nn.SyncBatchNorm", SyncBatchNorm)
provide("engine.nn.parallel.DistributedDataParallel", DistributedDataParallel)
provide("engine.data.distributed", sampler)
provide("engine.data.DistributedSampler", DistributedSampler)
_futures = sys.modules["engine.futures"] = ModuleType("engine.futures", "PyTorch's path to ddp.Future.")
vars(_futures).update(Future=Future, wait_all=wait_all, collect_all=collect_all)
provide("engine.futures", _futures)


def _record(fn: Callable[..., Any], error_handler: Any = None) -> Callable[..., Any]:
    """The function itself: the launcher shows the exception of every rank."""
    return fn


def _module(path: str, **names: Any) -> ModuleType:
    made = sys.modules[path] = ModuleType(path, "PyTorch's path to names of ddp.")
    vars(made).update(names)
    parent, _, name = path.rpartition(".")
    setattr(sys.modules[parent], name, made)
    return made


def _picked(file: ModuleType, names: str) -> dict[str, Any]:
    return {name: getattr(file, name) for name in names.split()}


_COMM_HOOKS = "ddp.algorithms.ddp_comm_hooks"
_HOOKS = {
    "default_hooks": "allreduce_hook fp16_compress_hook bf16_compress_hook fp16_compress_wrapper bf16_compress_wrapper",
    "powerSGD_hook": "PowerSGDState powerSGD_hook batched_powerSGD_hook",
    "post_localSGD_hook": "PostLocalSGDState post_localSGD_hook",
    "quantization_hooks": "quantization_pertensor_hook quantization_perchannel_hook",
    "debugging_hooks": "noop_hook",
}

sys.modules["ddp.distributed_c10d"] = sys.modules["ddp"]
_module(  # torch.nn.parallel.distributed
    "ddp.distributed",
    DistributedDataParallel=DistributedDataParallel,
    _BufferCommHookLocation=_BufferCommHookLocation,
)
_module(
    "ddp.optim",
    ZeroRedundancyOptimizer=ZeroRedundancyOptimizer,
    PostLocalSGDOptimizer=local_sgd.PostLocalSGDOptimizer,
)
_module("ddp.optim.post_localSGD_optimizer", PostLocalSGDOptimizer=local_sgd.PostLocalSGDOptimizer)
_module("ddp.algorithms")
_module(
    _COMM_HOOKS,
    DDPCommHookType=hook_types.DDPCommHookType,
    register_ddp_comm_hook=hook_types.register_ddp_comm_hook,
)
for _name, _names in _HOOKS.items():
    _module(f"{_COMM_HOOKS}.{_name}", **_picked(hooks, _names))
for _short in ("default", "quantization", "debugging"):
    setattr(sys.modules[_COMM_HOOKS], _short, sys.modules[f"{_COMM_HOOKS}.{_short}_hooks"])
_module("ddp.algorithms._checkpoint")
sys.modules["ddp.algorithms._checkpoint.checkpoint_wrapper"] = checkpoint_wrapper
setattr(sys.modules["ddp.algorithms._checkpoint"], "checkpoint_wrapper", checkpoint_wrapper)  # noqa: B010
_module("ddp.algorithms.model_averaging")
_module("ddp.algorithms.model_averaging.averagers", **_picked(local_sgd, "PeriodicModelAverager"))
_module("ddp.algorithms.model_averaging.utils", **_picked(local_sgd, "average_parameters"))
_module("ddp.algorithms.model_averaging.hierarchical_model_averager", **_picked(local_sgd, "HierarchicalModelAverager"))
_module("ddp.elastic")
_module("ddp.elastic.multiprocessing")
_module("ddp.elastic.multiprocessing.errors", record=_record)
