"""How a step walks memory: parameters become slabs, one-dimensional memory in the order in which the parameters lie.

A big parameter is a slab of its own, updated where it is. Small ones of one dtype and device share a slab: their gradients and
values are gathered, updated in one go, and written back; their state lives in the slab for good (the tensors in
`optimizer.state` are views of it). The layout contract makes this free of copies: a gradient has its parameter's strides, so
both, read in memory order, meet element by element. A gradient that breaks the contract is copied once and counted.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from engine import backend, layout
from engine.dtypes import float32, float64, get_default_dtype
from engine.flat import flat_array, unflattened
from engine.spec import Spec, spec_of
from engine.tensor import Tensor

if TYPE_CHECKING:
    from engine.optim.optimizer import Group, Optimizer

# Gradients and state that had to be copied because they were not laid out as their parameter. Tests read it.
layout_copies = 0

# Elements. Gathering costs less than a separate update up to here: see the benchmark in the closing note of the optimizer.
SMALL = 4096
# Elements of a slab from which a compiled update pays, and of the cache-sized pieces in which NumPy walks one.
FUSED_FROM = 32768
PIECE = 65536

Gradients = list[Tensor | None]


class Slab:
    """Parameters that are updated as one array. `members` are their positions in the group."""

    __slots__ = (
        "arrays",
        "dense",
        "fresh",
        "gradient",
        "members",
        "parameter",
        "pieces",
        "scalars",
        "specs",
        "state",
        "tensors",
        "values",
    )

    def __init__(self, optimizer: "Optimizer", group: "Group", members: list[int], fresh: bool) -> None:
        params: list[Tensor] = [group["params"][member] for member in members]
        self.members = members
        self.fresh = fresh
        self.arrays = [param._array for param in params]
        # state lies as its parameter; where that has gaps or overlaps, densely in the same order of axes
        self.specs = [
            param._spec if param._spec.dense else param._spec.like(stride=layout.preserve_strides(param.shape, param.stride()))
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
        self.tensors: list[tuple[dict[str, Any], dict[str, Tensor]]] = [(optimizer.state[param], {}) for param in params]
        if not (optimizer.counts_steps or optimizer.start(group)):
            for param in params:  # nothing to remember: leave no empty entry behind
                if not optimizer.state[param]:
                    del optimizer.state[param]
        self.scalars = self._collect_scalars(optimizer)
        self.state = {
            name: self._collect(name, initial, xp.empty(total, first.dtype.numpy))
            for name, initial in optimizer.start(group).items()
        }

    def _cut(self, flat: Any) -> list[Any]:
        """Consecutive pieces of `flat`, one a member."""
        cuts = np.cumsum([0, *(spec.numel for spec in self.specs)]).tolist()
        return [flat[start:stop] for start, stop in zip(cuts, cuts[1:], strict=False)]

    def _collect(self, name: str, initial: complex, flat: Any) -> Any:
        """Moves the state `name` of all members into `flat`, filling in `initial` where there is none; returns `flat`."""
        for (own, placed), piece, spec in zip(self.tensors, self._cut(flat), self.specs, strict=True):
            view = unflattened(piece, spec)
            before = own.get(name)
            if spec.dtype.is_complex:
                initial = complex(initial.real, initial.real)
            view[...] = initial if before is None else before._array
            own[name] = placed[name] = Tensor(view, spec)
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
            for position, (own, placed) in enumerate(self.tensors):
                before = own.get(name)
                values[position] = initial if before is None else float(before)
                own[name] = placed[name] = Tensor(values[position : position + 1].reshape(()), spec_of((), (), kind))
            scalars[name] = values
        return scalars

    def intact(self, optimizer: "Optimizer", group: "Group") -> bool:
        """Whether parameters and state still are the memory this slab was made of."""
        params = group["params"]
        for member, array, (own, placed) in zip(self.members, self.arrays, self.tensors, strict=True):
            if params[member]._array is not array:
                return False
            for name, tensor in placed.items():
                if own.get(name) is not tensor:
                    return False
            if placed and optimizer.state.get(params[member]) is not own:
                return False
        return True

    def run(self, optimizer: "Optimizer", group: "Group", gradients: Gradients) -> None:
        """Gathers, updates, writes back."""
        flats = [
            gradient._array.reshape(-1)
            if gradient._spec is spec and spec.contiguous
            else in_layout_of(spec, gradient)
            for gradient, spec in zip([gradients[member] for member in self.members], self.specs, strict=True)
        ]
        parameter, gathered = self.parameter, self.gradient is not None
        if gathered:
            xp = backend.array_module(self.specs[0].device)
            gradient = xp.concatenate(flats, out=self.gradient)
            if self.dense:
                xp.concatenate(self.values, out=parameter)
            else:
                for piece, value in zip(self.pieces, self.values, strict=True):
                    piece[...] = value
        else:
            gradient = flats[0]
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
        _update(optimizer, group, step, parameter, gradient, state)
        if gathered:
            for value, piece in zip(self.values, self.pieces, strict=True):
                value[...] = piece


def _update(
    optimizer: "Optimizer", group: "Group", step: int, p: Any, g: Any, state: dict[str, Any]
) -> None:
    """`optimizer.update` on the whole, compiled or in cache-sized pieces where that is faster."""
    size = p.size
    if size >= FUSED_FROM and optimizer.fused is not None and isinstance(p, np.ndarray) and p.dtype.char in "fd":
        optimizer.fused(group, step, p, g, state)
    elif size <= PIECE or not isinstance(p, np.ndarray):
        optimizer.update(group, step, p, g, state)
    else:
        for start in range(0, size, PIECE):
            piece = slice(start, start + PIECE)
            own = {name: value if isinstance(value, float) else value[piece] for name, value in state.items()}
            optimizer.update(group, step, p[piece], g[piece], own)


def in_layout_of(spec: Spec, gradient: Tensor) -> Any:
    """The gradient as a 1-D array in the memory order of `spec`; a counted copy if it lies differently."""
    global layout_copies
    if layout.same_layout_modulo_size_one(spec.shape, gradient._spec.stride, spec.stride):
        return flat_array(gradient._array, spec)
    layout_copies += 1
    copy = backend.empty(spec)
    copy[...] = gradient._array
    return flat_array(copy, spec)


class Plan:
    """The slabs of a group, for the parameters that had a gradient when it was made."""

    def __init__(self, optimizer: "Optimizer", group: "Group", gradients: Gradients) -> None:
        self.active = [gradient is not None for gradient in gradients]
        self.names = tuple(optimizer.start(group))
        bundles: dict[tuple[Any, ...], list[int]] = {}
        for member, param in enumerate(group["params"]):
            if gradients[member] is None:
                continue
            spec = param._spec
            progress = _progress(optimizer, self.names, param)
            small = spec.numel <= SMALL
            key = (spec.dtype, spec.device, progress, None if small else member)
            bundles.setdefault(key, []).append(member)
        self.slabs = [
            Slab(optimizer, group, members, fresh=not progress)
            for (_, _, progress, _), members in bundles.items()
        ]

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
        return all(slab.intact(optimizer, group) for slab in self.slabs)

    def run(self, optimizer: "Optimizer", group: "Group", gradients: Gradients) -> None:
        """One step."""
        for slab in self.slabs:
            slab.run(optimizer, group, gradients)
        name = type(optimizer).__name__
        for param, active in zip(group["params"], self.active, strict=True):
            if active:
                param._bump_version(name)


def _progress(optimizer: "Optimizer", names: tuple[str, ...], param: Tensor) -> Any:
    """What parameters of one slab must have in common: the number of updates so far, or whether there was one."""
    state = optimizer.state.get(param)
    if optimizer.counts_steps:
        step = None if state is None else state.get("step")
        return 0.0 if step is None else float(step)
    return state is not None and all(state.get(name) is not None for name in names)
