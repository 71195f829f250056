"""The buffers of a wrapped module, which become those of one rank before a forward; or a hook of the user's runs in the
place of that.
"""

from collections.abc import Callable
from enum import Enum
from typing import Any

import engine
from ddp import replicas
from ddp.execution import Call, run
from ddp.groups.process_group import ProcessGroup
from ddp.replicas.contents import Contents
from ddp.training.uneven_batches import uneven

# Compared between the ranks: one that evaluates alone would else take part in something else of the others.
_EVALUATION = Call("taking over buffers to evaluate")

BufferHook = Callable[[Any, dict[str, engine.Tensor]], Any]


class _BufferCommHookLocation(Enum):
    """When a hook of buffers runs; PyTorch's name."""

    PRE_FORWARD = "before forward"
    POST_FORWARD = "after forward"


class Buffers:
    """Those of a wrapper, `contents`, among the ranks of `group`."""

    def __init__(self, contents: Contents, group: ProcessGroup) -> None:
        self._contents = contents
        self._group = group
        self.differ = False  # since a forward that recorded
        self.batches: uneven[Any] | None = None  # which says whose count
        self.hook: tuple[Any, BufferHook, _BufferCommHookLocation] | None = None

    def move_to(self, group: ProcessGroup) -> None:
        """From now on among the ranks of another group."""
        self._group = group

    def root(self) -> int:
        """The rank whose buffers count; collective after a step in which a rank ran out of data."""
        return 0 if self.batches is None else self.batches.root()

    def take_over(self, root: int, evaluating: bool = False) -> None:
        """Collective: those of one rank become those of all. evaluating: the forward that follows does not train."""
        if evaluating:
            run(self._group, _EVALUATION)
        replicas.copy_from(root, self._contents.current_buffers(), self._group)

    def register_hook(self, state: Any, hook: BufferHook, location: _BufferCommHookLocation) -> None:
        """From now on `hook(state, {name: buffer})` takes the place of the broadcast. Raises TypeError."""
        if not callable(hook):
            raise TypeError("DistributedDataParallel: the hook of buffers must be callable")
        self.hook = state, hook, location

    def run_hook(self, location: _BufferCommHookLocation) -> None:
        """If its place is here. Waits for the Future, or the list of them, that it returns."""
        assert self.hook is not None
        state, hook, wanted = self.hook
        if location is not wanted:
            return
        found = hook(state, dict(self._contents.buffers()))
        for future in found if isinstance(found, list | tuple) else [found]:
            if future is not None:
                future.wait()
