"""Backward: a run over a recorded graph with a queue of ready nodes; `engine.autograd.walk` says what is done at each.

Among ready nodes the one recorded last runs first, and AccumulateGrad before all others, so a leaf's gradient is final,
and can be reduced, as early as possible. `engine.autograd.api` has the public calls.

A backward started inside another one (in a hook or a Function) is a GraphTask of its own, run to its end at once:
deeper tasks go first. Nothing here recurses over the graph, and a run inside many others moves to a fresh thread, so
neither long nor deep graphs meet Python's recursion limit.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import cache
from heapq import heappop, heappush, heappushpop
from typing import Any

from engine.autograd import places
from engine.autograd.accumulate import AccumulateGrad
from engine.autograd.hooks import name_the_node
from engine.autograd.modes import state
from engine.autograd.node import Edge, Node
from engine.autograd.task import GraphTask
from engine.autograd.walk import run_node, send
from engine.calls.listening import heard
from engine.calls.written import inlined

watchers: OrderedDict[int, Callable[[], AbstractContextManager[object]]] = OrderedDict()
"""See `engine.autograd.graph.watch_backward`."""

failures: OrderedDict[int, Callable[[], None]] = OrderedDict()
"""See `engine.autograd.graph.watch_failures`."""

_DEPTH_OF_ONE_THREAD = 40  # a backward inside a backward takes about 10 Python frames of the 1000 a thread has


@heard
def run_backward(
    roots: Sequence[Edge],
    gradients: Sequence[Any],
    keep_graph: bool,
    create_graph: bool,
    inputs: Sequence[Edge] | None,
    accumulate: bool,
) -> list[Any] | None:
    """Runs one GraphTask and returns the captured gradients (None unless `inputs` were asked for without accumulation).

    `gradients` are Tensors, one a root.
    """
    depth = len(state.tasks)
    if watchers and not depth:
        with ExitStack() as watched:
            for watcher in watchers.values():
                watched.enter_context(watcher())
            return _run(roots, gradients, keep_graph, create_graph, inputs, accumulate)
    if depth and depth % _DEPTH_OF_ONE_THREAD == 0:
        return _on_fresh_thread(lambda: _run(roots, gradients, keep_graph, create_graph, inputs, accumulate))
    return _run(roots, gradients, keep_graph, create_graph, inputs, accumulate)


def _on_fresh_thread(function: Callable[[], Any]) -> Any:
    """Runs `function` on a thread with an empty Python stack and this thread's modes and tasks."""
    outcome: dict[str, Any] = {}
    adopt = None
    if places.in_use:
        from engine.autograd.workers import takeover

        adopt = takeover()
    modes = state.__dict__ | {"tasks": list(state.tasks)}

    def body() -> None:
        state.__dict__.update(modes)
        try:
            if adopt is not None:
                adopt()
            outcome["value"] = function()
        except BaseException as error:  # noqa: BLE001 - handed to the waiting thread whatever it is
            outcome["error"] = error

    thread = threading.Thread(target=body, name="engine-reentrant-backward")
    thread.start()
    thread.join()
    if "error" in outcome:
        raise outcome.pop("error")
    return outcome["value"]


def _run(
    roots: Sequence[Edge],
    gradients: Sequence[Any],
    keep_graph: bool,
    create_graph: bool,
    inputs: Sequence[Edge] | None,
    accumulate: bool,
) -> list[Any] | None:
    buffers: dict[Node, list[Any]] = {}
    for (node, slot), gradient in zip(roots, gradients, strict=True):
        value = gradient if create_graph else gradient._array
        buffer = buffers.get(node)
        if buffer is None:
            buffer = buffers[node] = [None] * len(node.output_specs)
        buffer[slot] = value if buffer[slot] is None else buffer[slot] + value
        gradient = value = buffer = None
    del gradients
    task = GraphTask(buffers, keep_graph, create_graph)
    if inputs is None:
        task.count_dependencies(0)
    else:
        task.request(inputs, accumulate)
    task.plain = task.needed is None and not state.anomaly and not state.operator_listeners
    before = state.grad_enabled
    state.grad_enabled = create_graph
    state.tasks.append(task)
    try:
        if places.in_use:
            _drain_on_gpus(task, buffers)
        else:
            _drain_here()(task, buffers)
        task.node = None
        for callback in task.callbacks:  # a callback may queue further ones
            callback()
    except BaseException as error:
        if isinstance(error, Exception):
            name_the_node(error, task.node)
        for callback in (*task.on_error, *(failures.values() if len(state.tasks) == 1 else ())):
            callback()
        raise
    finally:
        state.grad_enabled = before
        state.tasks.pop()
        if task.place is not None:  # a hook that raised may have left another stream current
            task.place.raw.use()
    if inputs is None or accumulate:
        return None
    return [task.captured.get(position) for position in range(len(inputs))]


@heard
def _drain_on_gpus(task: GraphTask, buffers: dict[Node, list[Any]]) -> None:
    """The same for a process that has recorded calls on a GPU; this graph may be without one."""
    from engine.autograd.workers import drain, runs_here

    (_drain_here() if runs_here(task) else drain)(task, buffers)


@cache
def _drain_here() -> Callable[[GraphTask, dict[Node, list[Any]]], None]:
    """`_drain` without calls of `run_node` and `send`, which take 20 of 270 µs of a step of 9 linear layers of 16."""
    made: Callable[[GraphTask, dict[Node, list[Any]]], None] = inlined(_drain, run_node, send)
    return made


def _drain(task: GraphTask, buffers: dict[Node, list[Any]]) -> None:
    """Runs the roots and everything that becomes ready. Roots that other roots lead to wait like any other node."""
    queue: list[tuple[int, Node, list[Any]]] = []  # sequence numbers differ, so nodes are never compared
    leaves: list[tuple[Node, list[Any]]] = []
    found: list[tuple[Node, list[Any]]] = []
    for node in task.roots:
        buffer = buffers.pop(node)
        if node in task.dependencies:
            task.not_ready[node] = buffer
        elif type(node) is AccumulateGrad:
            leaves.append((node, buffer))
        else:
            heappush(queue, (-node.sequence, node, buffer))
    node = buffer = None  # type: ignore[assignment]
    ready: tuple[int, Node, list[Any]] | None = None  # one that is not in the queue: in a chain there never is another
    while True:
        # AccumulateGrad looks at reference counts: nothing here may hold a gradient while it runs.
        if leaves:
            task.producer = node
            for leaf, buffer in leaves:
                run_node(task, leaf, buffer)
            leaves.clear()
        if ready is not None:
            _, node, buffer = heappushpop(queue, ready) if queue else ready
            ready = None
        elif queue:
            _, node, buffer = heappop(queue)
        else:
            break
        results = run_node(task, node, buffer)
        if results is None:
            continue
        send(task, node, results, found)
        results = buffer = None  # type: ignore[assignment]
        for following, waiting in found:
            if type(following) is AccumulateGrad:
                leaves.append((following, waiting))
            elif ready is None:
                ready = (-following.sequence, following, waiting)
            else:
                heappush(queue, (-following.sequence, following, waiting))
        found.clear()
        waiting = None  # type: ignore[assignment]
    assert not task.not_ready, (
        f"could not compute gradients for some functions: {[node.name() for node in task.not_ready]}"
    )
