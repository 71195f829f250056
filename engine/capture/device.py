"""A step on a GPU as it is replayed: CUDA graphs, and between them what cannot be in one.

Where a step that was recorded twice computes on a GPU, the next call runs its Python once more, while the stream is
captured. What the host has to do for real at every call ends one graph and begins the next: collectives, schedulers, an
optimizer without kernels for the GPU or whose options change. DistributedDataParallel's part in backward is such, too:
gradients are stored (in buckets, where those are their destination) inside the graph; the listeners of leaves, which
start the sums over ranks, run after the graph in which their gradients are, one graph for about a bucket.

Inputs are copied into memory that belongs to the graphs. What the step returns and the gradients it leaves hold until
the next call. Random numbers go on from call to call. All of it runs on a stream of its own, which waits for the
caller's before and is waited for after.
"""

import gc
from collections.abc import Callable, Sequence
from typing import Any

from engine.amp.modes import own_casts
from engine.autograd.modes import set_multithreading_enabled, state
from engine.calls.arguments import tensors_in, with_tensors
from engine.calls.listening import listening
from engine.capture.program import Recording
from engine.capture.runtime import CapturedStep, fail_backward, returned
from engine.capture.segments import Capture
from engine.optim.optimizer import Optimizer
from engine.tensor import Tensor


class NotCapturedError(RuntimeError):
    """The stream could not be captured while the step ran; nothing of the step has happened."""


class DeviceProgram:
    """`holds()` says whether a call may be replayed, `replay(*tensors)` does it; the first replay captures.

    index: the GPU. changing: optimizers whose options were seen to change; they stay outside the graphs. It is the
    step's, and grows. `expired`: it will never hold again.
    """

    def __init__(
        self, index: int, recording: Recording, step: Callable[..., Any], given: tuple[Any, Any], changing: set[int]
    ) -> None:
        self.guard = self
        self.expired = False
        self._index = index
        self._recording = recording
        self._step = step
        self._given = given
        self._changing = changing
        self._actions: list[Callable[[], Any]] | None = None
        self._inputs: list[Tensor] = []
        self._written: list[int] = []  # inputs that the step writes
        self._result: Any = None  # its structure
        self._makers: list[Callable[[Sequence[Tensor]], Tensor]] = []  # of the tensors in it
        self._pool: Any = None
        self._inside: dict[Optimizer, list[Any]] = {}  # optimizers in graphs, with the options they had
        self._leaves: list[_Leaf] = []
        self._reason = ""

    # --- whether it holds ---------------------------------------------------------------------------------------------

    def holds(self) -> bool:
        """Whether everything is as it was when the step was captured."""
        self._reason = self._broken()
        return not self._reason

    def broken(self) -> str:
        """What does not hold, in words."""
        return self._reason or self._recording.guard.broken()

    def _broken(self) -> str:
        if not self._recording.holds():
            return self._recording.guard.broken()
        if self._actions is None:
            return ""
        for optimizer, options in self._inside.items():
            if _options(optimizer) != options:
                self._changing.add(id(optimizer))
                self.expired = True
                return f"options of {type(optimizer).__name__} changed, which is called outside CUDA graphs from now on"
        for leaf in self._leaves:
            if not leaf.holds():
                return "a parameter has another .grad, or another place for it, than when the step was captured"
        return ""

    # --- replaying ----------------------------------------------------------------------------------------------------

    def replay(self, *tensors: Tensor) -> Any:
        """The step on these arguments."""
        from engine.cuda import streams
        from engine.cuda.graphs import capture_stream

        side, caller = capture_stream(self._index), streams.current_stream(self._index)
        side.wait_stream(caller)
        try:
            with streams.stream(side):
                if self._actions is None:
                    self._capture(tensors)
                else:
                    for own, given in zip(self._inputs, tensors, strict=True):
                        own._array[...] = given._array
                    self._act()
                for place in self._written:
                    tensors[place]._array[...] = self._inputs[place]._array
                    tensors[place]._bump_version("a captured step")
        finally:
            caller.wait_stream(side)
        for leaf in self._leaves:
            leaf.restore()
        return self._returned(tensors)

    def _act(self) -> None:
        assert self._actions is not None
        mode = state.grad_enabled
        before = len(state.tasks)
        try:
            for action in self._actions:
                action()
        except BaseException:
            if len(state.tasks) > before:
                fail_backward(state.tasks[-1])
            raise
        finally:
            del state.tasks[before:]
            state.grad_enabled = mode

    def _returned(self, tensors: Sequence[Tensor]) -> Any:
        """Tensors on the graphs' memory; an argument that the step returns is the caller's own."""
        return with_tensors(self._result, iter([make(tensors) for make in self._makers]))

    def _maker(self, tensor: Tensor) -> Callable[[Sequence[Tensor]], Tensor]:
        """What a replay returns in place of a tensor that the captured call returned."""
        for place, own in enumerate(self._inputs):
            if own is tensor:
                return lambda tensors: tensors[place]
        if tensor.is_leaf and tensor.requires_grad:  # a parameter
            return lambda tensors: tensor
        array, spec = tensor._array, tensor._spec
        node = CapturedStep(spec) if tensor.requires_grad else None
        return lambda tensors: returned(array, spec, node)

    # --- capturing ----------------------------------------------------------------------------------------------------

    def _capture(self, tensors: Sequence[Tensor]) -> None:
        from engine.cuda.devices import synchronize
        from engine.cuda.graphs import graph_pool_handle
        from engine.ops.copy.operator import clone

        synchronize(self._index)
        gc.collect()  # what is freed while a stream is captured would be taken for the graph's
        self._inputs = [clone(tensor.detach()) for tensor in tensors]
        self._leaves = [_Leaf(leaf) for leaf in self._recording.leaves if leaf.variable is not None]
        self._pool = graph_pool_handle()
        capture = Capture(self._pool, self._changing)
        waiting = iter(self._inputs)
        args, kwargs = (with_tensors(each, waiting) for each in self._given)
        with own_casts(), set_multithreading_enabled(False), listening(capture.listener()):
            capture.begin()
            try:
                result = self._step(*args, **kwargs)
                capture.end()
            except BaseException as error:
                capture.abandon()
                if isinstance(error, Exception) and not capture.actions:  # nothing of the step has happened
                    for leaf in self._leaves:
                        leaf.variable._meta.grad = leaf.before
                    raise NotCapturedError(str(error)) from error
                raise
        for leaf in self._leaves:
            leaf.settle()
        self._inside = {optimizer: _options(optimizer) for optimizer in capture.inside}
        found = tensors_in(result)
        self._makers = [self._maker(tensor) for tensor in found]
        self._result = with_tensors(result, iter([Tensor(None, tensor._spec) for tensor in found]))
        self._written = [place for place, own in enumerate(self._inputs) if own._version]
        self._actions = capture.actions


