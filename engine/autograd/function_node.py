"""The two halves of a call of a user's Function: the context forward and backward share, and the node in the graph."""

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from engine.autograd.gradients import as_tensor
from engine.autograd.hooks import raw
from engine.autograd.modes import set_grad_enabled
from engine.autograd.node import Edge, Node
from engine.autograd.places import current_place
from engine.autograd.saved import FREED
from engine.memory import backend
from engine.tensor import Tensor
from engine.tensor.sparse import SparseTensor

if TYPE_CHECKING:
    from engine.autograd.function import Function


class FunctionCtx:
    """The `ctx` of forward and backward: what forward wants to keep, and how its outputs are to be treated.

    Anything else may be kept on it as an attribute. `needs_input_grad` has one entry an argument of forward.
    """

    def __init__(self) -> None:
        self.needs_input_grad: tuple[bool, ...] = ()
        self.materialize_grads = True
        self._materialize_non_diff_grads = True
        self._to_save: tuple[Tensor | None, ...] = ()
        self._dirty: tuple[Tensor, ...] = ()
        self._non_differentiable: tuple[Tensor, ...] = ()
        self._saved: tuple[Any, ...] | None = None  # saved tensors, sparse ones among them, and None
        self._node: weakref.ref[FunctionNode] | None = None  # weak: the node owns its context

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keeps tensors for backward, with a version check.

        Raises: TypeError for anything else.
        """
        for position, tensor in enumerate(tensors):
            if tensor is not None and not isinstance(tensor, Tensor | SparseTensor):
                raise TypeError(
                    f"save_for_backward can only save variables, but argument {position} is of type "
                    f"{type(tensor).__name__}; keep other values as attributes of ctx"
                )
        self._to_save = tensors

    save_for_forward = save_for_backward

    def mark_dirty(self, *tensors: Tensor) -> None:
        """Declares inputs that forward wrote in place; it must return them."""
        self._dirty = tensors

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """Declares outputs that carry no gradient."""
        self._non_differentiable = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """With False, backward receives None instead of zeros for outputs without gradient."""
        self.materialize_grads = value

    @property
    def saved_tensors(self) -> tuple[Tensor | None, ...]:
        """What save_for_backward kept.

        Raises: RuntimeError when it was freed by an earlier backward or modified in place since.
        """
        node = None if self._node is None else self._node()
        if node is None or node.released:
            raise RuntimeError(FREED)
        return tuple(None if saved is None else saved.tensor(node) for saved in self._saved or ())


class FunctionNode(Node):
    """The backward step of a Function. Attributes of its context can be read here, too."""

    __slots__ = ("context", "function", "non_differentiable", "place", "places", "released")

    def __init__(
        self, function: "type[Function]", context: FunctionCtx, args: Sequence[Any], outputs: Sequence[Any]
    ) -> None:
        self.places = [place for place, value in enumerate(args) if isinstance(value, Tensor)]
        tensors = [args[place] for place in self.places]
        edges = [tensor.gradient_edge() if tensor.requires_grad else None for tensor in tensors]
        out_specs = [value._spec if isinstance(value, Tensor) else None for value in outputs]
        super().__init__(edges, [tensor._spec for tensor in tensors], out_specs)  # type: ignore[arg-type]
        self.function = function
        self.context = context
        self.non_differentiable: frozenset[int] = frozenset()
        self.released = False
        self.place = None
        for spec in out_specs:
            if spec is not None and spec.device.index is not None:  # the first output on a GPU says where it ran
                self.place = current_place(spec.device.index)
                break
        context._node = weakref.ref(self)

    def name(self) -> str:
        return f"{self.function.__name__}Backward"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.context, name)

    def release(self) -> None:
        if self.context._saved:
            self.context._saved = None
            self.released = True

    def apply(self, gradients: list[Any], recorded: bool, edges: Sequence[Edge | None] | None = None) -> Sequence[Any]:
        given = self._given(gradients)
        with set_grad_enabled(recorded):
            results = self.function._derivative()(self.context, *given)
        if self.place is not None:
            self.place.raw.use()  # the user's code may have left another stream current
        del given
        results = results if isinstance(results, tuple) else (results,)
        expected = len(self.context.needs_input_grad)
        if len(results) < expected or any(extra is not None for extra in results[expected:]):
            raise RuntimeError(
                f"function {self.name()} returned an incorrect number of gradients (expected {expected}, got "
                f"{len(results)})"
            )
        self._check_non_tensors(results[:expected])
        wanted = [
            None if edge is None else self._checked(place, results[place], spec.device)
            for edge, place, spec in zip(self.next_edges, self.places, self.input_specs, strict=True)
        ]
        return wanted if recorded else [None if tensor is None else raw(tensor) for tensor in wanted]

    def _given(self, gradients: list[Any]) -> list[Tensor | None]:
        """What backward receives. The buffer gives its gradients up, so that backward can be the only one that holds
        them.
        """
        context = self.context
        given: list[Tensor | None] = []
        for position, spec in enumerate(self.output_specs):
            value = gradients[position]
            gradients[position] = None
            if value is not None:
                given.append(as_tensor(value, spec))
            elif (
                spec is None
                or not context.materialize_grads
                or (position in self.non_differentiable and not context._materialize_non_diff_grads)
            ):
                given.append(None)
            else:
                zeros = backend.empty(spec)
                zeros[...] = 0
                given.append(Tensor(zeros, spec))
        return given

    def _check_non_tensors(self, results: tuple[Any, ...]) -> None:
        if len(self.places) == len(results):
            return
        for place, value in enumerate(results):
            if value is not None and place not in self.places:
                raise RuntimeError(
                    f"function {self.name()} returned a gradient different from None at position {place + 1}, but the "
                    "corresponding forward input was not a Variable"
                )

    def _checked(self, place: int, value: Any, where: Any) -> Any:
        if value is None or value.__class__ is SparseTensor:
            return value
        if not isinstance(value, Tensor):
            raise RuntimeError(
                f"function {self.name()}: expected Variable or None (got {type(value).__name__}) as gradient {place}"
            )
        if value.device is not where:
            if value.ndim:
                raise RuntimeError(
                    f"Function {self.name()} returned an invalid gradient at index {place} - expected device {where} "
                    f"but got {value.device}"
                )
            value = value.to(where)
        spec = self.input_specs[self.places.index(place)]
        if value.is_complex() and not spec.dtype.is_complex:
            raise RuntimeError(
                f"Function {self.name()} returned an invalid gradient at index {place} - got {value.dtype} for an "
                f"input "
                f"of {spec.dtype}; return its .real"
            )
        return value
