"""The part of a copy that goes on beside the next forward and backward: what only the step of an optimizer changes."""

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

import engine
from ddp.checkpoint import shard
from ddp.checkpoint.agreeing import FAILURES
from engine.autograd.graph import version_of
from engine.ops.copy.kernels import copy_past_caches
from engine.optim import Optimizer
from engine.tensor.flat import flat_view

_WORTH = 1 << 20  # bytes; what is smaller is copied at once
_PIECE = 16 << 20  # bytes; what a thread copies at a time: 1.3 ms


class Copy:
    """Copies a file's blobs to `memory`: at once, but for parameters and states of the optimizers among `state`.

    Those `run` copies, in any thread. `settle`, which the next step of one of these optimizers does first, helps it:
    that thread may have a lower priority, or no processor for a while.
    """

    def __init__(self, blobs: Sequence[shard.Blob], memory: np.ndarray, state: Mapping[str, Any]) -> None:
        optimizers = [value for value in state.values() if isinstance(value, Optimizer)]
        theirs = {tensor.data_ptr() for optimizer in optimizers for tensor in _changed_by(optimizer)}
        self._left = shard.stage(blobs, memory, lambda blob: _may_wait(blob, theirs))
        sources = [(blob.tensor, blob.source) for blob, _, _ in self._left if blob.source is not None]
        self._versions = [(name, tensor, version_of(tensor)) for name, tensor in sources]
        self._hooks = [each.register_step_pre_hook(self._before_step) for each in optimizers if self._left]
        self._pieces = [
            (target[begin : begin + _PIECE], source[begin : begin + _PIECE])
            for _, source, target in self._left
            for begin in range(0, source.nbytes, _PIECE)
        ]
        self._copied = [False] * len(self._pieces)
        self._turns = iter(range(len(self._pieces)))  # whoever is next has the piece to himself: indivisible
        self._helping = threading.Lock()
        self._done = threading.Event()
        self.error: RuntimeError | None = None

    def run(self) -> None:
        """Until all is copied. On one thread: the others, and the BLAS's, are training's."""
        self._copy(self._turns)
        with self._helping:  # who helped may have been interrupted, by a signal, in what he had begun with
            self._copy(place for place, copied in enumerate(self._copied) if not copied)

    def _copy(self, places: Iterable[int]) -> None:
        for place in places:
            try:
                copy_past_caches(*self._pieces[place])
            except FAILURES as error:  # the compiler's, say: nobody is to wait for the rest
                self.error = RuntimeError(f"checkpoint: the state could not be copied: {error}")
                self.error.__cause__ = error
                self._done.set()
                return
            self._copied[place] = True
        if all(self._copied):
            for blob, _, memory in self._left:
                blob.lies_in(memory)
            self._done.set()

    def settle(self) -> None:
        """Sees to it that all is copied; `error` says then whether somebody has written into what was being copied."""
        with self._helping:
            self._copy(self._turns)
        self._done.wait()  # for what `run` has begun with
        self.unhook()
        changed = [name for name, tensor, version in self._versions if version_of(tensor) != version]
        self._versions, self._left = [], []
        if changed and self.error is None:
            self.error = RuntimeError(
                f"checkpoint: {changed[0]!r} was written into between a save and the next step of its optimizer: let "
                "that alone change it, or make the Manager without overlap=True"
            )

    def unhook(self) -> None:
        """Optimizers step without asking from now on."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _before_step(self, optimizer: Optimizer, args: Any, keywords: Any) -> None:
        self.settle()


def _changed_by(optimizer: Optimizer) -> list[engine.Tensor]:
    states = [value for state in optimizer.state.values() for value in state.values()]
    return [
        *(parameter for group in optimizer.param_groups for parameter in group["params"]),
        *(value for value in states if isinstance(value, engine.Tensor)),
    ]


def _may_wait(blob: shard.Blob, theirs: Collection[int]) -> bool:
    """Whether it is large, an optimizer's, and read where it lies: what has gaps or is on a device never is."""
    source = blob.source
    if source is None or blob.nbytes < _WORTH or not source.is_cpu or flat_view(source.detach()) is None:
        return False
    return source.data_ptr() in theirs
