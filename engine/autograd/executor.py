"""Backward: GraphTask (the state of one run), dependency counts, and the ready queue.

A node runs when every gradient that will ever reach it has arrived. Among ready nodes the one recorded last runs first,
and AccumulateGrad before all others, so a leaf's gradient is final, and can be reduced, as early as possible.
`engine.autograd.api` has the public calls.

A backward started inside another one (in a hook or a Function) is a GraphTask of its own, run to its end at once:
deeper tasks go first. Nothing here recurses over the graph, and a run inside many others moves to a fresh thread, so
neither long nor deep graphs meet Python's recursion limit.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Any

from engine.autograd.accumulate import AccumulateGrad
from engine.autograd.gradients import add_into, fit
from engine.autograd.hooks import check_nan, name_the_node, run_post_hooks, run_pre_hooks
from engine.autograd.modes import state
from engine.autograd.node import Edge, Node

_DEPTH_OF_ONE_THREAD = 40  # a backward inside a backward takes about 10 Python frames of the 1000 a thread has

_ids = count()


class GraphTask:
    """The state of one backward run."""

    __slots__ = (
        "callbacks",
        "captured",
        "captures",
        "dependencies",
        "id",
        "keep_graph",
        "needed",
        "node",
        "not_ready",
        "on_error",
        "producer",
        "recorded",
        "roots",
        "scratch",
    )

    def __init__(self, roots: Iterable[Node], keep_graph: bool, recorded: bool) -> None:
        self.id = next(_ids)
        self.roots = tuple(roots)
        self.keep_graph = keep_graph
        self.recorded = recorded
        self.dependencies: dict[Node, int] = {}
        self.not_ready: dict[Node, list[Any]] = {}
        self.needed: set[Node] | None = None  # the nodes to run where certain inputs were asked for; None: all
        self.captures: dict[
            Node, list[tuple[int, int]]
        ] = {}  # node -> (gradient slot, position among the requested inputs)
        self.captured: dict[int, Any] = {}
        self.callbacks: list[Callable[[], None]] = []
        self.on_error: list[Callable[[], None]] = []
        self.node: Node | None = None  # the one that is running
        self.producer: Node | None = None  # the one whose gradients reach leaves at the moment
        self.scratch: dict[Any, Any] = {}  # what hooks remember for the length of this run

    def count_dependencies(self, lowest: int) -> None:
        """How many gradients each node waits for. What lies beyond nodes at `lowest` or nearer to the leaves is not
        visited.
        """
        dependencies = self.dependencies
        stack = list(self.roots)
        while stack:
            for edge in stack.pop().next_edges:
                if edge is not None:
                    following = edge[0]
                    known = dependencies.get(following)
                    if known is not None:
                        dependencies[following] = known + 1
                    else:
                        dependencies[following] = 1
                        if following.topological > lowest and following not in self.roots:
                            stack.append(following)

    def request(self, inputs: Sequence[Edge], accumulate: bool) -> None:
        """Counts dependencies, and restricts the run to the nodes on a path to the requested inputs."""
        wanted = {edge[0] for edge in inputs}
        lowest = min(node.topological for node in wanted)
        self.count_dependencies(lowest)
        if not accumulate:
            for position, (node, slot) in enumerate(inputs):
                self.captures.setdefault(node, []).append((slot, position))
        # A node is needed iff one of its edges leads to a requested node or to a needed one; post-order, without
        # recursion.
        needed: set[Node] = set()
        seen: set[Node] = set()
        stack = [(node, False) for node in self.roots]
        while stack:
            node, expanded = stack.pop()
            if expanded:
                if any(edge is not None and (edge[0] in wanted or edge[0] in needed) for edge in node.next_edges):
                    needed.add(node)
            elif node not in seen:
                seen.add(node)
                if node.topological > lowest:
                    stack.append((node, True))
                    stack.extend((edge[0], False) for edge in node.next_edges if edge is not None)
        self.needed = needed | wanted if accumulate else needed
        reached = self.needed | wanted
        self.dependencies = {node: waits for node, waits in self.dependencies.items() if node in reached}

    def will_run(self, node: Node) -> bool:
        """Whether this run computes the gradient that arrives at `node`."""
        if self.needed is not None:
            return node in self.needed or node in self.captures
        return node in self.dependencies or node in self.roots

    def predicted_order(self) -> list[Node]:
        """The nodes in the order in which this run takes them."""
        again = GraphTask(self.roots, True, False)
        again.count_dependencies(0)
        waits = again.dependencies
        tie = count()
        queue = [(-node.sequence, next(tie), node) for node in self.roots if node not in waits]
        queue.sort()
        order = []
        while queue:
            node = heappop(queue)[2]
            if self.needed is None or node in self.needed:
                order.append(node)
            for edge in node.next_edges:
                if edge is not None:
                    waits[edge[0]] -= 1
                    if not waits[edge[0]]:
                        heappush(queue, (-edge[0].sequence, next(tie), edge[0]))
        return order


def current_task() -> GraphTask:
    """The innermost backward on this thread.

    Raises: RuntimeError outside a backward pass.
    """
    if not state.tasks:
        raise RuntimeError("this can be called during a backward pass only")
    return state.tasks[-1]


def current_task_id() -> int:
    """The number of the backward that is running on this thread, -1 outside."""
    return state.tasks[-1].id if state.tasks else -1


def current_node() -> Node | None:
    """The node that this thread is running, for hooks and debugging."""
    return state.tasks[-1].node if state.tasks else None


def is_checkpoint_valid() -> bool:
    """Whether no backward that this thread is inside of is restricted to certain inputs (which re-entrant checkpoints
    cannot obey).
    """
    return all(task.needed is None for task in state.tasks)


def queue_callback(
    callback: Callable[[], None], outermost: bool = False, on_error: Callable[[], None] | None = None
) -> None:
    """Runs `callback` at the end of the backward that is running on this thread, or `on_error` when an exception ends
    it.

    outermost: of a backward inside a backward (re-entrant checkpoints), take the outer one's end.

    Raises: RuntimeError outside a backward pass.
    """
    if not state.tasks:
        raise RuntimeError("Final callbacks can only be installed during backward pass.")
    task = state.tasks[0 if outermost else -1]
    task.callbacks.append(callback)
    if on_error is not None:
        task.on_error.append(on_error)


def are_reached(nodes: Iterable[Node]) -> list[bool]:
    """For each node, whether the outermost backward that is running on this thread leads to it.

    Raises: RuntimeError outside a backward pass.
    """
    if not state.tasks:
        raise RuntimeError("which nodes backward leads to is known during a backward pass only")
    task = state.tasks[0]
    reached = task.dependencies if task.needed is None else task.needed
    return [node in reached for node in nodes]


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
    if depth and depth % _DEPTH_OF_ONE_THREAD == 0:
        return _on_fresh_thread(lambda: _run(roots, gradients, keep_graph, create_graph, inputs, accumulate))
    return _run(roots, gradients, keep_graph, create_graph, inputs, accumulate)


def _on_fresh_thread(function: Callable[[], Any]) -> Any:
    """Runs `function` on a thread with an empty Python stack and this thread's modes and tasks."""
    outcome: dict[str, Any] = {}
    modes = state.__dict__ | {"tasks": list(state.tasks)}

    def body() -> None:
        state.__dict__.update(modes)
        try:
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
        _drain(task, buffers)
        task.node = None
        for callback in task.callbacks:  # a callback may queue further ones
            callback()
    except BaseException as error:
        if isinstance(error, Exception):
            name_the_node(error, task.node)
        for callback in task.on_error:
            callback()
        raise
    finally:
        state.grad_enabled = before
        state.tasks.pop()
    if inputs is None or accumulate:
        return None
    return [task.captured.get(position) for position in range(len(inputs))]


