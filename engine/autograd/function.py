"""`Function`: a user's own operation with its own backward, as torch.autograd.Function."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from engine.autograd.gradients import as_tensor
from engine.autograd.node import Edge, Node
from engine.autograd.saved import SavedTensor
from engine.autograd.modes import no_grad, set_grad_enabled, state
from engine.tensor import Tensor


class FunctionContext:
    """The `ctx` of forward and backward: what forward wants to keep, and how its outputs are to be treated."""

    def __init__(self) -> None:
        self.needs_input_grad: tuple[bool, ...] = ()
        self._to_save: tuple[Tensor | None, ...] = ()
        self._dirty: tuple[Tensor, ...] = ()
        self._non_differentiable: tuple[Tensor, ...] = ()
        self._materialize = True
        self._saved: tuple[SavedTensor | None, ...] | None = None
        self._node: FunctionNode | None = None

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keeps tensors for backward, with a version check."""
        for tensor in tensors:
            if tensor is not None and not isinstance(tensor, Tensor):
                raise TypeError(f"save_for_backward can only save variables, but got {type(tensor).__name__}; keep other values as attributes of ctx")
        self._to_save = tensors

    save_for_forward = save_for_backward

    def mark_dirty(self, *tensors: Tensor) -> None:
        """Declares inputs that forward wrote in place."""
        self._dirty = tensors

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """Declares outputs that carry no gradient."""
        self._non_differentiable = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """With False, backward receives None instead of zeros for outputs without gradient."""
        self._materialize = value

    @property
    def saved_tensors(self) -> tuple[Tensor | None, ...]:
        """What save_for_backward kept.

        Raises: RuntimeError when it was freed by an earlier backward or modified in place since.
        """
        if self._saved is None:
            if self._node is None or self._node.released:
                raise RuntimeError(
                    "Trying to backward through the graph a second time (or directly access saved tensors after they have already been freed). "
                    "Specify retain_graph=True if you need to backward through the graph a second time."
                )
            return ()
        assert self._node is not None
        return tuple(None if saved is None else saved.tensor(self._node) for saved in self._saved)


