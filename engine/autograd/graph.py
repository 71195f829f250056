"""The recorded graph: `Node` (one backward step), its edges, and `SavedTensor` (a value kept for it, with a version check).

A Node is made by `engine.dispatch.record` for operators, by `engine.autograd.function` for user Functions and by
`engine.autograd.accumulate` for leaves. `engine.autograd.executor` walks it.
"""

import traceback
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

from engine.autograd.modes import no_grad, state

if TYPE_CHECKING:
    from engine.spec import Spec
    from engine.tensor import Tensor

Edge = tuple["Node", int]  # (node that receives the gradient, which of its gradient slots)

_sequence = count()
_LAST = 2**64 - 1  # AccumulateGrad runs before every other ready node


class VersionCounter:
    """How often a piece of memory was written in place; shared by a tensor, its views and its detached aliases."""

    __slots__ = ("last_writer", "value")

    def __init__(self) -> None:
        self.value = 0
        self.last_writer = ""  # name of the operator that wrote last, for the error message


class SavedTensor:
    """A tensor kept for backward.

    An input is kept whole. An output is kept as memory plus metadata, and gets its history back from its node when it is unpacked: keeping the
    output itself would close a reference cycle (out -> grad_fn -> saved out) that only the garbage collector could free.
    """

    __slots__ = ("_array", "_counter", "_hooks", "_output_nr", "_spec", "_tensor", "_version")

    def __init__(self, tensor: "Tensor", output_nr: int = -1) -> None:
        self._output_nr = output_nr
        self._hooks = None
        if state.saved_tensor_hooks:
            self._pack(tensor)
            return
        if output_nr < 0:
            self._tensor: Any = tensor
            self._counter = counter = tensor._counter
        else:
            self._tensor = None
            self._array, self._spec = tensor._array, tensor._spec
            if (counter := tensor._counter) is None:
                counter = tensor._counter = VersionCounter()
            self._counter = counter
        self._version = 0 if counter is None else counter.value

    def _pack(self, tensor: "Tensor") -> None:
        pack, self._hooks = state.saved_tensor_hooks[-1]
        before = tensor._version
        with no_grad():
            self._array = pack(tensor.detach())
        if tensor._version != before:
            raise RuntimeError("saved_tensors_hooks: the pack hook modified its input in place; clone it there first")
        edge = tensor.gradient_edge() if tensor.requires_grad and self._output_nr < 0 else None
        self._tensor, self._counter, self._version, self._spec = edge, None, 0, tensor._spec

    def _unpack_hooked(self, node: "Node") -> "Tensor":
        assert self._hooks is not None
        value = self._hooks(self._array)
        tensor_type = type_of_tensors()
        if not isinstance(value, tensor_type):
            raise TypeError(f"saved_tensors_hooks: the unpack hook must return a Tensor, got {type(value).__name__}")
        restored = tensor_type(value._array, value._spec)
        edge = self._tensor if self._output_nr < 0 else (node, self._output_nr)
        if edge is not None:
            restored._set_gradient_edge(edge)
        return restored

    def _check(self, node: "Node") -> None:
        counter = self._counter if self._tensor is None else self._tensor._counter
        if counter is not None and counter.value != self._version:
            spec = self._spec if self._tensor is None else self._tensor._spec
            kept = f"output {self._output_nr} of {node.name()}" if self._output_nr >= 0 else f"an input of {node.name()}"
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"[{spec.dtype.name} {list(spec.shape)}], {kept}, is at version {counter.value}; expected version {self._version} instead. "
                f"The last in-place operation on it was {counter.last_writer or 'unknown'}. "
                "Write out of place there, or clone before; engine.autograd.set_detect_anomaly(True) shows the forward line."
            )

    def array(self, node: "Node") -> Any:
        """The raw array, after the version check."""
        if self._hooks is not None:
            return self._unpack_hooked(node)._array
        tensor = self._tensor
        if tensor is None:
            if self._counter.value != self._version:  # type: ignore[union-attr]
                self._check(node)
            return self._array
        counter = tensor._counter
        if counter is not None and counter.value != self._version:
            self._check(node)
        return tensor._array

    def tensor(self, node: "Node") -> "Tensor":
        """The tensor with its history, after the version check."""
        if self._hooks is not None:
            return self._unpack_hooked(node)
        self._check(node)
        if self._tensor is not None:
            return self._tensor
        output = type_of_tensors()(self._array, self._spec)
        output._counter = self._counter
        output._requires_grad, output._grad_fn, output._output_nr = True, node, self._output_nr
        return output


