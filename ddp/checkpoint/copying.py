"""The part of a copy that goes on beside training: what only the steps of optimizers change."""

import threading
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

import engine
from ddp.checkpoint import shard
from ddp.checkpoint.agreeing import FAILURES
from engine.autograd.graph import version_of
from engine.ops.copy.kernels import copy_past_caches
from engine.optim import Optimizer
from engine.tensor import array_of
from engine.tensor.flat import flat_view

_WORTH = 1 << 20  # bytes; what is smaller is copied at once
_PIECE = 16 << 20  # bytes; what a thread copies at a time: 1.3 ms


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    """A blob that is copied later: its bytes, where they go to, which of the pieces they are, its tensor's version."""

    blob: shard.Blob
    source: np.ndarray
    memory: np.ndarray
    places: range
    tensor: engine.Tensor
    version: int


class Copy:
    """Copies a file's blobs to `memory`: at once, but for parameters and states of the optimizers among `state`.

    Those `run` copies, in any thread. A step of one of these optimizers first sees to those that it is going to change,
    and copies them itself as far as `run` has not: that thread may have a lower priority, or no processor for a while.
    `settle` does so with all.
    """

    def __init__(self, blobs: Sequence[shard.Blob], memory: np.ndarray, state: Mapping[str, Any]) -> None:
        optimizers = [value for value in state.values() if isinstance(value, Optimizer)]
        theirs = {tensor.data_ptr() for each in optimizers for tensor in _tensors_of(each)}
        self._pieces: list[tuple[np.ndarray, np.ndarray]] = []
        left = shard.stage(blobs, memory, lambda blob: _may_wait(blob, theirs))
        self._left = [self._waiting(*each) for each in left]
        # First what the next steps wait for, as far as gradients tell.
        soon = _within(self._left, [tensor for each in optimizers for tensor in _changed_by(each)])
        self._order = sorted(self._left, key=lambda each: each not in soon)
        self._free = set(range(len(self._pieces)))
        self._copied = [False] * len(self._pieces)
        self._progress = threading.Condition()
        self._helping = threading.Lock()
        self._hooks = [each.register_step_pre_hook(self._before_step) for each in optimizers if self._left]
        self.error: RuntimeError | None = None

    def _waiting(self, blob: shard.Blob, source: np.ndarray, memory: np.ndarray) -> _Waiting:
        tensor, first = blob.source, len(self._pieces)
        assert tensor is not None
        for begin in range(0, source.nbytes, _PIECE):
            self._pieces.append((memory[begin : begin + _PIECE], source[begin : begin + _PIECE]))
        places = range(first, len(self._pieces))
        return _Waiting(blob, source, memory, places, tensor, version_of(tensor))

    def run(self) -> None:
        """Until all is copied. On one thread: the others, and the BLAS's, are training's."""
        self._copy(self._taken(self._order))
        with self._helping:  # who helped may have been interrupted, by a signal, in what he had begun with
            self._copy(place for place, copied in enumerate(self._copied) if not copied)
        if self.error is None:
            for each in self._order:
                each.blob.lies_in(each.memory)

    def _taken(self, some: Iterable[_Waiting]) -> Iterator[int]:
        """Those of their pieces that nobody has begun with yet."""
        for place in (place for each in some for place in each.places):
            try:
                self._free.remove(place)  # indivisible: who succeeds has the piece to himself
            except KeyError:
                continue
            yield place

    def _copy(self, places: Iterable[int]) -> None:
        for place in places:
            try:
                copy_past_caches(*self._pieces[place])
            except FAILURES as error:  # the compiler's, say: nobody is to wait for the rest
                self.error = RuntimeError(f"checkpoint: the state could not be copied: {error}")
                self.error.__cause__ = error
            with self._progress:
                self._copied[place] = self.error is None
                self._progress.notify_all()
            if self.error is not None:
                return

    def _is_copied(self, each: _Waiting) -> bool:
        return all(self._copied[each.places.start : each.places.stop])

    def settle(self) -> None:
        """Sees to it that all is copied; `error` says then whether somebody has written into what was being copied."""
        self._settle(set(self._left))

    def _settle(self, some: Set[_Waiting]) -> None:
        with self._helping:
            self._copy(self._taken(each for each in self._left if each in some))
        with self._progress:  # for what `run` has begun with
            self._progress.wait_for(lambda: self.error is not None or all(map(self._is_copied, some)))
        changed = [each.blob.tensor for each in some if version_of(each.tensor) != each.version]
        self._left = [each for each in self._left if each not in some]
        if not self._left:
            self.unhook()
        if changed and self.error is None:
            self.error = RuntimeError(
                f"checkpoint: {changed[0]!r} was written into before a save had copied it, and not by a step of its "
                "optimizer: let that alone change it, or make the Manager without overlap=True"
            )

    def unhook(self) -> None:
        """Optimizers step without asking from now on."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _before_step(self, optimizer: Optimizer, args: Any, keywords: Any) -> None:
        changed = _within(self._left, _changed_by(optimizer, bool(args or keywords)))
        self._settle(changed | {each for each in self._left if self._is_copied(each)})


def _tensors_of(optimizer: Optimizer) -> list[engine.Tensor]:
    states = [value for state in optimizer.state.values() for value in state.values()]
    return [*_parameters_of(optimizer), *(value for value in states if isinstance(value, engine.Tensor))]


def _parameters_of(optimizer: Optimizer) -> list[engine.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _changed_by(optimizer: Optimizer, told: bool = False) -> list[engine.Tensor]:
    """What its next step may write into: parameters that have a gradient, and their states.

    told: whether the step is given arguments: a closure makes gradients. Then, and where a subclass has a step of its
    own, it may be everything.
    """
    kind = type(optimizer)
    if told or kind.step is not Optimizer.step or kind.step_group is not Optimizer.step_group:
        return _tensors_of(optimizer)
    found = []
    for parameter in _parameters_of(optimizer):
        if parameter.grad is not None:
            states = optimizer.state.get(parameter, {}).values()
            found += [parameter, *(value for value in states if isinstance(value, engine.Tensor))]
    return found


def _may_wait(blob: shard.Blob, theirs: Collection[int]) -> bool:
    """Whether it is large, an optimizer's, and read where it lies: what has gaps or is on a device never is."""
    source = blob.source
    if source is None or blob.nbytes < _WORTH or not source.is_cpu or flat_view(source.detach()) is None:
        return False
    return source.data_ptr() in theirs


def _within(some: Iterable[_Waiting], tensors: Iterable[engine.Tensor]) -> set[_Waiting]:
    """Those of which there is a byte in the memory of one of the tensors."""
    extents = sorted(byte_bounds(array_of(tensor)) for tensor in tensors if tensor.is_cpu and tensor.nbytes)
    begins = [begin for begin, _ in extents]
    ends = [*accumulate((end for _, end in extents), max, initial=0)]  # the farthest of the first so many
    found = set()
    for each in some:
        begin, end = byte_bounds(each.source)
        if ends[bisect_left(begins, end)] > begin:
            found.add(each)
    return found
