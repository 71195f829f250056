"""The CUDA graphs of one step while they are made, and the calls between them (`engine.capture.device`)."""

from collections.abc import Callable
from functools import partial
from typing import Any

from engine.autograd import accumulate, executor, task
from engine.autograd.modes import state
from engine.calls.effects import EFFECTS
from engine.calls.listening import BACKWARD, FUNCTION, Handler, Listener
from engine.capture.runtime import begin_backward, end_backward
from engine.optim.lr_scheduler import LRScheduler
from engine.optim.optimizer import Optimizer
from engine.random import Generator
from engine.tensor import Tensor

SEGMENT = 25 << 20  # bytes of gradients that are stored before their listeners run: about a bucket


class Capture:
    """The graphs of one step while they are made, and the calls between them."""

    def __init__(self, pool: Any, changing: set[int]) -> None:
        from engine.cuda.graphs import CUDAGraph

        self._new = CUDAGraph
        self._pool = pool
        self._changing = changing
        self._graph: Any = None
        self._depth = 0
        self._leaves: dict[Any, int] = {}
        self._waiting: list[Callable[[], None]] = []  # listeners of gradients in the graph that is being made
        self._bytes = 0
        self._in_backward = False  # whether `begin_backward` is among the actions, and `end_backward` is not
        self.actions: list[Callable[[], Any]] = []
        self.inside: dict[Optimizer, None] = {}

    def begin(self) -> None:
        """Captures from here on."""
        self._graph = self._new()
        self._graph.capture_begin(self._pool)

    def end(self) -> None:
        """Ends a graph, and runs it."""
        graph, self._graph = self._graph, None
        graph.capture_end()
        graph.replay()
        self.actions.append(graph.replay)

    def abandon(self) -> None:
        """After an exception."""
        if self._graph is not None:
            self._graph.abandon()
            self._graph = None

    def listener(self) -> Listener:
        """Who is told of what is not captured as it is."""
        from engine.capture.intercepts import own_methods

        outside = [*EFFECTS, Generator.manual_seed, Generator.set_state, *own_methods(LRScheduler, "step")]
        handlers: dict[Any, Callable[..., Any]] = dict.fromkeys(outside, self._outside)
        handlers |= dict.fromkeys(own_methods(Optimizer, "step"), self._optimizer)
        handlers[executor.run_backward] = self._backward
        handlers[executor._drain_on_gpus] = self._drain
        handlers[task.queue_callback] = self._queue_callback

        def listener(key: str, target: Any) -> Handler | None:
            if key is BACKWARD:
                return partial(self._accumulate, target) if isinstance(target, accumulate.AccumulateGrad) else None
            handler = handlers.get(target) if key is FUNCTION else None
            return None if handler is None else partial(handler, target) if handler == self._outside else handler

        return listener

    # --- calls --------------------------------------------------------------------------------------------------------

    def _outside(self, function: Callable[..., Any], original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """A call that the host makes at every replay, between graphs."""
        if self._depth or self._graph is None:
            return original(*args, **kwargs)
        recorded = state.grad_enabled
        self.end()
        result = self._eagerly(original, *args, **kwargs)
        kept = result._array if isinstance(result, Tensor) else None

        def call() -> None:
            mode = state.grad_enabled
            state.grad_enabled = recorded
            try:
                found = function(*args, **kwargs)
            finally:
                state.grad_enabled = mode
            if kept is not None and found._array is not kept:
                kept[...] = found._array  # later graphs read it there

        self.actions.append(call)
        self.begin()
        return result

    def _eagerly(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._depth += 1
        try:
            return function(*args, **kwargs)
        finally:
            self._depth -= 1

    def _optimizer(self, original: Callable[..., Any], optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        if self._depth or self._graph is None:
            return original(optimizer, *args, **kwargs)
        if args or kwargs or id(optimizer) in self._changing or not _is_capturable(optimizer):
            return self._outside(type(optimizer).step, original, optimizer, *args, **kwargs)
        self.inside[optimizer] = None
        return self._eagerly(original, optimizer)

    # --- backward -----------------------------------------------------------------------------------------------------

    def _backward(self, original: Callable[..., Any], roots: Any, *rest: Any) -> Any:
        if self._depth:
            return original(roots, *rest)
        self._leaves = {}
        todo = [edge[0] for edge in roots]
        seen = set(map(id, todo))
        while todo:
            for edge in todo.pop().next_edges:
                if edge is not None:
                    if type(edge[0]) is accumulate.AccumulateGrad:
                        self._leaves[edge[0]] = self._leaves.get(edge[0], 0) + 1
                    if id(edge[0]) not in seen:
                        seen.add(id(edge[0]))
                        todo.append(edge[0])
        result = original(roots, *rest)
        self._leave_backward()
        return result

    def _drain(self, original: Callable[..., Any], *args: Any) -> None:
        original(*args)
        if not self._depth and self._waiting:
            self._listen()

    def _accumulate(self, leaf: Any, original: Callable[..., Any], gradients: Any, *rest: Any) -> Any:
        """Stores a gradient inside the graph; who listens for it is told when the graph has run."""
        variable = leaf.variable
        meta: Any = None if variable is None else variable._meta
        listener = None if meta is None else meta.listener
        if self._depth or listener is None:
            return original(gradients, *rest)
        arrived = gradients[0] is not None and variable._requires_grad
        meta.listener = None
        try:
            result = original(gradients, *rest)
        finally:
            meta.listener = listener
        gradient = meta.grad

        def tell() -> None:
            meta.grad = gradient
            listener(arrived, gradient)

        self._waiting.append(tell)
        self._bytes += variable.nbytes
        if self._bytes >= SEGMENT:
            self._listen()
        return result

    def _listen(self) -> None:
        """Ends the graph, and tells those who wait for its gradients."""
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        self.end()
        if not self._in_backward:
            self._in_backward = True
            leaves = self._leaves
            self.actions.append(partial(begin_backward, leaves))
        for tell in waiting:
            self._eagerly(tell)
        self.actions += waiting
        self.begin()

    def _queue_callback(
        self, original: Callable[..., Any], callback: Callable[[], None], *rest: Any, **kw: Any
    ) -> None:
        """What listeners queue for the end of backward they queue in a replay, too; it runs outside graphs."""

        def outside() -> None:
            self._leave_backward(callback)

        original(outside if state.tasks and self._graph_or_listening() else callback, *rest, **kw)

    def _graph_or_listening(self) -> bool:
        return self._graph is not None or self._depth > 0

    def _leave_backward(self, callback: Callable[[], None] | None = None) -> None:
        """The end of backward, with or without something to run there."""
        if self._in_backward:
            self._in_backward = False
            self.end()
            self.actions.append(lambda: end_backward(state.tasks[-1]))
            self.actions.append(state.tasks.pop)
            if callback is not None:
                self._eagerly(callback)
            self.begin()
        elif callback is not None:
            self.end()
            self._eagerly(callback)
            self.begin()


def _is_capturable(optimizer: Optimizer) -> bool:
    """Whether a step of this optimizer is kernels only, with the count of steps on the GPU."""
    from engine.optim.tables import is_served

    hooks = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    return not hooks and all(
        parameter.is_cuda and is_served(optimizer, parameter)
        for group in optimizer.param_groups
        for parameter in group["params"]
    )
