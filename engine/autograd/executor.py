"""Backward: the walk over a recorded graph with a queue of ready nodes.

A node runs when every gradient that will ever reach it has arrived. Among ready nodes the one recorded last runs first,
and AccumulateGrad before all others, so a leaf's gradient is final, and can be reduced, as early as possible.
`engine.autograd.api` has the public calls.

A backward started inside another one (in a hook or a Function) is a GraphTask of its own, run to its end at once:
deeper tasks go first. Nothing here recurses over the graph, and a run inside many others moves to a fresh thread, so
neither long nor deep graphs meet Python's recursion limit.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from heapq import heappop, heappush, heappushpop
from typing import Any

from engine.autograd import places
from engine.autograd.accumulate import AccumulateGrad
from engine.autograd.gradients import add_into, fit
from engine.autograd.hooks import check_nan, name_the_node, run_post_hooks, run_pre_hooks
from engine.autograd.modes import state
from engine.autograd.node import Edge, Node
from engine.autograd.task import GraphTask
from engine.calls.listening import BACKWARD, call, heard

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
    before = state.grad_enabled
    state.grad_enabled = create_graph
    state.tasks.append(task)
    try:
        if places.in_use:
            _drain_on_gpus(task, buffers)
        else:
            _drain(task, buffers)
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
    if inputs is None or accumulate:
        return None
    return [task.captured.get(position) for position in range(len(inputs))]


@heard
def _drain_on_gpus(task: GraphTask, buffers: dict[Node, list[Any]]) -> None:
    """The same for a process that has recorded calls on a GPU; this graph may be without one."""
    from engine.autograd.workers import drain, has_places

    (drain if has_places(task) else _drain)(task, buffers)


def _drain(task: GraphTask, buffers: dict[Node, list[Any]]) -> None:
    """Runs the roots and everything that becomes ready. Roots that other roots lead to wait like any other node."""
    dependencies, not_ready, recorded, release = task.dependencies, task.not_ready, task.recorded, not task.keep_graph
    # else every node takes the long way through `evaluate`
    plain = task.needed is None and not state.anomaly and not state.listeners
    queue: list[tuple[int, Node, list[Any]]] = []  # sequence numbers differ, so nodes are never compared
    leaves: list[tuple[Node, list[Any]]] = []
    for node in task.roots:
        buffer = buffers.pop(node)
        if node in dependencies:
            not_ready[node] = buffer
        elif type(node) is AccumulateGrad:
            leaves.append((node, buffer))
        else:
            heappush(queue, (-node.sequence, node, buffer))
    node = buffer = None  # type: ignore[assignment]
    waiting: list[Any] | None = None
    ready: tuple[int, Node, list[Any]] | None = None  # one that is not in the queue: in a chain there never is another
    while True:
        # AccumulateGrad looks at reference counts: nothing here may hold a gradient while it runs.
        if leaves:
            task.producer = node
            for leaf, buffer in leaves:
                task.node = leaf
                if plain and leaf.extras is None:
                    leaf.apply(buffer, recorded)
                    if leaf.extras is not None:
                        run_late_hooks(leaf, (), recorded)
                else:
                    evaluate(task, leaf, buffer)
            leaves.clear()
        if ready is not None:
            _, node, buffer = heappushpop(queue, ready) if queue else ready
            ready = None
        elif queue:
            _, node, buffer = heappop(queue)
        else:
            break
        task.node = node
        if plain and node.extras is None:
            results = node.apply(buffer, recorded)
            if node.extras is not None:
                results = run_late_hooks(node, results, recorded)
            if release:
                node.release()
        else:
            evaluated = evaluate(task, node, buffer)
            if evaluated is None:
                continue
            results, evaluated = evaluated, None
        for edge, gradient, spec in zip(node.next_edges, results, node.input_specs):  # noqa: B905 - saves 0.12 of 0.32 µs
            if edge is None:
                continue
            following, slot = edge
            remaining = dependencies.get(following)
            if remaining is None:
                continue  # not on the way to a requested input
            if gradient is not None and (
                recorded or gradient.shape != spec.shape or gradient.dtype is not spec.dtype.numpy
            ):
                gradient = fit(node, _position(node, results, edge, gradient), gradient, spec, recorded)
            if remaining == 1:
                waiting = not_ready.pop(following, None) if not_ready else None
            else:
                dependencies[following] = remaining - 1
                waiting = not_ready.get(following)
            if waiting is None:
                waiting = [None] * len(following.output_specs)
                waiting[slot] = gradient
                if remaining > 1:
                    not_ready[following] = waiting
                    continue
            else:
                if waiting[slot] is None:
                    waiting[slot] = gradient
                elif gradient is not None:
                    add_into(waiting, slot, gradient, recorded)
                if remaining > 1:
                    continue
            if type(following) is AccumulateGrad:
                leaves.append((following, waiting))
            elif ready is None:
                ready = (-following.sequence, following, waiting)
            else:
                heappush(queue, (-following.sequence, following, waiting))
        results = gradient = buffer = waiting = None  # type: ignore[assignment]
    assert not not_ready, f"could not compute gradients for some functions: {[node.name() for node in not_ready]}"


def _position(node: Node, results: Sequence[Any], edge: Edge, gradient: Any) -> int:
    """Which of its results a node sends along an edge; looked up where it matters only, for an error message."""
    return next(
        place
        for place, (other, result) in enumerate(zip(node.next_edges, results, strict=False))
        if other is edge and result is gradient
    )


def evaluate(task: GraphTask, node: Node, buffer: list[Any]) -> Sequence[Any] | None:
    """Runs a node where somebody registered hooks, asked for certain inputs only, listens, or switched anomaly mode on.
    None: it need not run.
    """
    recorded, extras = task.recorded, node.extras
    captures = task.captures.get(node)
    runs = task.needed is None or node in task.needed
    if captures is not None and runs:
        _capture(task, captures, buffer)  # a node that also runs is captured before its hooks (spec section 5.6)
    if extras is not None and (extras.tensor_hooks or extras.pre_hooks):
        buffer = run_pre_hooks(extras, node, buffer, recorded, runs)
    if captures is not None and not runs:
        _capture(task, captures, buffer)
    if not runs:
        return None
    edges = None
    if task.needed is not None:  # gradients nobody asked for are not computed
        reached = task.dependencies
        edges = [edge if edge is not None and edge[0] in reached else None for edge in node.next_edges]
    kept = tuple(buffer) if extras is not None and extras.post_hooks else ()
    if state.listeners:
        results = call(BACKWARD, node, node.apply, buffer, recorded, edges)
    else:
        results = node.apply(buffer, recorded, edges)
    if node.extras is not None and node.extras.post_hooks:
        results = run_post_hooks(node.extras, node, results, kept, recorded)
    if not task.keep_graph:
        node.release()
    if state.anomaly and state.check_nan:
        check_nan(node, results)
    return results


def run_late_hooks(node: Node, results: Sequence[Any], recorded: bool) -> Sequence[Any]:
    """Post-hooks that were registered while the node was running; what it was given is gone by now."""
    extras = node.extras
    return results if extras is None or not extras.post_hooks else run_post_hooks(extras, node, results, (), recorded)


def _capture(task: GraphTask, captures: list[tuple[int, int]], buffer: list[Any]) -> None:
    for slot, position in captures:
        task.captured[position] = buffer[slot]
