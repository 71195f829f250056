"""Averaging parameters now and then instead of gradients in every step: local SGD.

`post_localSGD_hook` (ddp.hooks) is the gradients' half. Source: Lin, Stich, Patel and Jaggi (2020), Don't Use Large
Mini-Batches, Use Local SGD; torch.distributed.algorithms.model_averaging and torch.distributed.optim
.PostLocalSGDOptimizer.
"""

import warnings
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import engine
from ddp import losses
from ddp.collectives import all_reduce
from ddp.collectives.reductions import ReduceOp
from ddp.groups.group import resolve
from ddp.groups.process_group import ProcessGroup
from ddp.groups.subgroups import new_subgroups
from ddp.training.overflow import sum_found_inf
from engine.autograd.graph import increment_version
from engine.memory.backend import array_module, spec_of_array
from engine.optim import Optimizer
from engine.optim.optimizer import Closure, Group, StateDict
from engine.tensor import array_of
from engine.tensor.flat import flat_view


def average_parameters(params: Iterable[Any], process_group: ProcessGroup | None = None) -> None:
    """Collective: every parameter becomes its mean over the ranks, in a few large messages.

    params: tensors, or parameter groups as an optimizer has them. The mean of integers is cut to an integer, towards 0.
    """
    group = resolve(process_group)
    entries = [entry["params"] if isinstance(entry, dict) else [entry] for entry in params]
    tensors = [tensor.detach() for entry in entries for tensor in entry]
    by_kind: dict[tuple[engine.dtype, engine.device], list[engine.Tensor]] = {}
    for tensor in tensors:
        by_kind.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    for (dtype, device), alike in by_kind.items():
        # Dense parameters in memory order, so that nothing is permuted; ranks have the same strides.
        joined = array_module(device).concatenate([_flat(tensor) for tensor in alike])
        if dtype.is_floating_point or dtype.is_complex:
            all_reduce(engine.Tensor(joined, spec_of_array(joined, device)), ReduceOp.AVG, group)
        else:
            joined = joined.astype("int64")
            all_reduce(engine.Tensor(joined, spec_of_array(joined, device)), ReduceOp.SUM, group)
            joined = abs(joined) // group.size() * array_module(device).sign(joined)
        begin = 0
        for tensor in alike:
            mean = joined[begin : begin + tensor.numel()]
            begin += tensor.numel()
            if tensor.is_non_overlapping_and_dense():
                _flat(tensor)[...] = mean
            else:
                array = array_of(tensor)
                array[...] = mean.reshape(tuple(tensor.shape))
        increment_version(alike)


def _flat(tensor: engine.Tensor) -> Any:
    """Its elements in the order of memory, as a view where it is dense; else a row-major copy."""
    flat = flat_view(tensor)
    return array_module(tensor.device).ascontiguousarray(array_of(tensor)).reshape(-1) if flat is None else flat


class PeriodicModelAverager:
    """Averages parameters in every `period`-th call, from call number `warmup_steps` on (which counts from 0).

        averager = PeriodicModelAverager(period=4, warmup_steps=100)
        for x, y in loader:
            ...
            optimizer.step()
            averager.average_parameters(net.parameters())

    Raises ValueError for warmup_steps below 0 or a period below 1; warns for a period of 1.
    """

    def __init__(self, period: int, warmup_steps: int = 0, process_group: ProcessGroup | None = None) -> None:
        if warmup_steps < 0:
            raise ValueError("Arg ``warmup_steps`` must be a non-negative number.")
        if period < 1:
            raise ValueError("Arg ``period`` must be a positive value.")
        if period == 1:
            warnings.warn(
                "When period is 1, no need to use model averaging because the communication cost of all-reducing "
                "parameters will be no less than the cost of all-reducing gradients by DistributedDataParallel in the "
                "backward pass. Therefore, only DistributedDataParallel should be used for this case.",
                stacklevel=2,
            )
        self.period = period
        self.warmup_steps = warmup_steps
        self.process_group = resolve(process_group)
        self.step = 0

    def average_parameters(self, params: Iterable[Any]) -> None:
        """Collective: counts the call, and averages if it is time. params: tensors, or parameter groups."""
        if self.step >= self.warmup_steps and (self.step - self.warmup_steps) % self.period == 0:
            average_parameters(params, self.process_group)
        self.step += 1


