"""A recorded call, and the program that two of them make."""

import gc
from collections.abc import Callable
from typing import Any

from engine.calls.arguments import signature, tensors_in, with_tensors
from engine.capture.code import Returned, ReturnedRequiringGrad, Writer
from engine.capture.comparison import atoms_differ, difference, settled
from engine.capture.guards import Guard, external_arrays, owners_of
from engine.capture.recorder import Recorder, memory_chain
from engine.capture.runtime import CapturedStep, returned
from engine.tensor import Tensor


class Recording:
    """One recorded call: its events, its result, and what must hold for another call to be like it."""

    def __init__(self, recorder: Recorder, result: Any) -> None:
        self.events = recorder.events
        self.result = recorder.structure(result, lambda tensor: _returned(recorder, tensor))
        self.layouts = recorder.layouts
        self.leaves = list(recorder.leaves)
        self._modules = list(recorder.modules)
        self._passing = recorder.passing
        self.guard = Guard()

    def watch(self, step: Callable[..., Any], given: Any) -> None:
        """Settles what must hold; `given` are the arguments."""
        objects: list[Any] = []
        signature(given, [], objects)
        self.guard.function(step, objects)
        self.guard.dtype()
        for module in self._modules:
            self.guard.module(module, self._passing)
        arrays = external_arrays(self.events)
        owners = owners_of(arrays)
        for array in arrays:
            if owners[id(array)]:
                self.guard.memory(array, owners[id(array)])
        for leaf in self.leaves:
            self.guard.leaf(leaf)
        self.holds = self.guard.compile()


class Program:
    """A step as it is replayed, and when it may be."""

    expired = False  # it may hold again

    def __init__(self, recording: Recording, replay: Callable[..., Any]) -> None:
        self.guard = recording.guard
        self.holds = recording.holds
        self.replay = replay


def disagreement(first: Recording, second: Recording) -> str | None:
    """How two recordings differ, in words; None if they agree."""
    return difference(first.events, second.events) or atoms_differ(first.result, second.result)


def program(recorder: Recorder, first: Recording, second: Recording, result: Any, aliases: list[Tensor]) -> Program:
    """What is replayed of two recordings that agree. `result` has no history, so that what else is alive of the step is
    held by somebody who should not: then the recorder refuses.
    """
    events = settled(first.events, second.events)
    # A kernel may give its very first result in another layout than the later ones.
    layouts = [one if one == other else None for one, other in zip(first.layouts, second.layouts, strict=True)]
    check_leaks(recorder, first, second, result, aliases)
    return Program(first, Writer(events, second.result, layouts, len(aliases)).write())


def check_leaks(recorder: Recorder, first: Recording, second: Recording, result: Any, aliases: list[Tensor]) -> None:
    """Refuses a step that keeps what it made. The events, which hold some of it, are dropped."""
    allowed = _lasting(second, result, aliases)
    first.events, second.events = [], []
    leaked = _leaked(recorder, allowed)
    if leaked is not None:
        gc.collect()
        leaked = _leaked(recorder, allowed)
    if leaked is not None:
        recorder.refuse(
            f"the step keeps a tensor of shape {leaked} beyond its end (in a list or an attribute, say), which a "
            "replay would not do again; return it instead"
        )


def _lasting(recording: Recording, result: Any, aliases: list[Tensor]) -> set[int]:
    """Memory that may outlive the step, by id: what it returns, what was there before, gradients."""
    arrays = [tensor._array for tensor in (*tensors_in(result), *aliases)]
    arrays += external_arrays(recording.events)
    for leaf in recording.leaves:
        variable = leaf.variable
        if variable is not None and variable._meta is not None and variable._meta.grad is not None:
            arrays.append(variable._meta.grad._array)
    allowed: set[int] = set()
    for array in arrays:
        allowed.update(map(id, memory_chain(array)))
    return allowed


def _leaked(recorder: Recorder, allowed: set[int]) -> list[int] | None:
    """The shape of an array of the step that is still there and should not be, or None."""
    return next((list(array.shape) for array in recorder.living() if id(array) not in allowed), None)


def _returned(recorder: Recorder, tensor: Tensor) -> Any:
    slot = recorder.slot_of(tensor._array)
    if slot is None:
        return recorder.tensor(tensor)
    return (ReturnedRequiringGrad if tensor.requires_grad else Returned)(slot, tensor._spec)


def without_history(recorder: Recorder, result: Any, aliases: list[Tensor]) -> Any:
    """The result with each tensor that the step made as a replay makes it."""
    given = {id(alias) for alias in aliases}
    fresh = []
    for tensor in tensors_in(result):
        if id(tensor) in given or recorder.slot_of(tensor._array) is None:
            fresh.append(tensor)
        else:
            spec = tensor._spec
            fresh.append(returned(tensor._array, spec, CapturedStep(spec) if tensor.requires_grad else None))
    return with_tensors(result, iter(fresh))
