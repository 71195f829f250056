"""Saved tensors: values kept for backward, with a check that nobody wrote into them since.

Three kinds: an input is kept whole, an output as memory without its history, and under `saved_tensors_hooks` whatever
the pack function made of it. All answer to `array(node)` and `tensor(node)`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from engine.autograd.modes import no_grad, state
from engine.autograd.node import Edge, Node
from engine.autograd.versions import VersionCounter

if TYPE_CHECKING:
    from engine.rules.spec import Spec
    from engine.tensor import Tensor

Pack = Callable[["Tensor"], Any]
Unpack = Callable[[Any], "Tensor"]

tensor_type: "type[Tensor]" = None  # type: ignore[assignment]
"""The class of what is unpacked; `engine.tensor`, which needs this module, enters it."""


class SavedInput:
    """An input: the tensor itself and the version it had. `array` and `tensor` check that the version is still the
    same.
    """

    __slots__ = ("_tensor", "_version")

    def __init__(self, tensor: "Tensor") -> None:
        self._tensor = tensor
        counter = tensor._counter
        self._version = 0 if counter is None else counter.value

    def array(self, node: Node) -> Any:
        """The raw array."""
        tensor = self._tensor
        counter = tensor._counter
        if counter is not None and counter.value != self._version:
            made_by = (
                "" if tensor._grad_fn is None else f", which is output {tensor._output_nr} of {tensor._grad_fn.name()}"
            )
            raise modified_in_place(
                f"saved as an input of {node.name()}{made_by}", tensor._spec, counter, self._version
            )
        return tensor._array

    def tensor(self, node: Node) -> "Tensor":
        """The tensor with its history."""
        self.array(node)
        return self._tensor

    def packed(self, pack: Pack, unpack: Unpack) -> "SavedPacked":
        """The same value in the care of a pair of hooks."""
        return SavedPacked(self._tensor, -1, pack, unpack)


class SavedOutput:
    """An output, as memory and metadata; it gets its history back from its node when it is unpacked.

    Keeping the tensor itself would close a reference cycle (out -> grad_fn -> saved out) that only the garbage
    collector could free.
    """

    __slots__ = ("_array", "_counter", "_output_nr", "_spec", "_version")

    def __init__(self, tensor: "Tensor", output_nr: int) -> None:
        self._array, self._spec, self._output_nr = tensor._array, tensor._spec, output_nr
        counter = tensor._counter
        if counter is None:
            counter = tensor._counter = VersionCounter()
        self._counter = counter
        self._version = counter.value

    def array(self, node: Node) -> Any:
        """The raw array."""
        if self._counter.value != self._version:
            what = f"which is output {self._output_nr} of {node.name()}"
            raise modified_in_place(what, self._spec, self._counter, self._version)
        return self._array

    def tensor(self, node: Node) -> "Tensor":
        """A tensor on the same memory whose history is `node`."""
        output = self._detached(node)
        if self._spec.dtype.category >= 2:  # indices and masks have none
            output._set_gradient_edge((node, self._output_nr))
        return output

    def _detached(self, node: Node | None) -> "Tensor":
        output = tensor_type(self._array if node is None else self.array(node), self._spec)
        output._counter = self._counter
        return output

    def packed(self, pack: Pack, unpack: Unpack) -> "SavedPacked":
        """The same value in the care of a pair of hooks."""
        return SavedPacked(self._detached(None), self._output_nr, pack, unpack)


class SavedPacked:
    """A tensor handed to the pack function of `saved_tensors_hooks`; the unpack function gives it back."""

    __slots__ = ("_edge", "_output_nr", "_packed", "_unpack")

    def __init__(self, tensor: "Tensor", output_nr: int, pack: Pack, unpack: Unpack) -> None:
        self._unpack = unpack
        self._output_nr = output_nr if tensor._spec.dtype.category >= 2 else -1
        before = tensor._version
        with no_grad():
            self._packed = pack(tensor.detach())
        if tensor._version != before:
            raise RuntimeError(
                "A saved tensor pack hook is modifying its input in place. Tensors provided as input to pack hook can "
                "not be modified by in-place operations as this can lead to unexpected side-effects. Please clone it "
                "there first."
            )
        self._edge: Edge | None = tensor.gradient_edge() if tensor.requires_grad and output_nr < 0 else None

    def array(self, node: Node) -> Any:
        """The raw array that the unpack function returned."""
        return self.tensor(node)._array

    def tensor(self, node: Node) -> "Tensor":
        """The unpacked tensor with the history of the saved one."""
        hooks = state.saved_tensor_hooks
        try:
            value = self._unpack(self._packed)
        finally:
            state.saved_tensor_hooks = hooks  # what the function entered or left is no matter of this thread's
        if not isinstance(value, tensor_type):
            raise TypeError(
                "Output of saved tensor unpack_hook expected to be a Tensor but got result of type "
                f"{type(value).__name__} in {node.name()}"
            )
        restored = tensor_type(value._array, value._spec)
        edge = self._edge if self._output_nr < 0 else (node, self._output_nr)
        if edge is not None:
            restored._set_gradient_edge(edge)
        return restored

    def packed(self, pack: Pack, unpack: Unpack) -> "SavedPacked":
        """Refused: one pair of hooks a saved tensor.

        Raises: RuntimeError, always.
        """
        raise RuntimeError(
            "Calling register_hooks on a saved tensor whose hooks have already been set. "
            "Hint: only one pair of hooks is allowed at a time."
        )


SavedTensor = SavedInput | SavedOutput | SavedPacked


def save(tensor: "Tensor", output_nr: int = -1) -> SavedTensor:
    """Keeps a tensor for backward: an input, or output number `output_nr` of the node that keeps it.

    Raises: RuntimeError for an inference tensor.
    """
    if tensor._meta is not None and tensor._meta.inference:
        raise RuntimeError(
            "Inference tensors cannot be saved for backward. Please do not use Tensors created in inference mode in "
            "computation tracked by "
            "autograd. To work around this, clone it outside inference_mode, or use engine.no_grad() instead of "
            "engine.inference_mode()."
        )
    if state.saved_tensor_hooks:
        return SavedPacked(tensor, output_nr, *state.saved_tensor_hooks[-1])
    return SavedInput(tensor) if output_nr < 0 else SavedOutput(tensor, output_nr)


def modified_in_place(what: str, spec: "Spec", counter: VersionCounter, expected: int) -> RuntimeError:
    """The error for a saved tensor that was written since."""
    return RuntimeError(
        "one of the variables needed for gradient computation has been modified by an inplace operation: "
        f"[{spec.dtype} {list(spec.shape)}], {what}, is at version {counter.value}; expected version {expected} "
        f"instead. "
        f"The last in-place operation on it was {counter.last_writer or 'unknown'}. "
        "Write out of place there, or clone before. Hint: enable anomaly detection to find the operation that failed "
        "to compute its gradient, "
        "with engine.autograd.set_detect_anomaly(True)."
    )


FREED = (
    "Trying to backward through the graph a second time (or directly access saved tensors after they have already been "
    "freed). "
    "Saved intermediate values of the graph are freed when you call .backward() or autograd.grad(). "
    "Specify retain_graph=True if you need to backward through the graph a second time or if you need to access saved "
    "tensors after calling backward."
)


class RawSavedTensor:
    """What `grad_fn._raw_saved_<name>` gives: a handle on one saved tensor of a node, for putting hooks on it."""

    __slots__ = ("_node", "_place")

    def __init__(self, node: Any, place: tuple[str, int]) -> None:
        self._node = node
        self._place = place

    def register_hooks(self, pack: Pack, unpack: Unpack) -> None:
        """Hands the saved tensor to `pack` now; `unpack` of what that returned gives it back in backward.

        Raises: TypeError unless both can be called; RuntimeError when it has hooks already or was freed.
        """
        if not callable(pack) or not callable(unpack):
            raise TypeError(
                "register_hooks(): incompatible function arguments: expected two functions, got "
                f"{type(pack).__name__} and {type(unpack).__name__}"
            )
        where, index = self._place
        entries = getattr(self._node, where)
        if entries is None:
            raise RuntimeError(FREED)
        entry = entries[index].packed(pack, unpack)
        setattr(self._node, where, type(entries)((*entries[:index], entry, *entries[index + 1 :])))


def saved_attribute(node: Any, inputs: tuple[str, ...], before_list: int | None, name: str) -> Any:
    """`node.<name>` for `_saved_<input>` and `_saved_result` (the Tensor), and the same with `_raw_saved_` (a
    RawSavedTensor). The last input may be a list, after `before_list` others: then it is a tuple of them. With
    `_sym_sizes` or `_sym_strides` behind it the shape or the strides of an input, which are always known.

    Raises: AttributeError for any other name; RuntimeError when the saved tensors were freed.
    """
    raw = name.startswith("_raw_saved_")
    wanted = name.removeprefix("_raw_saved_" if raw else "_saved_")
    places = {each: ("saved", position) for position, each in enumerate(inputs)}
    places |= {"self": ("saved", 0), "result": ("saved_outputs", 0)}
    for suffix, of in (("_sym_sizes", "shape"), ("_sym_strides", "stride")):
        where, index = places.get(wanted.removesuffix(suffix), ("", 0))
        if wanted.endswith(suffix) and where == "saved" and index < len(node.input_specs):
            return tuple(getattr(node.input_specs[index], of))
    if wanted == name or wanted not in places:
        raise AttributeError(f"{node.name()} has no attribute {name!r}")
    where, index = places[wanted]
    if node.saved is None:
        raise RuntimeError(FREED)
    entries = getattr(node, where) or ()
    if where == "saved" and index == before_list and any(isinstance(each, SavedTensor) for each in entries[index:]):
        return tuple(
            RawSavedTensor(node, (where, place)) if raw else entries[place].tensor(node)
            for place in range(index, len(entries))
        )
    entry = entries[index] if index < len(entries) else None
    if not isinstance(entry, SavedTensor):
        raise AttributeError(f"{node.name()} did not save {wanted!r}")
    return RawSavedTensor(node, (where, index)) if raw else entry.tensor(node)


def refuse_detached(node: Node, values: list[Any]) -> None:
    """Raises RuntimeError where a saved input lost its history to `detach_()` since, so that a recorded backward would
    lose its gradient.
    """
    for edge, value in zip(node.next_edges, values, strict=False):
        if edge is not None and edge[0].topological and value is not None and not value.requires_grad:
            raise RuntimeError(
                f"{node.name()}: Trying to use a saved tensor that has been detached in-place, i.e. with .detach_(). "
                "This is not supported, please use out-of-place `.detach()` instead"
            )
