"""`Function`: a user's own operation with its own backward, as torch.autograd.Function."""

import functools
import inspect
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from engine import backend
from engine.autograd.gradients import as_tensor
from engine.autograd.hooks import raw
from engine.autograd.modes import no_grad, set_grad_enabled, state
from engine.autograd.node import Edge, Node
from engine.autograd.saved import FREED, SavedTensor, save
from engine.autograd.versions import CUSTOM_FUNCTION, MULTIPLE, restricted
from engine.tensor import Tensor


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
        self._saved: tuple[SavedTensor | None, ...] | None = None
        self._node: weakref.ref[FunctionNode] | None = None  # weak: the node owns its context

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keeps tensors for backward, with a version check.

        Raises: TypeError for anything else.
        """
        for position, tensor in enumerate(tensors):
            if tensor is not None and not isinstance(tensor, Tensor):
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

    __slots__ = ("context", "function", "non_differentiable", "places", "released")

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
            results = _backward_of(self.function)(self.context, *given)
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

    def _checked(self, place: int, value: Any, where: Any) -> Tensor | None:
        if value is None:
            return None
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


class Function:
    """Subclass with static methods `forward(ctx, *args)` and `backward(ctx, *grads)`; call `Subclass.apply(...)`.

    forward may also be written `forward(*args)` together with `setup_context(ctx, inputs, output)`.
    """

    @staticmethod
    def forward(*args: Any, **kwargs: Any) -> Any:
        """Computes the outputs."""
        raise NotImplementedError("You must implement the forward function for custom autograd.Function.")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> Any:
        """Keeps on `ctx` what backward needs, where forward does not take a ctx."""
        raise NotImplementedError("setup_context is not implemented.")

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """Gradients of the inputs, one an argument of forward (None where there is none)."""
        raise NotImplementedError(
            "You must implement either the backward or vjp method for your custom autograd.Function to use it with "
            "backward mode AD."
        )

    vjp = backward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(
            "Legacy autograd function with non-static forward method is deprecated. Please use new-style autograd "
            f"function with static forward method: {type(self).__name__}.apply(...)"
        )

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Runs forward and records the call."""
        ctx = FunctionCtx()
        separate = cls.setup_context is not Function.setup_context
        if separate:  # PyTorch fills defaults in only here, where setup_context sees the arguments
            bound = inspect.signature(cls.forward).bind(*args, **kwargs)
            bound.apply_defaults()
            args, kwargs = bound.args, bound.kwargs
        wants = tuple(isinstance(value, Tensor) and value.requires_grad for value in args)
        ctx.needs_input_grad = wants
        recorded = state.grad_enabled and any(wants)
        with no_grad():
            if separate:
                output = cls.forward(*args, **kwargs)
                cls.setup_context(ctx, args, output)
            else:
                output = cls.forward(ctx, *args, **kwargs)
        outputs = output if isinstance(output, tuple) else (output,)
        _mark_dirty(cls.__name__, ctx, outputs, recorded)
        node = FunctionNode(cls, ctx, args, outputs) if recorded else None
        outputs = _settle_outputs(cls, ctx, args, outputs, node)
        if node is not None:
            ctx._saved = tuple(_save(tensor, outputs, node) for tensor in ctx._to_save)
        ctx._to_save = ctx._dirty = ctx._non_differentiable = ()
        return outputs if isinstance(output, tuple) else outputs[0]


def _backward_of(function: type[Function]) -> Callable[..., Any]:
    """`backward`, or `vjp`, which is another name for it."""
    own, other = function.backward, function.vjp
    if own is not Function.backward and other is not Function.vjp:
        raise RuntimeError(
            "Implementing both 'backward' and 'vjp' for a custom Function is not allowed. You should only implement "
            "one of them."
        )
    return own if own is not Function.backward else other


def _mark_dirty(name: str, ctx: FunctionCtx, outputs: tuple[Any, ...], recorded: bool) -> None:
    """Checks what forward wrote in place, and counts the writes."""
    from engine.ops.view_history import check_history, mark_written

    returned = {id(value) for value in outputs}
    for tensor in ctx._dirty:
        if id(tensor) not in returned:
            raise RuntimeError(
                "Some elements marked as dirty during the forward method were not returned as output. The inputs that "
                "are modified inplace must all be outputs of the Function."
            )
        if recorded:
            check_history(tensor, name)
        mark_written(tensor, name, recorded)


