"""`Function`: a user's own operation with its own backward, as torch.autograd.Function."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from engine.autograd.function_node import FunctionCtx as FunctionCtx
from engine.autograd.function_node import FunctionNode
from engine.autograd.modes import no_grad, state
from engine.autograd.saved import SavedTensor, save
from engine.autograd.versions import CUSTOM_FUNCTION, MULTIPLE, restricted
from engine.autograd.writes import check_history, mark_written
from engine.calls.dispatch import share_memory
from engine.tensor import Tensor
from engine.tensor.sparse import SparseTensor


class Function:
    """Subclass with static methods `forward(ctx, *args)` and `backward(ctx, *grads)`; call `Subclass.apply(...)`.

    forward may also be written `forward(*args)` together with `setup_context(ctx, inputs, output)`.
    """

    _node_type: type[FunctionNode]  # made at the first recorded call; its name is what type(grad_fn).__name__ says

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

    @classmethod
    def _derivative(cls) -> Callable[..., Any]:
        """`backward`, or `vjp`, which is another name for it."""
        own, other = cls.backward, cls.vjp
        if own is not Function.backward and other is not Function.vjp:
            raise RuntimeError(
                "Implementing both 'backward' and 'vjp' for a custom Function is not allowed. "
                "You should only implement one of them."
            )
        return own if own is not Function.backward else other

    @classmethod
    def _make_node(cls, ctx: FunctionCtx, args: Sequence[Any], outputs: Sequence[Any]) -> FunctionNode:
        if "_node_type" not in cls.__dict__:
            cls._node_type = type(f"{cls.__name__}Backward", (FunctionNode,), {"__slots__": ()})
        return cls._node_type(cls, ctx, args, outputs)

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
        node = cls._make_node(ctx, args, outputs) if recorded else None
        outputs = _settle_outputs(ctx, args, outputs, node)
        if node is not None:
            ctx._saved = tuple(_save(tensor, node) for tensor in ctx._to_save)
        ctx._to_save = ctx._dirty = ctx._non_differentiable = ()
        return outputs if isinstance(output, tuple) else outputs[0]


def _mark_dirty(name: str, ctx: FunctionCtx, outputs: tuple[Any, ...], recorded: bool) -> None:
    """Checks what forward wrote in place, and counts the writes."""
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
    ctx: FunctionCtx, args: tuple[Any, ...], outputs: tuple[Any, ...], node: FunctionNode | None
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
    written = Tensor(value._array, value._spec)
    written._counter = value._version_counter()
    written._requires_grad, written._grad_fn, written._output_nr = True, node, number
    value._adopt_history(written)
    return value


def _restrict_views(outputs: list[Any], node: FunctionNode, dirty: set[int]) -> None:
    """Views that forward returned cannot be written in place: their history is the Function's, not their base's."""
    carrying = [value for value in outputs if isinstance(value, Tensor) and value._grad_fn is node]
    for value in carrying:
        if value._base is not None and id(value) not in dirty:
            assert value._counter is not None
            value._view_version = restricted(value._counter.value, MULTIPLE if len(carrying) > 1 else CUSTOM_FUNCTION)


class _SavedSparse:
    """A sparse tensor between forward and backward: its two tensors, saved."""

    def __init__(self, tensor: SparseTensor) -> None:
        self._pair = save(tensor._indices()), save(tensor._values())
        self._form = tuple(tensor.shape), tensor.is_coalesced()

    def tensor(self, node: FunctionNode) -> SparseTensor:
        indices, values = (saved.tensor(node) for saved in self._pair)
        return SparseTensor(indices, values, *self._form)


def _save(tensor: Tensor | SparseTensor | None, node: FunctionNode) -> SavedTensor | _SavedSparse | None:
    if tensor is None:
        return None
    if isinstance(tensor, SparseTensor):
        return _SavedSparse(tensor)
    return save(tensor, tensor._output_nr) if tensor._grad_fn is node else save(tensor)


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
