"""How a step runs on a GPU: all parameters of a group in two launches, whatever their number.

The twin of `engine.optim.slabs.Slab`, with `engine.optim.cuda` instead of NumPy and Numba. Parameters and
gradients stay where they are. The state of all of them lies in one array a name, the count of steps is on the device
too, and the host never waits; a step inside a CUDA graph counts on when the graph is replayed.
"""

from operator import is_, itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.memory import backend
from engine.optim.cuda import Members, places
from engine.optim.laying_out import in_layout_of
from engine.rules.dtypes import float32
from engine.rules.spec import Spec, spec_of
from engine.tensor import Tensor
from engine.tensor.flat import flat_array, unflattened

if TYPE_CHECKING:
    from engine.optim.optimizer import Group, Optimizer
    from engine.optim.slabs import Gradients

MASTER = "master_weight"

_FIXED = (float, int, bool, str, type(None))


def is_served(optimizer: "Optimizer", param: Tensor) -> bool:
    """Whether there is a kernel for this optimizer and parameter.

    None for a subclass with another formula, and none for parameters whose memory has gaps or overlaps.
    """
    kind = type(optimizer)
    if kind.device_algorithm is None or not param._spec.dense:
        return False
    formula = _owner(kind, "device_options")
    return all(issubclass(formula, _owner(kind, name)) for name in ("update", "start", "advance"))


def _owner(kind: type, name: str) -> type:
    return next(each for each in kind.__mro__ if name in each.__dict__)