class FunctionNode(Node):
    """The backward step of a Function."""

    __slots__ = ("context", "function", "released")

    def __init__(self, function: "type[Function]", context: FunctionContext, edges: Sequence[Edge | None], inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        super().__init__(edges, [getattr(value, "_spec", None) for value in inputs], [getattr(value, "_spec", None) for value in outputs])  # type: ignore[misc]
        self.function = function
        self.context = context
        self.released = False

    def name(self) -> str:
        return f"{self.function.__name__}Backward"

    def release(self) -> None:
        if self.context._saved:
            self.context._saved = None
            self.released = True

    def apply(self, gradients: list[Any], recorded: bool, edges: Sequence[Edge | None] | None = None) -> Sequence[Any]:
        given: list[Any] = []
        for position, spec in enumerate(self.output_specs):
            value = gradients[position]
            gradients[position] = None
            if value is None and self.context._materialize and spec is not None:
                from engine.ops.factories import zeros

                given.append(zeros(spec.shape, dtype=spec.dtype, device=spec.device))
            else:
                given.append(as_tensor(value, spec))
        del value
        with set_grad_enabled(recorded):
            results = self.function.backward(self.context, *given)
        given.clear()
        results = results if isinstance(results, tuple) else (results,)
        count = len(self.next_edges)
        if len(results) > count:
            if any(extra is not None for extra in results[count:]):
                raise RuntimeError(f"function {self.name()} returned an incorrect number of gradients (expected {count}, got {len(results)})")
            results = results[:count]
        if len(results) < count:
            raise RuntimeError(f"function {self.name()} returned an incorrect number of gradients (expected {count}, got {len(results)})")
        for position, value in enumerate(results):
            if value is not None and not isinstance(value, Tensor):
                raise TypeError(f"function {self.name()} returned a gradient of type {type(value).__name__} at index {position}; expected a Tensor or None")
            if value is not None and self.next_edges[position] is not None:
                self._check(position, value)
        if recorded:
            return results
        unwrapped = [None if value is None else _exact(value) for value in results]
        return unwrapped

    def _check(self, position: int, value: Tensor) -> None:
        if value.device is not self.input_specs[position].device and value.ndim:
            expected = self.input_specs[position].device
            raise RuntimeError(f"Function {self.name()} returned an invalid gradient at index {position} - expected device {expected} but got {value.device}")
        if value.is_complex() and not self.input_specs[position].dtype.is_complex:
            raise RuntimeError(f"Function {self.name()} returned a complex gradient at index {position} for a real input")


def _exact(value: Tensor) -> Any:
    """The raw array with the very strides the Tensor shows (they may differ on axes of size 1, which a stolen gradient keeps)."""
    array = value._array
    if array.strides != value._spec.byte_strides and value._spec.numel:
        from engine import backend

        return backend.strided_view(array, value._spec, 0)
    return array




class Function:
    """Subclass with static methods `forward(ctx, *args)` and `backward(ctx, *grads)`; call `Subclass.apply(...)`.

    forward may also be written `forward(*args)` together with `setup_context(ctx, inputs, output)`.
    """

    @staticmethod
    def forward(*args: Any, **kwargs: Any) -> Any:
        """Computes the outputs."""
        raise NotImplementedError("You must implement the forward function for custom autograd.Function.")

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """Gradients of the inputs, one an argument of forward (None where there is none)."""
        raise NotImplementedError("You must implement the backward function for your custom autograd.Function to use it with backward.")

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Runs forward and records the call."""
        if not isinstance(cls.__dict__.get("forward", cls.forward), staticmethod) and not callable(cls.forward):
            raise RuntimeError(f"{cls.__name__}: forward must be a static method")
        ctx = FunctionContext()
        wants = tuple(isinstance(value, Tensor) and value.requires_grad for value in args)
        ctx.needs_input_grad = wants
        separate = "setup_context" in {name for base in cls.__mro__ if base is not Function for name in base.__dict__}
        with no_grad():
            if separate:
                output = cls.forward(*args)
                cls.setup_context(ctx, args, output)  # type: ignore[attr-defined]
            else:
                output = cls.forward(ctx, *args)
        single = not isinstance(output, tuple)
        outputs = (output,) if single else output
        for value in outputs:
            if isinstance(value, list | dict):
                raise TypeError(f"{cls.__name__}.forward: expected Tensors or a tuple of them, got {type(value).__name__}")
        dirty = {id(value) for value in ctx._dirty}
        for value in ctx._dirty:
            value._bump_version(cls.__name__)
        if state.grad_enabled and any(wants):
            outputs = _record(cls, ctx, args, wants, outputs, dirty)
        else:
            ctx._saved = None
        return outputs[0] if single else outputs


def _record(cls: type[Function], ctx: FunctionContext, args: tuple[Any, ...], wants: tuple[bool, ...], outputs: tuple[Any, ...], dirty: set[int]) -> tuple[Any, ...]:
    edges = [value.gradient_edge() if wanted else None for value, wanted in zip(args, wants, strict=True)]
    for value in ctx._dirty:
        if value.requires_grad and value.is_leaf:
            raise RuntimeError(f"{cls.__name__}: a leaf Variable that requires grad has been used in an in-place operation.")
    node = FunctionNode(cls, ctx, edges, args, outputs)
    ctx._node = node
    plain = {id(value) for value in ctx._non_differentiable}
    inputs = {id(value) for value in args if isinstance(value, Tensor)}
    made: list[Any] = []
    renamed: dict[int, tuple[Tensor, int]] = {}
    for number, value in enumerate(outputs):
        if isinstance(value, Tensor):
            original = id(value)
            if original in inputs and original not in dirty:
                value = value.detach() if original in plain else _alias(value)
            if original not in plain and value._spec.dtype.category >= 2:
                if value._base is not None and original in dirty:
                    written = Tensor(value._array, value._spec)
                    written._requires_grad, written._grad_fn, written._output_nr = True, node, number
                    from engine.ops.inplace import _adopt_history

                    _adopt_history(value, written)
                else:
                    value._base = None
                    value._requires_grad, value._grad_fn, value._output_nr = True, node, number
            else:
                value._requires_grad = False
            renamed[original] = (value, number)
        made.append(value)
    saved: list[SavedTensor | None] = []
    for tensor in ctx._to_save:
        if tensor is None:
            saved.append(None)
        elif id(tensor) in renamed and renamed[id(tensor)][0]._grad_fn is node:
            output, number = renamed[id(tensor)]
            saved.append(output._save(number))
        else:
            saved.append(tensor._save())
    ctx._saved, ctx._to_save = tuple(saved), ()
    return tuple(made)


def _alias(value: Tensor) -> Tensor:
    alias = Tensor(value._array, value._spec)
    alias._counter = value._version_counter()
    return alias


def once_differentiable(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator for a backward that cannot itself be differentiated: under create_graph its results raise when they are."""

    @functools.wraps(function)
    def wrapper(ctx: Any, *gradients: Any) -> Any:
        with no_grad():
            outputs = function(ctx, *gradients)
        if not state.grad_enabled or not any(isinstance(value, Tensor) and value.requires_grad for value in gradients):
            return outputs
        blocked = tuple(None if value is None else _Blocked.apply(value.detach().requires_grad_()) for value in (outputs if isinstance(outputs, tuple) else (outputs,)))
        return blocked if isinstance(outputs, tuple) else blocked[0]

    return wrapper


class _Blocked(Function):
    """An identity whose backward raises."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return value.view(value.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError("trying to differentiate twice a function that was marked with @once_differentiable")