class Node:
    """One step of backward: takes the gradients of an operation's outputs, gives those of its inputs.

    Subclasses implement `apply(gradients, recorded)`, where gradients is one entry per output (None where undefined). With `recorded` false
    they are raw arrays and so are the results; with `recorded` true (create_graph) they are Tensors and the computation is itself recorded.

    Attributes: next_edges (one per input: an Edge, or None where no gradient is needed); input_specs (what each produced gradient must look
    like); output_specs (one per gradient slot); sequence (later nodes run earlier); topological (longest distance to a leaf).
    """

    __slots__ = (
        "__weakref__",
        "forward_stack",
        "input_specs",
        "next_edges",
        "output_specs",
        "post_hooks",
        "pre_hooks",
        "sequence",
        "tensor_hooks",
        "topological",
    )

    def __init__(self, next_edges: Sequence[Edge | None], input_specs: "Sequence[Spec]", output_specs: "Sequence[Spec]") -> None:
        self.next_edges = next_edges
        self.input_specs = input_specs
        self.output_specs = output_specs
        self.sequence = next(_sequence)
        height = 0
        for edge in next_edges:
            if edge is not None and edge[0].topological >= height:
                height = edge[0].topological + 1
        self.topological = height
        # None until somebody asks for hooks, so that a node without costs nothing.
        self.tensor_hooks: dict[int, TensorHooks] | None = None
        self.pre_hooks: OrderedDict[int, Callable[..., Any]] | None = None
        self.post_hooks: OrderedDict[int, Callable[..., Any]] | None = None
        self.forward_stack: list[str] | None = forward_stack() if state.anomaly else None

    def name(self) -> str:
        """The name that error messages use, PyTorch style ("MulBackward0")."""
        return type(self).__name__

    def apply(self, gradients: list[Any], recorded: bool) -> Sequence[Any]:
        """Gradients of the inputs, one per edge (None where undefined)."""
        raise TypeError(f"{type(self).__name__} does not implement apply")

    def release(self) -> None:
        """Frees what was saved for this node; running it again then raises."""

    @property
    def next_functions(self) -> tuple[tuple["Node | None", int], ...]:
        """The edges as PyTorch shows them."""
        return tuple((None, 0) if edge is None else edge for edge in self.next_edges)

    def register_prehook(self, hook: Callable[..., Any]) -> "RemovableHandle":
        """`hook(grad_outputs) -> None or new grad_outputs`, before the node runs."""
        if self.pre_hooks is None:
            self.pre_hooks = OrderedDict()
        return RemovableHandle(self.pre_hooks, hook)

    def register_hook(self, hook: Callable[..., Any]) -> "RemovableHandle":
        """`hook(grad_inputs, grad_outputs) -> None or new grad_inputs`, after the node ran."""
        if self.post_hooks is None:
            self.post_hooks = OrderedDict()
        return RemovableHandle(self.post_hooks, hook)

    def hooks_of(self, output_nr: int) -> "TensorHooks":
        """The tensor hooks of one gradient slot, made on demand."""
        if self.tensor_hooks is None:
            self.tensor_hooks = {}
        return self.tensor_hooks.setdefault(output_nr, TensorHooks())

    def __repr__(self) -> str:
        return f"<{self.name()}>"


class AccumulateGradBase(Node):
    """Marks the sink node of a leaf (see `engine.autograd.accumulate`)."""

    __slots__ = ("variable",)
    variable: "Tensor"


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

    def __init__(self, hooks: "OrderedDict[int, Callable[..., Any]]", hook: Callable[..., Any], prepend: bool = False) -> None:
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


def forward_stack() -> list[str]:
    """The Python stack of the operation being recorded, without the engine's own frames (anomaly mode)."""
    return traceback.format_list([frame for frame in traceback.extract_stack() if "/engine/" not in frame.filename.replace("\\", "/")])


def type_of_tensors() -> "type[Tensor]":
    """The Tensor class; imported late because `engine.tensor` imports this module."""
    from engine.tensor import Tensor

    return Tensor
