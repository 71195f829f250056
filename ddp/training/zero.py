"""ZeroRedundancyOptimizer: each rank keeps the optimizer state of its share of the parameters, and updates those.

Source: Rajbhandari et al. (2020), ZeRO: Memory Optimizations Toward Training Trillion Parameter Models, stage 1;
torch.distributed.optim.ZeroRedundancyOptimizer.
"""

from collections.abc import Iterable
from typing import Any

import engine
from ddp import losses, replicas
from ddp.groups.group import resolve
from ddp.groups.process_group import ProcessGroup
from ddp.training.overflow import sum_found_inf
from engine.autograd import enable_grad
from engine.autograd.graph import increment_version
from engine.optim import Optimizer
from engine.optim.optimizer import Closure, Group, StateDict


class ZeroRedundancyOptimizer(Optimizer):
    """Any elementwise optimizer of `engine.optim`, with its state divided among the ranks.

        optimizer = ZeroRedundancyOptimizer(net.parameters(), AdamW, lr=1e-3)

    After `step` the parameters of every rank are, bit for bit, those that `AdamW(net.parameters(), lr=1e-3)` gives.
    Gradients must be averaged already (DistributedDataParallel); all of them are on every rank, so `clip_grad_norm_` of
    all parameters is the norm, as ever. Whole parameters are dealt out, the largest first, to the rank with the fewest
    elements so far. `param_groups` are those of all parameters, alike on all ranks; options may be changed in them.

    A checkpoint: `consolidate_state_dict()` on all ranks, then `state_dict()` on rank 0 is what the optimizer itself
    would save; `load_state_dict` takes such a dict on any number of ranks.

    Args:
        params: as for any optimizer, in the same order on every rank.
        optimizer_class: the optimizer, and `defaults` its options.
        process_group: the ranks; default all.
        parameters_as_bucket_view, overlap_with_ddp: PyTorch's, of which only the defaults have a meaning here.

    Raises TypeError for an optimizer that does not update elementwise (LBFGS); NotImplementedError for the options
    above.
    """

    def __init__(
        self,
        params: Iterable[Any],
        optimizer_class: type[Optimizer],
        process_group: ProcessGroup | None = None,
        parameters_as_bucket_view: bool = False,
        overlap_with_ddp: bool = False,
        **defaults: Any,
    ) -> None:
        losses.refuse("ZeroRedundancyOptimizer, whose state is on one rank each,", "use the optimizer itself")
        for name, given in (
            ("parameters_as_bucket_view", parameters_as_bucket_view),
            ("overlap_with_ddp", overlap_with_ddp),
        ):
            if given:
                raise NotImplementedError(f"ZeroRedundancyOptimizer: {name} is not supported; leave it out")
        if not issubclass(optimizer_class, Optimizer) or optimizer_class.step is not Optimizer.step:
            raise TypeError(
                f"ZeroRedundancyOptimizer: {optimizer_class.__name__} does not update each element by itself, so its "
                "state cannot be divided among ranks"
            )
        self.process_group = resolve(process_group)
        self.optim = optimizer_class(params, **defaults)  # of all parameters; it only ever steps this rank's share
        self.defaults = self.optim.defaults
        self.state = self.optim.state
        self.param_groups = self.optim.param_groups
        self._prepare()
        self._whole: list[StateDict] = []  # what `consolidate_state_dict` has collected: none or one
        self._deal()

    def _deal(self) -> None:
        """Which rank updates which parameter; computed by each rank for itself."""
        elements = [0] * self.process_group.size()
        self._owner: dict[int, int] = {}  # rank, by id of the parameter
        self._shares: list[list[engine.Tensor]] = [[] for _ in elements]
        for group in self.param_groups:
            for parameter in sorted(group["params"], key=engine.Tensor.numel, reverse=True):
                rank = elements.index(min(elements))
                elements[rank] += parameter.numel()
                self._owner[id(parameter)] = rank
                self._shares[rank].append(parameter)
        mine = self.process_group.rank
        self._parts: list[Group] = [
            {"params": [parameter for parameter in group["params"] if self._owner[id(parameter)] == mine]}
            for group in self.param_groups
        ]

    def add_param_group(self, param_group: Group) -> None:
        """Adds parameters, on every rank alike."""
        self.optim.add_param_group(param_group)
        self._deal()

    def step(self, closure: Closure | None = None) -> Any:
        """Collective: updates this rank's share and takes over the others' from their ranks."""
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        for group, part in zip(self.param_groups, self._parts, strict=True):
            part.update({name: value for name, value in group.items() if name != "params"}, part_of=group)
            self.optim.step_group(part)
        replicas.copy_shares(dict(enumerate(self._shares)), self.process_group)
        for rank, share in enumerate(self._shares):
            if rank != self.process_group.rank:
                increment_version(share)
        self._whole.clear()
        return loss

    def agree_on_found_inf(self, found_inf: engine.Tensor) -> None:
        """Collective: what `engine.amp.GradScaler` asks, since `step` must be called by all ranks or by none."""
        sum_found_inf(self.process_group, found_inf)

    # --- state --------------------------------------------------------------------------------------------------------

    def consolidate_state_dict(self, to: int = 0) -> None:
        """Collective: rank `to` of the group collects the state of all, for its `state_dict`."""
        own = self.optim.state_dict()
        group = self.process_group
        with group.meeting("consolidate_state_dict"):
            states = [own["state"]] if group.comm is None else group.objects().gather(own["state"], to)
        self._whole.clear()
        if states is not None:
            merged = {number: value for state in states for number, value in state.items()}
            self._whole.append({"state": dict(sorted(merged.items())), "param_groups": own["param_groups"]})

    def state_dict(self) -> StateDict:
        """The whole state, as `optimizer_class` itself would save it, on the rank that has consolidated it.

        Raises RuntimeError on the others, and where there was a step since.
        """
        if not self._whole:
            raise RuntimeError(
                f"Optimizer state has not been consolidated on this rank. Please call `consolidate_state_dict(to="
                f"{self.process_group.rank})` on all ranks beforehand if you meant to save the global state."
            )
        return self._whole[0]

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Takes over the options, and this rank's share of a whole state: of any number of ranks, or of no ZeRO at all.

        The dict is not changed. Raises ValueError as `Optimizer.load_state_dict`.
        """
        numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
        params = [parameter for group in self.param_groups for parameter in group["params"]]
        mine = self.process_group.rank
        owned = {n for n, parameter in zip(numbers, params, strict=False) if self._owner[id(parameter)] == mine}
        others = set(numbers) - owned
        share = {number: value for number, value in state_dict["state"].items() if number not in others}
        self.optim.load_state_dict({**state_dict, "state": share})
        self.state, self.param_groups = self.optim.state, self.optim.param_groups
        self._whole.clear()
        self._deal()

    def local_state_dict(self) -> StateDict:
        """This rank's share of `state_dict`, under the numbers that its parameters have in the whole; not collective.

        What `ddp.checkpoint` saves: the states of all ranks together are the whole.
        """
        return self.optim.state_dict()

    def keeps(self, place: tuple[Any, ...]) -> bool:
        """Whether this rank needs the item of a whole state at these keys, as ("state", 3), to load it."""
        if place[0] != "state" or len(place) == 1:
            return True
        params = [parameter for group in self.param_groups for parameter in group["params"]]
        number = place[1]
        return number < len(params) and self._owner[id(params[number])] == self.process_group.rank

    def __getstate__(self) -> dict[str, Any]:
        raise RuntimeError(
            "ZeroRedundancyOptimizer: save state_dict() instead; a share of the state is of no use alone"
        )

    def share(self) -> dict[str, int]:
        """Elements this rank updates, and elements in all."""
        counts = [sum(parameter.numel() for parameter in share) for share in self._shares]
        return {"own": counts[self.process_group.rank], "all": sum(counts)}
