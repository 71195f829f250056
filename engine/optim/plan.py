"""How a group of parameters is divided into slabs, and whether the division still holds at the next step."""

from operator import is_, itemgetter
from typing import TYPE_CHECKING, Any
from weakref import ref

from engine.autograd.modes import open_blocks
from engine.memory import backend
from engine.memory.guard import GuardedPlan, on_gpu_of
from engine.optim.cuda import MOST_MEMBERS
from engine.optim.slabs import Gradients, Slab, raw_array
from engine.optim.state import State, StateOfParameter, changed
from engine.optim.tables import DeviceSlab, is_served
from engine.tensor import Tensor
from engine.tensor.exchanged import exchanged

if TYPE_CHECKING:
    from engine.optim.optimizer import Group, Optimizer

# Elements of a parameter that shares a slab: more take longer to gather than to call a kernel for. AdamW, µs, gathered
# and one by one (SGD with momentum): 32 of 2,048 104 and 293 (56, 117), of 8,192 215 and 244 (158, 172), of 16,384 532
# and 356 (322, 206); 128 of 6,144 887 and 977 (887, 671), of 16,384 4073 and 3102 (3339, 1674).
SMALL = 6144
# Elements of a slab from which a compiled update pays (2,400 floats of AdamW: 2 µs, 9 without).
FUSED_FROM = 512
# In place of a big parameter's number: it is stepped with all others on its GPU.
ON_DEVICE = -1


class Plan:
    """The slabs of a group, for the parameters that had a gradient when it was made.

    group["part_of"]: the whole group, where this one is a part of it that is stepped by itself (a bucket of gradients,
    the share of a rank). The part is updated by the kernels that the whole would be: they round differently.
    """

    def __init__(self, optimizer: "Optimizer", group: "Group", gradients: Gradients) -> None:
        self.active = [gradient is not None for gradient in gradients]
        self._complete = bool(self.active) and all(self.active)
        self.names = tuple(optimizer.start(group))
        bundles: dict[tuple[Any, ...], list[int]] = {}
        steps = _steps_on_gpus(optimizer, group)
        for member, param in enumerate(group["params"]):
            if gradients[member] is None:
                continue
            spec = param._spec
            progress = steps.get(param) or _progress(optimizer, self.names, param)
            small = spec.numel <= SMALL and not optimizer.whole
            alone: Any = None if small else member
            if spec.device.type == "cuda":
                if _served_by_device(optimizer, group, param):
                    alone = ON_DEVICE
            elif group.get("capturable") or group.get("master_weights"):
                option = "capturable" if group.get("capturable") else "master_weights"
                raise RuntimeError(
                    f"{type(optimizer).__name__}: {option}=True is for parameters on CUDA, got one on {spec.device}"
                )
            bundles.setdefault((spec.dtype, spec.device, progress, alone), []).append(member)
        alike: dict[tuple[Any, ...], int] = {}  # elements of small parameters
        for param in group.get("part_of", group)["params"]:
            if param.numel() <= SMALL:
                alike[param.dtype, param.device] = alike.get((param.dtype, param.device), 0) + param.numel()
        self.slabs: list[Any] = []
        for (dtype, device_, progress, alone), members in bundles.items():
            compiled = alone is not None or alike[dtype, device_] >= FUSED_FROM
            with on_gpu_of(group["params"][members[0]]._array):
                made: list[Any] = (
                    _device_slabs(optimizer, group, members, not progress)
                    if alone == ON_DEVICE
                    else [Slab(optimizer, group, members, not progress, compiled)]
                )
            if device_.type == "cuda" and backend.several_gpus:
                made = [GuardedPlan(slab, device_.index) for slab in made]
            self.slabs += made
        members = [member for slab in self.slabs for member in slab.members]
        self._pick = itemgetter(*members) if len(members) > 1 else lambda sequence: [sequence[m] for m in members]
        self._arrays = [array for slab in self.slabs for array in slab.arrays]
        self._owners = [owner for slab in self.slabs for owner in slab.owners]
        self._placed: dict[str, list[Tensor]] = {}
        for slab in self.slabs:
            for name, tensors in slab.placed.items():
                self._placed.setdefault(name, []).extend(tensors)
        # what was so when it was last found to fit; None where that says nothing of the next time
        self._seen: tuple[Any, ...] | None = None
        self._metas: list[Any] = []
        self._kinds: list[type] = []
        # Gradients that are the very tensors of the last step, as those in the buckets of `ddp` are, lie where they
        # lay. None is kept alive for it, and only the first is remembered until it comes again.
        self._first: ref[Tensor] | None = None
        self._given: list[tuple[ref[Tensor], Any]] = []

    def repeats(self, optimizer: "Optimizer", group: "Group") -> bool:
        """Whether nothing was exchanged, of any tensor or state, since it was found to fit; gradients are not looked
        at.
        """
        seen = self._seen
        return (
            seen is not None
            and seen[0] is exchanged.last
            and seen[1] is changed.last
            and seen[2] is optimizer.state
            and [param._meta for param in group["params"]] == self._metas  # each tensor has its own: 0.6 µs for 48
            and tuple(optimizer.start(group)) == self.names
        )

    def has_same_gradients(self) -> bool:
        """Whether the gradients are those of the last step, which were read where they lie; where `repeats` says so."""
        given = self._given
        if len(given) != len(self._metas) or open_blocks.open:
            return False
        for last, meta in given:  # 2 µs for 48, and no list of them is made
            gradient = meta.grad
            if gradient is None or last() is not gradient:
                return False
        return True

    def has_same_kinds(self, gradients: Gradients) -> bool:
        """Whether it fits these gradients, too; where `repeats` says so."""
        return list(map(type, gradients)) == self._kinds  # within the interpreter: 0.3 µs for 18 parameters

    def fits(self, optimizer: "Optimizer", group: "Group", gradients: Gradients) -> bool:
        """Whether the same parameters have gradients and nobody has exchanged their memory or state."""
        seen = (exchanged.last, changed.last, optimizer.state)  # before what is looked at, so that nothing is missed
        found = self._finds_all(optimizer, group, gradients)
        noted = type(optimizer.state) is State and all(type(owner) is StateOfParameter for owner in self._owners)
        self._seen = seen if found and noted else None
        self._metas = [param._meta for param in group["params"]]
        self._kinds = list(map(type, gradients))
        return found

    def _finds_all(self, optimizer: "Optimizer", group: "Group", gradients: Gradients) -> bool:
        active = self.active
        if len(active) != len(gradients):
            return False
        for gradient, expected in zip(gradients, active, strict=True):
            if (gradient is not None) is not expected:
                return False
        if tuple(optimizer.start(group)) != self.names:
            return False
        return self._intact(optimizer, group)

    def _intact(self, optimizer: "Optimizer", group: "Group") -> bool:
        """Whether parameters and state still are the memory the slabs were made of."""
        # map, itemgetter and is_ stay inside the interpreter: 4 µs for 18 parameters of Adam where a loop takes 12
        params = self._pick(group["params"])
        if not all(map(is_, map(raw_array, params), self._arrays)):
            return False
        if not self._owners:
            return True
        state = optimizer.state
        in_order = len(state) == len(params) and all(map(is_, state, params))  # no look-ups: a Tensor's hash is Python
        if not all(map(is_, state.values() if in_order else map(state.get, params), self._owners)):
            return False
        try:
            return all(
                all(map(is_, map(itemgetter(name), self._owners), tensors)) for name, tensors in self._placed.items()
            )
        except KeyError:
            return False

    def run(self, optimizer: "Optimizer", group: "Group", gradients: Gradients) -> None:
        """One step."""
        again = False
        first = gradients[0] if self._complete else None
        if first is not None and first._counter is not None:  # one that was written to: those of one step seldom are
            again = self._first is not None and self._first() is first
            self._first = self._first if again else ref(first)
        lie_still = again
        for slab in self.slabs:
            lie_still &= slab.run(optimizer, group, gradients, again)
        remembered: Any = gradients if lie_still else []
        self._given = [(ref(each), meta) for each, meta in zip(remembered, self._metas, strict=False)]

    def run_again(self, optimizer: "Optimizer", group: "Group") -> None:
        """One step with the gradients of the last one."""
        for slab in self.slabs:
            slab.run(optimizer, group, None)


