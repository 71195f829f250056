"""`Node`: one step of backward, with its edges and its hooks.

A Node is made by `engine.calls.dispatch` for operators, by `engine.autograd.function` for user Functions and by
`engine.autograd.accumulate` for leaves. `engine.autograd.executor` walks them. What users see of all this is
`engine.autograd.graph`.
"""

import traceback
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

from engine.autograd.modes import state
from engine.errors.callers import INTERNAL

if TYPE_CHECKING:
    from engine.autograd.places import Place
    from engine.rules.spec import Spec

Edge = tuple["Node", int]  # (node that receives the gradient, which of its gradient slots)

next_sequence = count().__next__  # numbers nodes in the order in which they are recorded


class Node:
    """One step of backward: takes the gradients of an operation's outputs, gives those of its inputs.

    Subclasses implement `apply(gradients, recorded)`, where gradients is one entry per output (None where undefined).
    With `recorded` false they are raw arrays and so are the results; with `recorded` true (create_graph) they are
    Tensors and the computation is itself recorded.

    Attributes: next_edges (one per input: an Edge, or None where no gradient is needed); input_specs (what each
    produced gradient must look like); output_specs (one per gradient slot); sequence (later nodes run earlier);
    topological (longest distance to a leaf).
    """

    __slots__ = ("__weakref__", "extras", "input_specs", "next_edges", "output_specs", "sequence", "topological")
    topological: int
    place: "Place | None" = None  # the GPU and stream of the forward call; a slot of the nodes that have one

    def __init__(
        self, next_edges: Sequence[Edge | None], input_specs: "Sequence[Spec]", output_specs: "Sequence[Spec]"
    ) -> None:
        self.next_edges = next_edges
        self.input_specs = input_specs
        self.output_specs = output_specs
        self.sequence = next_sequence()
        height = 0
        for edge in next_edges:
            if edge is not None and edge[0].topological >= height:
                height = edge[0].topological + 1
        self.topological = height
        # None until somebody asks for hooks or anomaly mode is on: a plain node is told apart by one look.
        self.extras: NodeExtras | None = NodeExtras(ForwardCall()) if state.anomaly else None

    def name(self) -> str:
        """The name that error messages use, PyTorch style ("MulBackward0")."""
        return type(self).__name__

    def apply(self, gradients: list[Any], recorded: bool, edges: Sequence[Edge | None] | None = None) -> Sequence[Any]:
        """Gradients of the inputs, one per edge (None where undefined); `edges` without those that need not be computed
        this time.
        """
        raise TypeError(f"{type(self).__name__} does not implement apply")

    def release(self) -> None:
        """Frees what was saved for this node; running it again then raises."""

    @property
    def next_functions(self) -> tuple[tuple["Node | None", int], ...]:
        """The edges as PyTorch shows them."""
        return tuple((None, 0) if edge is None else edge for edge in self.next_edges)

    @property
    def metadata(self) -> dict[str, Any]:
        """A dictionary for the user's own notes on this node."""
        extras = self.with_extras()
        if extras.metadata is None:
            extras.metadata = {}
        return extras.metadata

    def _sequence_nr(self) -> int:
        return self.sequence

    def with_extras(self) -> "NodeExtras":
        """The node's hooks, made on demand."""
        if self.extras is None:
            self.extras = NodeExtras()
        return self.extras

    def register_prehook(self, hook: Callable[..., Any]) -> "RemovableHandle":
        """`hook(grad_outputs) -> None or new grad_outputs`, before the node runs."""
        return RemovableHandle(self.with_extras().pre_hooks, hook)

    def register_hook(self, hook: Callable[..., Any]) -> "RemovableHandle":
        """`hook(grad_inputs, grad_outputs) -> None or new grad_inputs`, after the node ran."""
        return RemovableHandle(self.with_extras().post_hooks, hook)

    def hooks_of(self, output_nr: int) -> "TensorHooks":
        """The tensor hooks of one gradient slot, made on demand."""
        return self.with_extras().tensor_hooks.setdefault(output_nr, TensorHooks())

    def __repr__(self) -> str:
        return f"<{self.name()} object at {id(self):#x}>"


class NodeExtras:
    """What only some nodes have: hooks, the user's metadata, and in anomaly mode the forward call."""

    __slots__ = ("forward_call", "metadata", "post_hooks", "pre_hooks", "tensor_hooks")

    def __init__(self, forward_call: "ForwardCall | None" = None) -> None:
        self.tensor_hooks: dict[int, TensorHooks] = {}
        self.pre_hooks: OrderedDict[int, Callable[..., Any]] = OrderedDict()
        self.post_hooks: OrderedDict[int, Callable[..., Any]] = OrderedDict()
        self.metadata: dict[str, Any] | None = None
        self.forward_call = forward_call


class ForwardCall:
    """Where a node comes from (anomaly mode): the Python stack of the operation, and the node that backward was running
    at the time, if any.
    """

    __slots__ = ("parent", "stack")

    def __init__(self) -> None:
        internal = tuple(INTERNAL)
        frames = [frame for frame in traceback.extract_stack() if not frame.filename.startswith(internal)]
        self.stack = "".join(traceback.format_list(frames))
        self.parent: Node | None = state.tasks[-1].node if state.tasks else None

    def report(self) -> str:
        """The stack, and those of the nodes that led to it (double backward)."""
        text = "Traceback of forward call that caused the error:\n" + self.stack
        parent = self.parent
        while parent is not None:
            call = None if parent.extras is None else parent.extras.forward_call
            text += f"\nPrevious calculation was induced by {parent.name()}. "
            if call is None:
                return text + "No forward pass information available: it ran outside anomaly mode.\n"
            text += "Traceback of forward call that induced the previous calculation:\n" + call.stack
            parent = call.parent
        return text


class TensorHooks:
    """Hooks on one tensor: run in order of registration; retain_grad always last."""

    __slots__ = ("hooks", "retain")

    def __init__(self) -> None:
        self.hooks: OrderedDict[int, Callable[..., Any]] = OrderedDict()
        self.retain: Callable[[Any], None] | None = None


class RemovableHandle:
    """What registering a hook returns: `remove()` takes the hook away; usable as a context manager.

    It refers to the hooks weakly, so that a handle somebody keeps does not keep the closures of a dead tensor alive.
    """

    _ids = count()

    def __init__(
        self, hooks: "OrderedDict[int, Callable[..., Any]]", hook: Callable[..., Any], prepend: bool = False
    ) -> None:
        self.id = next(RemovableHandle._ids)
        self._hooks = weakref.ref(hooks)
        hooks[self.id] = hook
        if prepend:
            hooks.move_to_end(self.id, last=False)

    def remove(self) -> None:
        """Takes the hook away; calling it again does nothing."""
        hooks = self._hooks()
        if hooks is not None:
            hooks.pop(self.id, None)

    def __enter__(self) -> "RemovableHandle":
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()
