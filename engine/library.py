"""Operators of one's own, as torch.library has them: a function on Tensors that the engine treats like its own
operators in autograd, under autocast, in `engine.compile` and in `engine.trace`.

    @engine.library.custom_op("mine::softclip")
    def softclip(x: Tensor, limit: float) -> Tensor:
        return engine.from_numpy(np.tanh(x.numpy() / limit) * limit)

    @softclip.register_fake
    def _(x, limit):
        return engine.empty_like(x)

    def backward(ctx, g):
        (out,) = ctx.saved_tensors
        return g * (1 - (out / ctx.limit) ** 2), None

    def setup_context(ctx, inputs, output):
        ctx.limit = inputs[1]
        ctx.save_for_backward(output)

    softclip.register_autograd(backward, setup_context=setup_context)
"""

import inspect
from collections.abc import Callable
from typing import Any, NoReturn, get_type_hints

import numpy as np

from engine.amp.listening import add_policy
from engine.amp.policies import in_dtype
from engine.autograd.modes import no_grad
from engine.calls.derivative import implements
from engine.calls.dispatch import apply
from engine.calls.listening import heard
from engine.calls.operator import Operator, define
from engine.memory import backend
from engine.rules.device import CPU, device
from engine.rules.dtypes import dtype
from engine.rules.spec import spec_of
from engine.tensor import Tensor

__all__ = ["CustomOp", "custom_op", "load_library", "register_fake"]


class Context:
    """What `setup_context` leaves for `backward`: attributes of any name, and tensors."""

    saved_tensors: tuple[Tensor, ...] = ()
    needs_input_grad: tuple[bool, ...] = ()

    def save_for_backward(self, *tensors: Tensor) -> None:
        """What `saved_tensors` is to be."""
        self.saved_tensors = tensors


