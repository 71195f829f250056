"""Communication hooks by name, as PyTorch's enumerations have them."""

from enum import Enum, member
from functools import partial
from typing import TYPE_CHECKING, Any

from ddp import hooks

if TYPE_CHECKING:
    from ddp.training.parallel import DistributedDataParallel


class BuiltinCommHookType(Enum):
    """For `DistributedDataParallel._register_builtin_comm_hook`."""

    ALLREDUCE = "allreduce"
    FP16_COMPRESS = "fp16_compress"

    @property
    def hook(self) -> hooks.Hook:
        """What it stands for."""
        return hooks.allreduce_hook if self is BuiltinCommHookType.ALLREDUCE else hooks.fp16_compress_hook


def _register(hook: Any, model: "DistributedDataParallel", state: Any = None) -> None:
    model.register_comm_hook(state, hook)


def _register_power_sgd(hook: Any, rank: int, model: "DistributedDataParallel", state: Any = None) -> None:
    """state: a process group, as for the others."""
    model.register_comm_hook(hooks.PowerSGDState(state, matrix_approximation_rank=rank), hook)


class DDPCommHookType(Enum):
    """For `register_ddp_comm_hook`; each value is called with `model` and `state` (a process group, or None)."""

    ALLREDUCE = member(partial(_register, hooks.allreduce_hook))
    FP16_COMPRESS = member(partial(_register, hooks.fp16_compress_hook))
    BF16_COMPRESS = member(partial(_register, hooks.bf16_compress_hook))
    QUANTIZE_PER_TENSOR = member(partial(_register, hooks.quantization_pertensor_hook))
    QUANTIZE_PER_CHANNEL = member(partial(_register, hooks.quantization_perchannel_hook))
    POWER_SGD = member(partial(_register_power_sgd, hooks.powerSGD_hook, 1))
    POWER_SGD_RANK2 = member(partial(_register_power_sgd, hooks.powerSGD_hook, 2))
    BATCHED_POWER_SGD = member(partial(_register_power_sgd, hooks.batched_powerSGD_hook, 1))
    BATCHED_POWER_SGD_RANK2 = member(partial(_register_power_sgd, hooks.batched_powerSGD_hook, 2))
    NOOP = member(partial(_register, hooks.noop_hook))


def register_ddp_comm_hook(
    comm_hook_type: DDPCommHookType, model: "DistributedDataParallel", state: Any = None
) -> None:
    """Collective: `model.register_comm_hook` of one of the hooks here."""
    comm_hook_type.value(model=model, state=state)
