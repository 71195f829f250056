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

from engine.memory import backend
from engine.optim.laying_out import in_layout_of
from engine.rules import layout
from engine.rules.dtypes import float32, float64, get_default_dtype
from engine.rules.spec import spec_of
from engine.sharing import threads
from engine.tensor import Tensor
from engine.tensor.flat import flat_array, unflattened

if TYPE_CHECKING:
    from engine.optim.optimizer import Group, Optimizer

# Elements of the cache-sized pieces in which NumPy walks a slab.
PIECE = 65536
# Elements of a part that is worth a thread of its own.
SHARED_FROM = 1 << 18

Gradients = list[Tensor | None]

raw_array = attrgetter("_array")  # `array_of` within the interpreter


class Slab:
    """Parameters that are updated as one array. `members` are their positions in the group."""

    __slots__ = (
        "arrays",
        "compiled",
        "counters",
        "dense",
        "flats",
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
        self.flats: list[Any] = []  # arrays of the gradients, where they lie still
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

    def run(self, optimizer: "Optimizer", group: "Group", gradients: Gradients | None, keep: bool = False) -> bool:
        """Gathers, updates, writes back, and counts the write in each parameter's version.

        gradients: None for those of the last step, which are the same tensors and lie where they lay. keep: remember
        where these lie.
        Returns: whether that was done, so that they may be None in the next step.
        """
        name = type(optimizer).__name__
        if gradients is None:
            flats, kept = self.flats, True
        else:
            picked = self.pick(gradients)
            flats = [
                gradient._array
                if gradient._spec is spec and spec.contiguous
                else in_layout_of(spec, gradient, group["params"][member])
                for gradient, spec, member in zip(picked, self.specs, self.members, strict=True)
            ]
            kept = keep and all(map(is_, flats, map(raw_array, picked)))
            self.flats = flats if kept else []
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
        return kept


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
