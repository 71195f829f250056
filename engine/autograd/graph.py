"""The recorded graph: `Node` (one backward step), its edges, and the saved tensors (values kept for it, with a version check).

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



class VersionCounter:
    """How often a piece of memory was written in place; shared by a tensor, its views and its detached aliases."""

    __slots__ = ("last_writer", "value")

    def __init__(self) -> None:
        self.value = 0
        self.last_writer = ""  # name of the operator that wrote last, for the error message


class SavedInput:
    """An input kept for backward: the tensor itself and the version it had. `array` and `tensor` check that the version is still the same."""

    __slots__ = ("_tensor", "_version")

    def __init__(self, tensor: "Tensor") -> None:
        self._tensor = tensor
        counter = tensor._counter
        self._version = 0 if counter is None else counter.value

    def array(self, node: "Node") -> Any:
        """The raw array."""
        tensor = self._tensor
        counter = tensor._counter
        if counter is not None and counter.value != self._version:
            raise modified_in_place(f"an input of {node.name()}", tensor._spec, counter, self._version)
        return tensor._array

    def tensor(self, node: "Node") -> "Tensor":
        """The tensor with its history."""
        self.array(node)
        return self._tensor


class SavedOutput:
    """An output kept for backward, as memory and metadata; it gets its history back from its node when it is unpacked.

    Keeping the tensor itself would close a reference cycle (out -> grad_fn -> saved out) that only the garbage collector could free.
    """

    __slots__ = ("_array", "_counter", "_output_nr", "_spec", "_version")

    def __init__(self, tensor: "Tensor", output_nr: int) -> None:
        self._array, self._spec, self._output_nr = tensor._array, tensor._spec, output_nr
        counter = tensor._counter
        if counter is None:
            counter = tensor._counter = VersionCounter()
        self._counter = counter
        self._version = counter.value

    def array(self, node: "Node") -> Any:
        """The raw array."""
        if self._counter.value != self._version:
            raise modified_in_place(f"output {self._output_nr} of {node.name()}", self._spec, self._counter, self._version)
        return self._array

    def tensor(self, node: "Node") -> "Tensor":
        """A tensor on the same memory whose history is `node`."""
        output = type_of_tensors()(self.array(node), self._spec)
        output._counter = self._counter
        output._set_gradient_edge((node, self._output_nr))
        return output


class SavedPacked:
    """A tensor handed to the pack function of `saved_tensors_hooks`; the unpack function gives it back."""

    __slots__ = ("_edge", "_output_nr", "_packed", "_unpack")

    def __init__(self, tensor: "Tensor", output_nr: int) -> None:
        pack, self._unpack = state.saved_tensor_hooks[-1]
        self._output_nr = output_nr
        before = tensor._version
        with no_grad():
            self._packed = pack(tensor.detach())
        if tensor._version != before:
            raise RuntimeError("saved_tensors_hooks: the pack hook modified its input in place; clone it there first")
        self._edge = tensor.gradient_edge() if tensor.requires_grad and output_nr < 0 else None

    def array(self, node: "Node") -> Any:
        """The raw array that the unpack function returned."""
        return self.tensor(node)._array

    def tensor(self, node: "Node") -> "Tensor":
        """The unpacked tensor with the history of the saved one."""
        value = self._unpack(self._packed)
        tensor_type = type_of_tensors()
        if not isinstance(value, tensor_type):
            raise TypeError(f"saved_tensors_hooks: the unpack hook must return a Tensor, got {type(value).__name__}")
        restored = tensor_type(value._array, value._spec)
        edge = self._edge if self._output_nr < 0 else (node, self._output_nr)
        if edge is not None:
            restored._set_gradient_edge(edge)
        return restored


SavedTensor = SavedInput | SavedOutput | SavedPacked


def save(tensor: "Tensor", output_nr: int = -1) -> SavedTensor:
    """Keeps a tensor for backward: an input, or output number `output_nr` of the node that keeps it."""
    if tensor._meta is not None and tensor._meta.inference:
        raise RuntimeError("inference tensors cannot be saved for backward; clone them outside inference_mode first")
    if state.saved_tensor_hooks:
        return SavedPacked(tensor, output_nr)
    return SavedInput(tensor) if output_nr < 0 else SavedOutput(tensor, output_nr)


def modified_in_place(what: str, spec: "Spec", counter: VersionCounter, expected: int) -> RuntimeError:
    """The error for a saved tensor that was written since."""
    return RuntimeError(
        "one of the variables needed for gradient computation has been modified by an inplace operation: "
        f"[{spec.dtype.name} {list(spec.shape)}], {what}, is at version {counter.value}; expected version {expected} instead. "
        f"The last in-place operation on it was {counter.last_writer or 'unknown'}. "
        "Write out of place there, or clone before; engine.autograd.set_detect_anomaly(True) shows the forward line."
    )


class Node:
    """One step of backward: takes the gradients of an operation's outputs, gives those of its inputs.

    Subclasses implement `apply(gradients, recorded)`, where gradients is one entry per output (None where undefined). With `recorded` false
    they are raw arrays and so are the results; with `recorded` true (create_graph) they are Tensors and the computation is itself recorded.

    Attributes: next_edges (one per input: an Edge, or None where no gradient is needed); input_specs (what each produced gradient must look
    like); output_specs (one per gradient slot); sequence (later nodes run earlier); topological (longest distance to a leaf).
    """

    __slots__ = ("__weakref__", "extras", "input_specs", "next_edges", "output_specs", "sequence", "topological")

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
        # None until somebody asks for hooks or anomaly mode is on: a plain node is told apart by one look.
        self.extras: NodeExtras | None = NodeExtras(forward_stack()) if state.anomaly else None

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
        return f"<{self.name()}>"


class NodeExtras:
    """What only some nodes have: hooks, and in anomaly mode the stack of the forward call."""

    __slots__ = ("forward_stack", "post_hooks", "pre_hooks", "tensor_hooks")

    def __init__(self, forward_stack: list[str] | None = None) -> None:
        self.tensor_hooks: dict[int, TensorHooks] = {}
        self.pre_hooks: OrderedDict[int, Callable[..., Any]] = OrderedDict()
        self.post_hooks: OrderedDict[int, Callable[..., Any]] = OrderedDict()
        self.forward_stack = forward_stack


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


# --- for packages that reduce gradients (ddp) ---------------------------------------------------------------------------------------------------


def register_gradient_listener(variable: "Tensor", listener: Callable[[], None]) -> RemovableHandle:
    """`listener()` runs whenever backward has reached a leaf: after accumulation and the user's post-accumulate hooks, also without a gradient.

    Raises: RuntimeError unless `variable` is a leaf that requires grad.
    """
    meta = _meta_of_leaf(variable)
    if meta.listeners is None:
        meta.listeners = OrderedDict()
    return RemovableHandle(meta.listeners, listener)


def set_gradient_destination(variable: "Tensor", destination: "Tensor | None") -> None:
    """The next first gradient of a leaf is written into `destination`, which becomes its `.grad` (None: as usual again).

    Raises: RuntimeError unless `variable` is a leaf that requires grad and `destination` has its shape and dtype.
    """
    meta = _meta_of_leaf(variable)
    if destination is not None and (destination.shape != variable.shape or destination.dtype is not variable.dtype):
        raise RuntimeError(f"set_gradient_destination: expected {list(variable.shape)} {variable.dtype}, got {list(destination.shape)} {destination.dtype}")
    meta.destination = destination


def _meta_of_leaf(variable: "Tensor") -> Any:
    if not variable.requires_grad or not variable.is_leaf:
        raise RuntimeError("expected a leaf that requires grad, got a tensor that is none")
    return variable._autograd_meta()


def increment_version(tensor: "Tensor") -> None:
    """Counts an in-place write that the engine did not see."""
    tensor._bump_version("increment_version")


def queue_callback(callback: Callable[[], None]) -> None:
    """Runs `callback` at the end of the backward that is running on this thread.

    Raises: RuntimeError outside a backward pass.
    """
    from engine.autograd import executor

    executor.queue_callback(callback)