class DeviceSlab:
    """Parameters on one GPU, of one dtype, with the same number of updates behind them, and dense.

    `members` are their positions in the group. group["master_weights"]: state and a copy of the parameters, which is
    what is updated and rounded into them, are float32 (for parameters in half precision).
    """

    __slots__ = (
        "_members",
        "_names",
        "_pick",
        "_values",
        "arrays",
        "counters",
        "members",
        "owners",
        "placed",
        "specs",
        "values",
    )

    def __init__(self, optimizer: "Optimizer", group: "Group", members: list[int], fresh: bool) -> None:
        params: list[Tensor] = [group["params"][member] for member in members]
        self.members = members
        self._pick = itemgetter(*members) if len(members) > 1 else lambda sequence: (sequence[members[0]],)
        self.arrays = [param._array for param in params]
        self.counters = [param._version_counter() for param in params]
        self.specs: list[Spec] = [param._spec for param in params]
        self.values = [_reals(flat_array(array, spec)) for array, spec in zip(self.arrays, self.specs, strict=True)]
        algorithm, order = optimizer.device_algorithm or ("", ())
        names = optimizer.start(group)
        stateful = optimizer.counts_steps or names or optimizer.scalar_state
        master = bool(group.get("master_weights")) and self.specs[0].dtype.itemsize == 2
        self.owners: list[dict[str, Any]] = [optimizer.state[param] for param in params] if stateful or master else []
        self.placed: dict[str, list[Tensor]] = {}
        if optimizer.counts_steps:
            steps = self._collect_scalars("step", 0.0)
        else:
            steps = backend.require_cupy().full(len(members), 0.0 if fresh else 1.0, np.float32)
        scalars = [self._collect_scalars(name, 1.0) for name in optimizer.scalar_state]
        state = {name: self._collect(name, initial, master) for name, initial in names.items()}
        self._members = Members(
            algorithm,
            self.values,
            [state.get(name) for name in order],
            steps,
            scalars,
            self._collect(MASTER, None, master) if master else None,
        )
        # the group's options when they were looked at last, and none where one of them can change inside
        self._names: list[str] = []
        self._values: list[Any] = []

    def _collect(self, name: str, initial: float | None, in_float32: bool) -> Any:
        """One flat array with the state `name` of all members: what there is already, else `initial`, else (where that
        is None) the parameter itself.
        """
        cupy = backend.require_cupy()
        starts, total = places([value.size for value in self.values])
        flat = cupy.empty(total, np.float32 if in_float32 else self.values[0].dtype)
        tensors = self.placed[name] = []
        for own, start, value, array, spec in zip(
            self.owners, starts, self.values, self.arrays, self.specs, strict=True
        ):
            like = spec_of(spec.shape, spec.stride, float32, spec.device) if in_float32 else spec
            view = unflattened(flat[start : start + value.size].view(like.dtype.numpy), like)
            before = own.get(name)
            if before is not None:
                view[...] = before._array if before.is_cuda else cupy.asarray(before._array)
            elif initial is None:
                view[...] = array
            else:
                view[...] = complex(initial, initial) if spec.dtype.is_complex else initial
            own[name] = Tensor(view, like)
            tensors.append(own[name])
        return flat

    def _collect_scalars(self, name: str, initial: float) -> Any:
        """One array (members,); the tensors in the state are 0-dim views of it."""
        values = backend.require_cupy().full(len(self.members), initial, np.float32)
        tensors = self.placed[name] = []
        for position, own in enumerate(self.owners):
            before = own.get(name)
            here = values[position : position + 1].reshape(())
            if before is not None:
                here[...] = before._array if isinstance(before, Tensor) and before.is_cuda else float(before)
            own[name] = Tensor(here, spec_of((), (), float32, self.specs[0].device))
            tensors.append(own[name])
        return values

    def run(self, optimizer: "Optimizer", group: "Group", gradients: "Gradients | None", keep: bool = False) -> bool:
        """Updates, and counts the write in each parameter's version.

        gradients: None for those of the last step, which are the same tensors and lie where they lay. keep: no matter,
        the table knows where these lie.
        Returns: whether they are read where they lie, and so may be None in the next step.
        """
        flats: list[Any] = []  # copies, which are needed until the launch
        if gradients is not None:
            given: Any = self._pick(gradients)
            # Specs are equal where they are the very same. Loops that read slots: 4.2 µs for 48, by attrgetter 5.8.
            if [gradient._spec for gradient in given] == self.specs:  # only where each begins matters
                self._members.point_at([gradient._array.data.ptr for gradient in given])
            else:
                places = zip(self.members, self.specs, given, strict=True)
                flats = [
                    gradient._array if gradient._spec is spec else in_layout_of(spec, gradient, group["params"][member])
                    for member, spec, gradient in places
                ]
                self._members.point_at(list(map(backend.address, flats)))
        if list(group) != self._names or not all(map(is_, group.values(), self._values)):
            self._set_options(optimizer, group)
        scale, found = optimizer.grad_scale, optimizer.found_inf
        self._members.step(None if scale is None else scale._array, None if found is None else found._array)
        name = type(optimizer).__name__
        for counter in self.counters:
            counter.value += 1
            counter.last_writer = name
        return not flats

    def _set_options(self, optimizer: "Optimizer", group: "Group") -> None:
        """The options of the group from now on, until one of them is another object, where none can change inside."""
        self._members.set_options(
            {
                "lr": learning_rate(group),
                "weight_decay": float(group.get("weight_decay", 0)),
                "eps": float(group.get("eps", 0)),
                "maximize": bool(group.get("maximize")),
                "other": bool(group.get("decoupled_weight_decay")),
                **optimizer.device_options(group),
            }
        )
        fixed = all(_is_fixed(value) for name, value in group.items() if name != "params")
        self._names, self._values = (list(group), list(group.values())) if fixed else ([], [])


def _is_fixed(value: Any) -> bool:
    """Whether an option is a number, text or nothing, or a tuple of these."""
    return all(map(_is_fixed, value)) if type(value) is tuple else type(value) in _FIXED


def learning_rate(group: "Group") -> Any:
    """The group's rate as a number, or as a device array where it is a tensor there.

    Raises: TypeError for a tensor there that is neither float32 nor float64.
    """
    lr = group["lr"]
    if isinstance(lr, Tensor) and lr.is_cuda:
        if lr._array.dtype.char not in "fd":
            raise TypeError(f"lr as a CUDA tensor: expected float32 or float64, got {lr.dtype}")
        return lr._array
    return float(lr)


def _reals(flat: Any) -> Any:
    """Complex numbers are updated as pairs of real ones."""
    return flat.view(flat.real.dtype) if flat.dtype.kind == "c" else flat
