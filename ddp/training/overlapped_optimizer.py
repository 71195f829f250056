"""Optimizer in backward: a bucket's parameters are stepped when its sum is there, while later buckets are under way.

Source: Wang et al. (2019), BytePS / ByteScheduler on overlapping updates with communication; optimizer_overlap_hooks.py
of torch.distributed.algorithms.ddp_comm_hooks.
"""

from typing import TYPE_CHECKING

import engine
from ddp import losses
from engine.optim import Optimizer
from engine.optim.optimizer import Group

if TYPE_CHECKING:
    from ddp.training.parallel import DistributedDataParallel


class StepInBackward:
    """What `step_in_backward` gives: `remove()` ends it, and `optimizer.step()` is to be called again."""

    def __init__(self, optimizer: Optimizer, net: "DistributedDataParallel") -> None:
        losses.refuse("step_in_backward, which changes parameters before a step is complete,", "step after backward")
        if type(optimizer).step is not Optimizer.step:
            raise TypeError(
                f"step_in_backward: {type(optimizer).__name__} does not update each element by itself, so it cannot "
                "step one bucket at a time"
            )
        self._optimizer = optimizer
        self._parts: dict[tuple[int, ...], list[Group]] = {}  # by the ids of the parameters, which the optimizer holds
        self._net = net
        reducer = net.live_reducer()
        if reducer.on_summed is not None:
            raise RuntimeError("step_in_backward: this module's backward steps an optimizer already")
        others = {id(parameter) for parameter in reducer.parameters}
        left = [p for group in optimizer.param_groups for p in group["params"] if id(p) not in others]
        if left:
            raise ValueError(
                f"step_in_backward: {len(left)} parameters of the optimizer are not averaged by the wrapped module "
                "(frozen, ignored, or of another module), so nothing would step them; give them an optimizer of their "
                "own"
            )
        reducer.on_summed = self._step
        self._handle = optimizer.register_step_pre_hook(_refuse_second_step)

    def remove(self) -> None:
        """From now on backward steps nothing."""
        self._net.live_reducer().on_summed = None
        self._handle.remove()

    def _step(self, parameters: list[engine.Tensor]) -> None:
        optimizer = self._optimizer
        key = tuple(map(id, parameters))
        parts = self._parts.get(key)
        if parts is None or len(parts) != len(optimizer.param_groups):
            among = set(key)
            parts = self._parts[key] = [
                {"params": [parameter for parameter in group["params"] if id(parameter) in among]}
                for group in optimizer.param_groups
            ]
        for group, part in zip(optimizer.param_groups, parts, strict=True):
            if part["params"]:
                part.update({name: value for name, value in group.items() if name != "params"}, part_of=group)
                with engine.no_grad():
                    optimizer.step_group(part)


def step_in_backward(optimizer: Optimizer, net: "DistributedDataParallel") -> StepInBackward:
    """From now on `backward` through `net` also steps `optimizer`, bucket by bucket; leave `optimizer.step()` out.

        step_in_backward(AdamW(net.parameters()), net)
        for x, y in loader:
            optimizer.zero_grad()
            loss_fn(net(x), y).backward()

    The numbers are those of `optimizer.step()` after backward. A backward under `no_sync` steps nothing. What needs all
    gradients before a step (`clip_grad_norm_`, `GradScaler`) cannot be used with it. State and options are the
    optimizer's own: save it and schedule it as ever. Collective where `net` is a copy that has not trained yet.

    Raises TypeError for an optimizer that does not update elementwise (LBFGS); ValueError for parameters that `net`
    does not average; RuntimeError when `net` steps an optimizer already, and for a call of `optimizer.step()`.
    """
    return StepInBackward(optimizer, net)


def _refuse_second_step(optimizer: Optimizer, args: object, kwargs: object) -> None:
    raise RuntimeError(
        f"step_in_backward: backward has stepped this {type(optimizer).__name__} already; leave optimizer.step() out, "
        "or call remove() of what step_in_backward gave"
    )
