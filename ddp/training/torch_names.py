"""The methods of DistributedDataParallel that have an underscore in PyTorch, and that scripts and libraries call."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

import engine.nn as nn
from ddp.groups.process_group import ProcessGroup
from ddp.training.buffers import BufferHook, Buffers, _BufferCommHookLocation
from ddp.training.hook_types import BuiltinCommHookType
from ddp.training.job_type import JobOfShards
from ddp.training.logging_data import logging_data
from ddp.training.overlapped_optimizer import StepInBackward
from engine.optim import Optimizer

if TYPE_CHECKING:
    from ddp.training.parallel import DistributedDataParallel

IGNORED = "_ddp_params_and_buffers_to_ignore"  # PyTorch's name of the attribute


class TorchNames(nn.Module):
    """What of `DistributedDataParallel` these methods are made of is there."""

    process_group: ProcessGroup
    job: JobOfShards | None
    static_graph: bool
    _shared_buffers: Buffers

    def _whole(self) -> "DistributedDataParallel":
        return cast("DistributedDataParallel", self)

    @staticmethod
    def _set_params_and_buffers_to_ignore_for_model(
        module: nn.Module, params_and_buffers_to_ignore: Iterable[str]
    ) -> None:
        """Leaves these out when `module` is wrapped: they stay as they are on each rank. Names as in `state_dict`."""
        setattr(module, IGNORED, list(params_and_buffers_to_ignore))

    def _set_static_graph(self) -> None:
        """As `static_graph=True`. Raises RuntimeError after the first backward."""
        self.live_reducer().set_static()
        self.static_graph = True

    def _register_buffer_comm_hook(
        self,
        state: Any,
        hook: BufferHook,
        comm_hook_location: _BufferCommHookLocation = _BufferCommHookLocation.POST_FORWARD,
    ) -> None:
        """`hook(state, {name: buffer})` takes the place of the broadcast, before or after each synchronised forward.

        It may return a Future or a list of them, which are waited for at once.
        """
        if self.job is not None:
            raise ValueError("DistributedDataParallel: in a job buffers are those of shard 0, so they have no hook")
        self._shared_buffers.register_hook(state, hook, comm_hook_location)

    def _register_builtin_comm_hook(self, comm_hook_type: BuiltinCommHookType) -> None:
        """Collective: `register_comm_hook` of one of the hooks that PyTorch has in C++."""
        self.register_comm_hook(self.process_group, comm_hook_type.hook)

    def _register_fused_optim(
        self, optim: type[Optimizer], *args: Any, optim_params: Iterable[Any] | None = None, **kwargs: Any
    ) -> StepInBackward:
        """`ddp.step_in_backward` with a new optimizer `optim(parameters, *args, **kwargs)`."""
        chosen = list(self.parameters() if optim_params is None else optim_params)
        return StepInBackward(optim([p for p in chosen if p.requires_grad], *args, **kwargs), self._whole())

    def _update_process_group(self, new_process_group: ProcessGroup) -> None:
        """Collective in the new group: from now on gradients are averaged over its ranks."""
        if self.job is not None:
            raise ValueError("_update_process_group: the ranks of a job are those of its process group")
        self.live_reducer()
        self.process_group = new_process_group
        self._shared_buffers.move_to(new_process_group)
        self.renew_reducer()

    def _get_ddp_logging_data(self) -> dict[str, Any]:
        """See `ddp.training.logging_data`."""
        return logging_data(self._whole())

    def _remove_autograd_hooks(self) -> None:
        """Gradients are local from now on; the module may be wrapped again."""
        self.live_reducer().detach()