def _served_by_device(optimizer: "Optimizer", group: "Group", param: Tensor) -> bool:
    """Raises: RuntimeError for what only the device's kernels do and they cannot do here."""
    served = is_served(optimizer, param)
    wants = [name for name in ("capturable", "master_weights") if group.get(name)]
    wants += [name for name in ("grad_scale", "found_inf") if getattr(optimizer, name) is not None]
    if wants and not served:
        raise RuntimeError(
            f"{type(optimizer).__name__}: {wants[0]} needs an optimizer with a CUDA kernel (a subclass with a formula "
            f"of its own has none) and parameters without gaps in memory, got one of shape {list(param.shape)} and "
            f"stride {list(param.stride())}"
        )
    return served


def _device_slabs(optimizer: "Optimizer", group: "Group", members: list[int], fresh: bool) -> "list[DeviceSlab]":
    parts = [members[start : start + MOST_MEMBERS] for start in range(0, len(members), MOST_MEMBERS)]
    return [DeviceSlab(optimizer, group, part, fresh) for part in parts]


def _steps_on_gpus(optimizer: "Optimizer", group: "Group") -> dict[Tensor, float]:
    """The number of updates of the parameters that count it on a GPU: one wait for each GPU, not for each parameter."""
    counted: dict[Any, list[tuple[Tensor, Any]]] = {}
    for param in group["params"] if optimizer.counts_steps else ():
        step = optimizer.state[param].get("step") if param in optimizer.state else None
        if isinstance(step, Tensor) and step.is_cuda:
            counted.setdefault(step.device, []).append((param, step._array))
    found: dict[Tensor, float] = {}
    for where, pairs in counted.items():
        values = backend.array_module(where).stack([array for _, array in pairs]).get()
        found.update(zip((param for param, _ in pairs), values.tolist(), strict=True))
    return found


def _progress(optimizer: "Optimizer", names: tuple[str, ...], param: Tensor) -> Any:
    """What parameters of one slab must have in common: the number of updates so far, or whether there was one."""
    state = optimizer.state.get(param)
    if optimizer.counts_steps:
        step = None if state is None else state.get("step")
        return 0.0 if step is None else float(step)
    return state is not None and all(state.get(name) is not None for name in names)