class _Leaf:
    """What a step does to one parameter's gradient, and to its version."""

    def __init__(self, node: Any) -> None:
        self.variable = node.variable
        meta = self.variable._autograd_meta()
        self.before, self.version = meta.grad, self.variable._version
        self.place, self.listener = meta.destination, meta.listener
        self.after: Tensor | None = None
        self.writes = 0
        self.kept = False  # whether the step adds to a gradient that was there before it

    def settle(self) -> None:
        """Notes what the step has left."""
        self.after = self.variable._autograd_meta().grad
        self.writes = self.variable._version - self.version
        self.kept = self.before is not None and self.after is not None and self.before._array is self.after._array

    def holds(self) -> bool:
        """Whether the gradient is where the graphs read and write it."""
        meta = self.variable._meta
        if meta.destination is not self.place or meta.listener is not self.listener:
            return False
        if self.before is None:
            return meta.grad is None
        return not self.kept or (meta.grad is not None and meta.grad._array is self.before._array)

    def restore(self) -> None:
        """Makes the tensor look as the step leaves it."""
        self.variable._meta.grad = self.after
        if self.writes:
            self.variable._version_counter().value += self.writes


def _options(optimizer: Optimizer) -> list[Any]:
    """What the kernels of a step were given of each group: numbers as text (-0.0 is not 0.0), tensors by identity."""
    return [
        {
            name: id(value) if isinstance(value, Tensor) else repr(value)
            for name, value in group.items()
            if name != "params"
        }
        for group in optimizer.param_groups
    ]
