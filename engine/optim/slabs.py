"""How a step walks memory: parameters become slabs, one-dimensional memory in the order in which the parameters lie.

A big parameter is a slab of its own, updated where it is. Small ones of one dtype and device share a slab: their
gradients and values are gathered, updated in one go, and written back; their state lives in the slab for good (the
tensors in `optimizer.state` are views of it). The layout contract makes this free of copies: a gradient has its
parameter's strides, so both, read in memory order, meet element by element. A gradient that breaks the contract is
copied once and counted.
"""

from itertools import pairwise
from operator import attrgetter, is_, itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.memory import backend, threads
from engine.memory.guard import GuardedPlan, on_gpu_of
from engine.optim.cuda import MOST_MEMBERS
from engine.optim.laying_out import in_layout_of
from engine.optim.tables import DeviceSlab, is_served
from engine.rules import layout
from engine.rules.dtypes import float32, float64, get_default_dtype
from engine.rules.spec import spec_of
from engine.tensor import Tensor
from engine.tensor.flat import flat_array, unflattened

if TYPE_CHECKING:
    from engine.optim.optimizer import Group, Optimizer

# Elements. Sixteen parameters of half this size take AdamW 129 µs gathered and 400 one by one; of four times it, 917
# and 564.
SMALL = 16384
# Elements of a slab from which a compiled update pays (2,400 floats of AdamW: 2 µs, 9 without), and of the cache-sized
# pieces in which NumPy walks one.
FUSED_FROM = 512
PIECE = 65536
# Elements of a part that is worth a thread of its own.
SHARED_FROM = 1 << 18
# In place of a big parameter's number: it is stepped with all others on its GPU.
ON_DEVICE = -1

_array_of = attrgetter("_array")

Gradients = list[Tensor | None]


class Slab:
    """Parameters that are updated as one array. `members` are their positions in the group."""

    __slots__ = (
        "arrays",
        "compiled",
        "counters",
        "dense",
        "fresh",
        "gradient",
        "members",
        "owners",
        "parameter",
        "pick",
        "pieces",
        "placed",
        "scalars",
        "specs",
        "state",
        "values",
    )

    def __init__(self, optimizer: "Optimizer", group: "Group", members: list[int], fresh: bool, compiled: bool) -> None:
        params: list[Tensor] = [group["params"][member] for member in members]
        self.members = members
        self.fresh = fresh
        self.compiled = compiled
        self.arrays = [param._array for param in params]
        self.counters = [param._version_counter() for param in params]
        # state lies as its parameter; where that has gaps or overlaps, densely in the same order of axes
        self.specs = [
            param._spec
            if param._spec.dense
            else param._spec.like(stride=layout.preserve_strides(param.shape, param.stride()))
            for param in params
        ]
        self.dense = all(param._spec.dense for param in params)
        total = sum(spec.numel for spec in self.specs)
        first = self.specs[0]
        xp = backend.array_module(first.device)
        if len(members) == 1 and self.dense:
            self.values = [flat_array(self.arrays[0], first)]
            self.parameter, self.gradient, self.pieces = self.values[0], None, self.values
        else:
            self.parameter = xp.empty(total, first.dtype.numpy)
            self.gradient = xp.empty(total, first.dtype.numpy)
            self.values = [
                flat_array(array, spec) if param._spec.dense else array
                for array, spec, param in zip(self.arrays, self.specs, params, strict=True)
            ]
            self.pieces = [
                piece if param._spec.dense else unflattened(piece, spec)
                for piece, spec, param in zip(self._cut(self.parameter), self.specs, params, strict=True)
            ]
        self.pick = itemgetter(*members) if len(members) > 1 else lambda sequence: (sequence[members[0]],)
        names = optimizer.start(group)
        stateful = optimizer.counts_steps or names or optimizer.scalar_state
        # the entries of optimizer.state, and by name the tensors that were put into them
        self.owners: list[dict[str, Any]] = [optimizer.state[param] for param in params] if stateful else []
        self.placed: dict[str, list[Tensor]] = {}
        self.scalars = self._collect_scalars(optimizer)
        self.state = {
            name: self._collect(name, initial, xp.empty(total, first.dtype.numpy)) for name, initial in names.items()
        }

    def _cut(self, flat: Any) -> list[Any]:
        """Consecutive pieces of `flat`, one a member."""
        cuts = np.cumsum([0, *(spec.numel for spec in self.specs)]).tolist()
        return [flat[start:stop] for start, stop in pairwise(cuts)]

    def _collect(self, name: str, initial: complex, flat: Any) -> Any:
        """Moves the state `name` of all members into `flat`, `initial` where there is none; returns `flat`."""
        if flat.dtype.kind == "c":
            initial = complex(initial.real, initial.real)
        tensors = self.placed[name] = []
        for own, piece, spec in zip(self.owners, self._cut(flat), self.specs, strict=True):
            view = unflattened(piece, spec)
            before = own.get(name)
            view[...] = initial if before is None else before._array
            own[name] = Tensor(view, spec)
            tensors.append(own[name])
        # complex numbers are updated as pairs of real ones
        return flat.view(flat.real.dtype) if flat.dtype.kind == "c" else flat

    def _collect_scalars(self, optimizer: "Optimizer") -> dict[str, Any]:
        """One array for each scalar of the state; the tensors in the state are 0-dim views of it."""
        names = {"step": 0.0} if optimizer.counts_steps else {}
        names |= dict.fromkeys(optimizer.scalar_state, 1.0)
        kind = float64 if get_default_dtype() is float64 else float32
        scalars = {}
        for name, initial in names.items():
            values = np.empty(len(self.members), kind.numpy)
            tensors = self.placed[name] = []
            for position, own in enumerate(self.owners):
                before = own.get(name)
                values[position] = initial if before is None else float(before)
                own[name] = Tensor(values[position : position + 1].reshape(()), spec_of((), (), kind))
                tensors.append(own[name])
            scalars[name] = values
        return scalars

    def run(self, optimizer: "Optimizer", group: "Group", gradients: Gradients) -> None:
        """Gathers, updates, writes back, and counts the write in each parameter's version."""
        name = type(optimizer).__name__
        flats = [
            gradient._array
            if gradient._spec is spec and spec.contiguous
            else in_layout_of(spec, gradient, group["params"][member])
            for gradient, spec, member in zip(self.pick(gradients), self.specs, self.members, strict=True)
        ]
        parameter, gathered = self.parameter, self.gradient is not None
        if gathered:
            xp = backend.array_module(self.specs[0].device)
            # 18 gradients of 16x16 and 16: 4.7 µs, 9.0 if each is made flat first
            gradient = xp.concatenate(flats, axis=None, out=self.gradient)
            if self.dense:
                xp.concatenate(self.values, out=parameter)
            else:
                for piece, value in zip(self.pieces, self.values, strict=True):
                    piece[...] = value
        else:
            gradient = flats[0].reshape(-1)
        if parameter.dtype.kind == "c":
            parameter, gradient = parameter.view(parameter.real.dtype), gradient.view(parameter.real.dtype)
        step = 1 if self.fresh else 2
        if optimizer.counts_steps:
            counter = self.scalars["step"]
            counter += 1
            step = int(counter[0])
        state = self.state
        if optimizer.scalar_state:
            optimizer.advance(group, step, self.scalars)
            state = state | {name: float(self.scalars[name][0]) for name in optimizer.scalar_state}
        self.fresh = False
        _update(optimizer, group, step, parameter, gradient, state, self.compiled)
        if gathered:
            for value, piece in zip(self.values, self.pieces, strict=True):
                value[...] = piece
        for counter in self.counters:
            counter.value += 1
            counter.last_writer = name