class CustomOp:
    """An operator; call it like the function. Made by `custom_op`."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name = name
        self._function = function
        self._fake: Callable[..., Any] | None = None
        self._backward: Callable[..., Any] | None = None
        self._setup_context: Callable[..., None] | None = None
        self._signature = inspect.signature(function)
        hints = get_type_hints(function)
        parameters = list(self._signature.parameters)
        self._is_tensor = [hints.get(parameter) is Tensor for parameter in parameters]
        tensors = [each for each, is_tensor in zip(parameters, self._is_tensor, strict=True) if is_tensor]
        if not tensors or "return" not in hints:
            raise ValueError(
                f"custom_op {name}: expected a function whose annotations say which parameters are Tensors, and what "
                f"it returns, got {self._signature}"
            )
        self._outputs = 1 if hints["return"] is Tensor else len(getattr(hints["return"], "__args__", ()))
        self._tensors = tensors
        self._operator: Operator = define(
            name,
            rule=self._rule,
            forward=self._kernel(function),
            backward=self._derivative(),
            inputs=" ".join(f"{each}_" for each in tensors),  # names of its own beside those that a rule may ask for
            attributes=" ".join(f"{each}_" for each in parameters if each not in tensors),
            outputs=self._outputs,
        )
        self._call = heard(self._apply)
        self.__doc__, self.__name__ = function.__doc__, function.__name__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = list(zip(bound.arguments.values(), self._is_tensor, strict=True))
        tensors = tuple(value for value, is_tensor in given if is_tensor)
        for parameter, value in zip(self._tensors, tensors, strict=True):
            if not isinstance(value, Tensor):
                raise TypeError(f"{self.name}(): argument '{parameter}' must be Tensor, not {type(value).__name__}")
        return apply(self._operator, tensors, tuple(value for value, is_tensor in given if not is_tensor))

    # --- what is registered -------------------------------------------------------------------------------------------

    def register_fake(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorator: gives tensors of the shapes, strides and dtypes of the results, for tensors on device "meta".

        Without, the results are taken to be like the first tensor.
        """
        self._fake = function
        self._operator.forget_calls()
        return function

    def register_kernel(self, device_type: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Decorator: what runs for tensors on one type of device ("cpu" or "cuda"), in place of the function."""

        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            self._operator.kernel(device_type)(self._kernel(function))
            return function

        return register

    def register_autograd(
        self, backward: Callable[..., Any], *, setup_context: Callable[..., None] | None = None
    ) -> None:
        """`backward(ctx, *gradients)` returns a gradient for each argument, None for what is no tensor. Before it
        `setup_context(ctx, inputs, output)` notes in ctx what it needs; here that is when backward comes to the call.
        """
        self._backward, self._setup_context = backward, setup_context

    def register_autocast(self, device_type: str, cast_inputs: dtype) -> None:
        """Under autocast floating point tensors are cast to this dtype."""
        add_policy(self._call, device_type, in_dtype(cast_inputs))

    # --- as an operator -----------------------------------------------------------------------------------------------

    def _arguments(self, tensors: Any, attributes: Any) -> list[Any]:
        tensors, attributes = iter(tensors), iter(attributes)
        return [next(tensors) if is_tensor else next(attributes) for is_tensor in self._is_tensor]

    def _rule(self, *given: Any) -> Any:
        count = len(self._tensors)
        specs, attributes = given[:count], given[count:]
        if self._fake is None:
            return specs[0] if self._outputs == 1 else (specs[0],) * self._outputs
        shells = [Tensor(None, spec_of(spec.shape, spec.stride, spec.dtype, device("meta"))) for spec in specs]
        made = [each._spec for each in _each(self._fake(*self._arguments(shells, attributes)))]
        found = tuple(spec_of(spec.shape, spec.stride, spec.dtype, specs[0].device) for spec in made)
        return found[0] if self._outputs == 1 else found

    def _kernel(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def kernel(xp: Any, *given: Any) -> Any:
            count = len(self._tensors)
            with no_grad():
                made = function(*self._arguments(map(_tensor, given[:count]), given[count:]))
            arrays = [each._array for each in _each(made)]
            return arrays[0] if self._outputs == 1 else tuple(arrays)

        return kernel

    def _derivative(self) -> Callable[..., Any]:
        count = len(self._tensors)

        def derivative(wrapped: Any, g: Any, needs: Any, out: Any, attributes: Any, values: Any) -> list[Tensor | None]:
            if self._backward is None:
                raise RuntimeError(f"{self.name}: there is no derivative; give one with register_autograd(backward)")
            inputs = tuple(self._arguments(map(wrapped, values), attributes))
            outputs = tuple(map(wrapped, _each(out)))
            given = (
                each if each is not None else like.new_zeros(like.shape)
                for each, like in zip(
                    (None if each is None else wrapped(each) for each in _each(g)), outputs, strict=True
                )
            )
            context = Context()
            needed = iter(needs)
            context.needs_input_grad = tuple(next(needed) if is_tensor else False for is_tensor in self._is_tensor)
            if self._setup_context is not None:
                self._setup_context(context, inputs, outputs[0] if self._outputs == 1 else outputs)
            found = _each(self._backward(context, *given))
            if len(found) != len(self._is_tensor):
                raise RuntimeError(
                    f"{self.name}: expected a gradient (or None) for each of {len(self._is_tensor)} arguments from its "
                    f"backward, got {len(found)}"
                )
            return [each for each, is_tensor in zip(found, self._is_tensor, strict=True) if is_tensor]

        def of_tensors(g: Any, needs: Any, out: Any, attributes: Any, *values: Any) -> Any:
            return derivative(lambda value: value, g, needs, out, attributes, values)

        @implements(of_tensors)
        def of_arrays(g: Any, needs: Any, out: Any, attributes: Any, *values: Any) -> Any:
            with no_grad():
                slopes = derivative(_tensor, g, needs, out, attributes, values)
            return [None if each is None else each._array for each in slopes]

        names = ("g", "needs", "out", "attributes", *(f"{each}_" for each in self._tensors))
        parameters = [inspect.Parameter(each, inspect.Parameter.POSITIONAL_OR_KEYWORD) for each in names]
        for rule in (of_tensors, of_arrays):
            rule.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        assert len(names) == 4 + count
        return of_arrays


def _each(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,)


def _tensor(array: Any) -> Tensor:
    if isinstance(array, backend.SCALAR):
        array = np.asarray(array)
    where = device(f"cuda:{array.device.id}") if backend.is_on_gpu(array) else CPU
    return Tensor(array, backend.spec_of_array(array, where))


def custom_op(name: str, function: Callable[..., Any] | None = None) -> Any:
    """Makes an operator of a function; also a decorator, `custom_op("namespace::name")`.

    Its annotations say which parameters are Tensors and whether it returns one or a tuple of them; the others are
    attributes, which must be hashable. It is called outside of autograd, and returns new tensors. Source:
    torch.library.custom_op.

    Raises: ValueError for a name without a namespace, one that is taken, or missing annotations.
    """
    if function is None:
        return lambda given: custom_op(name, given)
    namespace, separator, rest = name.partition("::")
    if not (separator and namespace.isidentifier() and rest.isidentifier()):
        raise ValueError(f"custom_op: expected a name like 'mine::softclip', got {name!r}")
    return CustomOp(name, function)


def load_library(path: str) -> NoReturn:
    """Raises OSError: operators written in C++ for PyTorch cannot be loaded; packages go on without where they can."""
    raise OSError(f"engine.library.load_library: {path} has operators for PyTorch's C++, which is not here")


def register_fake(op: "str | CustomOp", func: Callable[..., Any] | None = None, **_: Any) -> Any:
    """`op.register_fake(func)` of an operator made by `custom_op`. Of one that is not here, named by a string, the
    description is left alone: the library with that operator was not loaded (`load_library`).
    """
    if func is None:
        return lambda function: register_fake(op, function)
    return func if isinstance(op, str) else op.register_fake(func)