class HierarchicalModelAverager:
    """Averages within small groups often and within large ones seldom: when several are due, within the largest.

    period_group_size_dict: period -> number of consecutive ranks, which never falls as periods rise; the last size is
    that of all ranks. Making one is collective. Raises ValueError for sizes that fall or do not divide one another, or
    the world.
    """

    def __init__(
        self,
        period_group_size_dict: dict[int, int],
        warmup_steps: int = 0,
        process_group: ProcessGroup | None = None,
    ) -> None:
        if warmup_steps < 0:
            raise ValueError("Arg ``warmup_steps`` must be a non-negative number.")
        if not period_group_size_dict:
            raise ValueError("Arg ``period_group_size_dict`` must not be empty.")
        world = resolve(process_group)
        periods, sizes = zip(*sorted(period_group_size_dict.items()), strict=True)
        if periods[0] < 1:
            raise ValueError("The minimum period in arg ``period_group_size_dict`` must be a positive value.")
        if sizes[-1] != world.size():
            raise ValueError(
                f"The last value in arg ``period_group_size_dict`` {sizes[-1]} must be equal to the size of arg "
                f"``process_group`` {world.size()}."
            )
        if any(large % small for small, large in pairwise(sizes)):
            raise ValueError(f"HierarchicalModelAverager: expected sizes that each divide the next one, got {sizes}")
        self.warmup_steps = warmup_steps
        self.step = 0
        groups = {
            size: world if size == world.size() else new_subgroups(size, world)[0] for size in dict.fromkeys(sizes)
        }
        self.period_process_group_dict = {period: groups[size] for period, size in zip(periods, sizes, strict=True)}

    def average_parameters(self, params: Iterable[Any]) -> None:
        """Collective: counts the call, and averages within the largest group whose period it is."""
        if self.step >= self.warmup_steps:
            due = [
                group
                for period, group in self.period_process_group_dict.items()
                if (self.step - self.warmup_steps) % period == 0
            ]
            if due:
                average_parameters(params, due[-1])
        self.step += 1


class PostLocalSGDOptimizer(Optimizer):
    """Steps `optim`, then has `averager` average all parameters if it is time.

    Together with `post_localSGD_hook`, whose start_localSGD_iter is the averager's warmup_steps. `state_dict` also has
    the averager's step.
    """

    def __init__(self, optim: Optimizer, averager: PeriodicModelAverager | HierarchicalModelAverager) -> None:
        losses.refuse("PostLocalSGDOptimizer, whose replicas differ,", "use the optimizer itself")
        self.optim = optim
        self.averager = averager
        self.defaults, self.state, self.param_groups = optim.defaults, optim.state, optim.param_groups
        self._prepare()

    def step(self, closure: Closure | None = None) -> Any:
        """Collective when the averager's time has come."""
        loss = self.optim.step(closure)
        self.averager.average_parameters(self.param_groups)
        return loss

    def agree_on_found_inf(self, found_inf: engine.Tensor) -> None:
        """Collective: what `engine.amp.GradScaler` asks, since all ranks step, and average, or none does."""
        sum_found_inf(None, found_inf)

    def add_param_group(self, param_group: Group) -> None:
        """See `Optimizer.add_param_group`."""
        self.optim.add_param_group(param_group)

    def state_dict(self) -> StateDict:
        """That of `optim`, and the averager's "step"."""
        return {**self.optim.state_dict(), "step": self.averager.step}

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Takes over both; warns where the averager's step is missing, which then starts at 0."""
        self.optim.load_state_dict(state_dict)
        self.state, self.param_groups = self.optim.state, self.optim.param_groups
        if "step" not in state_dict:
            warnings.warn(
                "Loaded state dict does not contain a step counter for an averager. Setting step counter to 0.",
                stacklevel=2,
            )
        self.averager.step = state_dict.get("step", 0)