def _drain(task: GraphTask, buffers: dict[Node, list[Any]]) -> None:
    """Runs the roots and everything that becomes ready. Roots that other roots lead to wait like any other node."""
    dependencies, not_ready, recorded, release = task.dependencies, task.not_ready, task.recorded, not task.keep_graph
    plain = task.needed is None and not state.anomaly  # else every node takes the long way through `_evaluate`
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
    buffer = None  # type: ignore[assignment]
    while True:
        # AccumulateGrad looks at reference counts: nothing here may hold a gradient while it runs.
        if leaves:
            for leaf, buffer in leaves:
                task.node = leaf
                if plain and leaf.extras is None:
                    leaf.apply(buffer, recorded)
                    if leaf.extras is not None:
                        _run_late_hooks(leaf, (), recorded)
                else:
                    _evaluate(task, leaf, buffer)
            leaves.clear()
        if not queue:
            break
        _, node, buffer = heappop(queue)
        task.node = node
        if plain and node.extras is None:
            results = node.apply(buffer, recorded)
            if node.extras is not None:
                results = _run_late_hooks(node, results, recorded)
            if release:
                node.release()
        else:
            evaluated = _evaluate(task, node, buffer)
            if evaluated is None:
                continue
            results, evaluated = evaluated, None
        position = -1
        for edge, gradient, spec in zip(node.next_edges, results, node.input_specs, strict=False):
            position += 1
            if edge is None:
                continue
            following, slot = edge
            remaining = dependencies.get(following)
            if remaining is None:
                continue  # not on the way to a requested input
            if gradient is not None and (
                recorded or gradient.shape != spec.shape or gradient.dtype is not spec.dtype.numpy
            ):
                gradient = fit(node, position, gradient, spec, recorded)
            buffer = not_ready.get(following)  # type: ignore[assignment]
            if buffer is None:
                buffer = [None] * len(following.output_specs)
                if remaining > 1:
                    not_ready[following] = buffer
            elif remaining == 1:
                del not_ready[following]
            if gradient is not None:
                if buffer[slot] is None:
                    buffer[slot] = gradient
                else:
                    add_into(buffer, slot, gradient, recorded)
            if remaining > 1:
                dependencies[following] = remaining - 1
            elif type(following) is AccumulateGrad:
                task.producer = node
                leaves.append((following, buffer))
            else:
                heappush(queue, (-following.sequence, following, buffer))
        results = gradient = buffer = None  # type: ignore[assignment]
    assert not not_ready, f"could not compute gradients for some functions: {[node.name() for node in not_ready]}"


def _evaluate(task: GraphTask, node: Node, buffer: list[Any]) -> Sequence[Any] | None:
    """Runs a node where somebody registered hooks, asked for certain inputs only, or switched anomaly mode on. None: it
    need not run.
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
    results = node.apply(buffer, recorded, edges)
    if node.extras is not None and node.extras.post_hooks:
        results = run_post_hooks(node.extras, node, results, kept, recorded)
    if not task.keep_graph:
        node.release()
    if state.anomaly and state.check_nan:
        check_nan(node, results)
    return results


def _run_late_hooks(node: Node, results: Sequence[Any], recorded: bool) -> Sequence[Any]:
    """Post-hooks that were registered while the node was running; what it was given is gone by now."""
    extras = node.extras
    return results if extras is None or not extras.post_hooks else run_post_hooks(extras, node, results, (), recorded)


def _capture(task: GraphTask, captures: list[tuple[int, int]], buffer: list[Any]) -> None:
    for slot, position in captures:
        task.captured[position] = buffer[slot]
