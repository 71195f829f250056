"""GraphTask: the state of one backward run, and what is known of the runs a thread is inside of.

Counting dependencies and finding the nodes that requested inputs need do not recurse: chains may be 100,000 nodes long.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

from engine.autograd.modes import state
from engine.autograd.node import Edge, Node
from engine.calls.listening import heard

if TYPE_CHECKING:
    from engine.autograd.places import Place

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
        "place",
        "plain",
        "producer",
        "recorded",
        "roots",
        "scratch",
    )

    def __init__(self, roots: Iterable[Node], keep_graph: bool, recorded: bool) -> None:
        self.id = next(_ids)
        self.roots = dict.fromkeys(roots)  # a set in order
        self.keep_graph = keep_graph
        self.recorded = recorded
        self.dependencies: dict[Node, int] = {}
        self.not_ready: dict[Node, list[Any]] = {}
        self.needed: set[Node] | None = None  # the nodes to run where certain inputs were asked for; None: all
        # node -> (gradient slot, position among the requested inputs)
        self.captures: dict[Node, list[tuple[int, int]]] = {}
        self.captured: dict[int, Any] = {}
        self.callbacks: list[Callable[[], None]] = []
        self.on_error: list[Callable[[], None]] = []
        # The one stream that all nodes on a GPU run on, where the caller's thread runs them.
        self.place: Place | None = None
        self.plain = False  # whether nodes run without anybody listening or asking for some of them only
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


def current_task() -> GraphTask:
    """The innermost backward on this thread.

    Raises: RuntimeError outside a backward pass.
    """
    if not state.tasks:
        raise RuntimeError("this can be called during a backward pass only")
    return state.tasks[-1]


def current_task_id(outermost: bool = False) -> int:
    """The number of the backward that is running on this thread, -1 outside; where they nest, of the innermost."""
    return state.tasks[0 if outermost else -1].id if state.tasks else -1


def current_node() -> Node | None:
    """The node that this thread is running, for hooks and debugging."""
    return state.tasks[-1].node if state.tasks else None


def is_checkpoint_valid() -> bool:
    """Whether no backward that this thread is inside of is restricted to certain inputs (which re-entrant checkpoints
    cannot obey).
    """
    return all(task.needed is None for task in state.tasks)


@heard
def queue_callback(
    callback: Callable[[], None], outermost: bool = False, on_error: Callable[[], None] | None = None
) -> None:
    """Runs `callback` at the end of the backward that is running on this thread, or `on_error` when an exception ends
    it.

    outermost: of a backward inside a backward (re-entrant checkpoints), take the outer one's end.

    Raises: RuntimeError outside a backward pass.
    """
    tasks = state.tasks
    if not tasks:
        raise RuntimeError("Final callbacks can only be installed during backward pass.")
    task = tasks[0 if outermost else -1]
    task.callbacks.append(callback)
    if on_error is not None:
        task.on_error.append(on_error)


def reached_nodes(nodes: Iterable[Node]) -> list[bool]:
    """For each node, whether the outermost backward that is running on this thread leads to it.

    Raises: RuntimeError outside a backward pass.
    """
    if not state.tasks:
        raise RuntimeError("which nodes backward leads to is known during a backward pass only")
    task = state.tasks[0]
    reached = task.dependencies if task.needed is None else task.needed
    return [node in reached for node in nodes]