def _settle_outputs(
    cls: "type[Function]", ctx: FunctionCtx, args: tuple[Any, ...], outputs: tuple[Any, ...], node: FunctionNode | None
) -> tuple[Any, ...]:
    """The outputs with the history they are to have."""
    inputs = {id(value) for value in args if isinstance(value, Tensor)}
    dirty = {id(value) for value in ctx._dirty}
    plain = {id(value) for value in ctx._non_differentiable}
    settled: list[Any] = []
    constant: set[int] = set()
    for number, value in enumerate(outputs):
        if not isinstance(value, Tensor):
            settled.append(value)
            continue
        identity = id(value)
        carries = node is not None and identity not in plain and value._spec.dtype.category >= 2
        if not carries:
            constant.add(number)
            settled.append(_without_history(value, identity in inputs, identity in dirty))
        elif identity in dirty:
            settled.append(_rewritten(value, node, number))
        else:
            if identity in inputs:
                value = _view_of(value)
            value._requires_grad, value._grad_fn, value._output_nr = True, node, number
            settled.append(value)
    if node is not None:
        node.non_differentiable = frozenset(constant)
        _restrict_views(settled, node, dirty)
    return tuple(settled)


def _view_of(value: Tensor) -> Tensor:
    """A view of the whole tensor: what a Function gives back where forward returned an input as it was."""
    from engine.dispatch import share_memory

    view = Tensor(value._array, value._spec)
    share_memory(view, value)
    return view


def _without_history(value: Tensor, is_input: bool, is_dirty: bool) -> Tensor:
    if not value.requires_grad:
        return _view_of(value) if is_input and not is_dirty else value
    if is_input:
        return value.detach()
    if value._base is None:
        value._requires_grad, value._grad_fn = False, None
    return value  # a view of an input stays one, as in a no_grad block


def _rewritten(value: Tensor, node: FunctionNode | None, number: int) -> Tensor:
    """An input that forward wrote in place, with the new history; that of a view goes to its base."""
    from engine.ops.view_history import adopt_history

    written = Tensor(value._array, value._spec)
    written._counter = value._version_counter()
    written._requires_grad, written._grad_fn, written._output_nr = True, node, number
    adopt_history(value, written)
    return value


def _restrict_views(outputs: list[Any], node: FunctionNode, dirty: set[int]) -> None:
    """Views that forward returned cannot be written in place: their history is the Function's, not their base's."""
    carrying = [value for value in outputs if isinstance(value, Tensor) and value._grad_fn is node]
    for value in carrying:
        if value._base is not None and id(value) not in dirty:
            assert value._counter is not None
            value._view_version = restricted(value._counter.value, MULTIPLE if len(carrying) > 1 else CUSTOM_FUNCTION)


def _save(tensor: Tensor | None, outputs: tuple[Any, ...], node: FunctionNode) -> SavedTensor | None:
    if tensor is None:
        return None
    if tensor._grad_fn is node:
        return save(tensor, tensor._output_nr)
    return save(tensor)


def once_differentiable(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator for a backward that cannot itself be differentiated: under create_graph its results raise when they
    are.
    """

    @functools.wraps(function)
    def wrapper(ctx: Any, *gradients: Any) -> Any:
        with no_grad():
            outputs = function(ctx, *gradients)
        if not state.grad_enabled or not any(isinstance(value, Tensor) and value.requires_grad for value in gradients):
            return outputs
        blocked = tuple(
            None if value is None else _Blocked.apply(value.detach().requires_grad_())
            for value in (outputs if isinstance(outputs, tuple) else (outputs,))
        )
        return blocked if isinstance(outputs, tuple) else blocked[0]

    return wrapper


class _Blocked(Function):
    """An identity whose backward raises."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError("trying to differentiate twice a function that was marked with @once_differentiable")
