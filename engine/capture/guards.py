"""What must still be as it was when a step was recorded, as one expression that is written out and compiled.

Memory behind parameters and buffers, which tensors and children a module has, its flags and numbers, hooks, and what
the step's own function refers to by name. About 20 ns a condition.
"""

import gc
import types
from collections.abc import Callable, Iterable
from typing import Any
from weakref import ref

from engine.capture.comparison import same_value
from engine.capture.intercepts import has_hooks
from engine.capture.recorder import Event, External, Group
from engine.errors.callers import GENERATED
from engine.nn.module import Module
from engine.optim.lr_scheduler import LRScheduler
from engine.optim.optimizer import Optimizer
from engine.rules.device import default
from engine.rules.dtypes import get_default_dtype
from engine.tensor import Tensor

_PLAIN = (bool, int, float, str, type(None), tuple)


# Modules have conditions of their own, what an optimizer or scheduler does is done for real, and the rest is no state.
_GUARDED_OTHERWISE = (Module, Optimizer, LRScheduler, Tensor, types.ModuleType)


class Guard:
    """Conditions under which a recording holds, each with what to say when it does not."""

    def __init__(self) -> None:
        self._conditions: list[tuple[str, str]] = []
        self._namespace: dict[str, Any] = {"has_hooks": has_hooks, "same_value": same_value}
        self._names: dict[int, str] = {}
        self._functions: set[types.FunctionType] = set()

    def _name(self, value: Any) -> str:
        name = self._names.get(id(value))
        if name is None:
            name = self._names[id(value)] = f"g{len(self._names)}"
            self._namespace[name] = value
        return name

    def _require(self, condition: str, message: str) -> None:
        self._conditions.append((condition, message))

    # --- what is required ---------------------------------------------------------------------------------------------

    def module(self, module: Module, passing: set[tuple[int, str]]) -> None:
        """Flags, numbers, hooks, and members of a module, but for attributes that the step's effects set."""
        kind = type(module).__name__
        members = module.__dict__
        self.function(type(module).forward)
        own = self._name(members)
        for name, value in members.items():
            if type(value) in _PLAIN and not name.startswith("_") and (id(module), name) not in passing:
                self._equal(f"{own}[{name!r}]", value, f"{name} of a {kind} changed")
        self._require(
            f"(not {self._name(module)}._hooked or not has_hooks({self._name(module)}))", f"a {kind} has a hook now"
        )
        for group in ("_parameters", "_buffers", "_modules"):
            table = members[group]
            for name, value in table.items():
                self._require(
                    f"{self._name(table)}[{name!r}] is {self._name(value)}", f"{name} of a {kind} was exchanged"
                )
            if group == "_modules" and table:
                self._require(f"len({self._name(table)}) == {len(table)}", f"a {kind} has more or fewer children")

    def _equal(self, expression: str, value: Any, message: str) -> None:
        name = self._name(value)
        self._require(f"({expression} is {name} or same_value({expression}, {name}))", message)

    def memory(self, array: Any, owners: list[Tensor]) -> None:
        """The tensors that looked at `array` still do, those that train still train."""
        shape, memory = list(array.shape), self._name(array)
        trained = [tensor for tensor in owners if tensor._requires_grad]
        lasting = [tensor for tensor in trained or owners if id(tensor) in self._names]
        for tensor in lasting:
            self._require(
                f"{self._name(tensor)}._array is {memory}", f".data of a tensor of shape {shape} was replaced"
            )
            self._require(_flag(self._name(tensor), tensor), f"requires_grad of a tensor of shape {shape} changed")
        if lasting:
            return
        # Which of them outlives the step is not known; all are held weakly.
        conditions = []
        for tensor in trained or owners:
            name = f"{self._name(ref(tensor))}()"
            conditions.append(f"({name} is not None and {name}._array is {memory} and {_flag(name, tensor)})")
        self._require(
            f"({' or '.join(conditions)})",
            f"a tensor of shape {shape} was replaced, or its .data, or its requires_grad",
        )

    def leaf(self, leaf: Any) -> None:
        """A sink of gradients: nobody put a hook before it."""
        self._require(f"{self._name(leaf)}.extras is None", "a parameter has a hook now")

    def function(self, function: Any, objects: Iterable[Any] = ()) -> None:
        """What a function's code refers to by name: closures, globals, plain attributes of these and of `objects`.

        The same for functions of the user's that it refers to.
        """
        if isinstance(function, types.MethodType):
            objects = (function.__self__, *objects)
            function = function.__func__
        if not isinstance(function, types.FunctionType) or function in self._functions or _is_ours(function):
            return
        self._functions.add(function)
        names = _names_in(function.__code__)
        found = list(objects)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                value = cell.cell_contents
            except ValueError:  # not assigned yet
                continue
            self._equal(f"{self._name(cell)}.cell_contents", value, f"{name} changed")
            found.append(value)
        known = function.__globals__
        for name in sorted(names & known.keys()):
            self._equal(f"{self._name(known)}[{name!r}]", known[name], f"{name} changed")
            found.append(known[name])
        for each in found:
            if isinstance(each, types.FunctionType | types.MethodType):
                self.function(each)
            elif not isinstance(each, _GUARDED_OTHERWISE):
                self._attributes(each, names)

    def _attributes(self, value: Any, names: set[str]) -> None:
        """The numbers, flags and strings among attributes that the code may look at."""
        members = getattr(value, "__dict__", None)
        if isinstance(members, dict | types.MappingProxyType):
            owner = self._name(value if isinstance(value, type) else members)
            for name in sorted(names & members.keys()):
                if type(members[name]) in _PLAIN:
                    where = f"{owner}.{name}" if isinstance(value, type) else f"{owner}[{name!r}]"
                    kind = value.__name__ if isinstance(value, type) else f"a {type(value).__name__}"
                    self._equal(where, members[name], f"{name} of {kind} changed")

    def dtype(self) -> None:
        """The default dtype and device, which factories take."""
        self._namespace |= {"get_default_dtype": get_default_dtype, "default": default}
        self._require(f"get_default_dtype() is {self._name(get_default_dtype())}", "the default dtype changed")
        self._require(f"default.device is {self._name(default.device)}", "the default device changed")

    # --- asking -------------------------------------------------------------------------------------------------------

    def compile(self) -> Callable[[], bool]:
        """A function that says whether everything holds."""
        condition = " and ".join(condition for condition, _ in self._conditions) or "True"
        code = compile(f"def holds():\n    return {condition}", f"{GENERATED}guard of a captured step>", "exec")
        exec(code, self._namespace)
        checked = self._namespace["holds"]

        def holds() -> bool:
            try:
                return bool(checked())
            except (KeyError, ValueError, AttributeError):  # deleted
                return False

        return holds

    def broken(self) -> str:
        """What does not hold, in words."""
        for condition, message in self._conditions:
            try:
                if not eval(condition, self._namespace):
                    return message
            except (KeyError, ValueError, AttributeError):
                return message
        return "something changed and changed back"


def _flag(name: str, tensor: Tensor) -> str:
    return f"{'' if tensor._requires_grad else 'not '}{name}._requires_grad"


def _is_ours(function: types.FunctionType) -> bool:
    """Whether a function belongs to this library, whose globals nobody changes."""
    return (function.__module__ or "").partition(".")[0] == __name__.partition(".")[0]


def _names_in(code: types.CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names_in(constant)
    return names


def external_arrays(events: Iterable[Event]) -> list[Any]:
    """The memory that recorded calls found in place."""
    found: dict[int, Any] = {}

    def collect(atom: Any) -> None:
        if isinstance(atom, External):
            found[id(atom.array)] = atom.array
        elif isinstance(atom, Group):
            for item in atom.items:
                collect(item)

    for event in events:
        for atom in event.arguments:
            collect(atom)
    return list(found.values())


def owners_of(arrays: list[Any]) -> dict[int, list[Tensor]]:
    """The tensors whose memory the arrays are, by id of the array."""
    owners: dict[int, list[Tensor]] = {id(array): [] for array in arrays}
    for holder in gc.get_referrers(*arrays) if arrays else ():
        if isinstance(holder, Tensor) and id(holder._array) in owners:
            owners[id(holder._array)].append(holder)
    return owners