def _update(
    optimizer: "Optimizer", group: "Group", step: int, p: Any, g: Any, state: dict[str, Any], compiled: bool
) -> None:
    """`optimizer.update` on the whole, compiled or in cache-sized pieces where that is faster."""
    size = p.size
    if compiled and optimizer.fused is not None and isinstance(p, np.ndarray) and p.dtype.char in "fd":
        parts = threads.pieces(size, SHARED_FROM) if size >= 2 * SHARED_FROM else ()
        if len(parts) < 2:
            optimizer.fused(group, step, p, g, state)
            return

        def fuse(part: slice) -> None:
            optimizer.fused(group, step, p[part], g[part], _part_of(state, part))

        threads.share(fuse, parts)
    elif size <= PIECE or optimizer.whole or not isinstance(p, np.ndarray):
        optimizer.update(group, step, p, g, state)
    else:
        for start in range(0, size, PIECE):
            piece = slice(start, start + PIECE)
            optimizer.update(group, step, p[piece], g[piece], _part_of(state, piece))


def _part_of(state: dict[str, Any], part: slice) -> dict[str, Any]:
    return {name: value if isinstance(value, float) else value[part] for name, value in state.items()}


class Plan:
    """The slabs of a group, for the parameters that had a gradient when it was made.

    group["part_of"]: the whole group, where this one is a part of it that is stepped by itself (a bucket of gradients,
    the share of a rank). The part is updated by the kernels that the whole would be: they round differently.
    """

    def __init__(self, optimizer: "Optimizer", group: "Group", gradients: Gradients) -> None:
        self.active = [gradient is not None for gradient in gradients]
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

    def fits(self, optimizer: "Optimizer", group: "Group", gradients: Gradients) -> bool:
        """Whether the same parameters have gradients and nobody has exchanged their memory or state."""
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
        if not all(map(is_, map(_array_of, params), self._arrays)):
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
        for slab in self.slabs:
            slab.run(optimizer, group, gradients)


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
