"""Moving and casting a module: `Module.to` and what `float`, `half`, `cuda` and the like come down to."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import engine
from engine.autograd.modes import no_grad
from engine.rules.dtypes import require_dtype
from engine.tensor import Tensor

if TYPE_CHECKING:
    from engine.nn.module import Module

M = TypeVar("M", bound="Module")


def apply_to_tensors(self: M, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> M:
    """Replaces the data of every parameter, gradient and buffer by `fn` of it. Parameters stay the same objects."""
    if recurse:
        for child in self.children():
            child._apply(fn)
    for parameter in self._parameters.values():
        if parameter is None:
            continue
        with no_grad():
            changed = fn(parameter)
            gradient = parameter.grad
            changed_gradient = None if gradient is None else fn(gradient)
        if changed is not parameter:
            parameter.grad = None
            parameter.data = changed
            parameter.grad = changed_gradient
    for name, buffer in self._buffers.items():
        if buffer is not None:
            self._buffers[name] = fn(buffer)
    return self


def converter(*args: Any, **kwargs: Any) -> Callable[[Tensor], Tensor]:
    """What `Module.to(*args, **kwargs)` does to each tensor. Raises TypeError for a dtype that is not floating."""
    device, dtype, non_blocking, memory_format = _parsed(*args, **kwargs)
    if dtype is not None and not (dtype.is_floating_point or dtype.is_complex):
        raise TypeError(f"nn.Module.to only accepts floating point or complex dtypes, but got desired dtype={dtype}")

    def convert(tensor: Tensor) -> Tensor:
        wanted = dtype if tensor.is_floating_point() or tensor.is_complex() else None
        if memory_format is not None and tensor.dim() in (4, 5):
            return tensor.to(device, wanted, non_blocking, memory_format=memory_format)
        return tensor.to(device, wanted, non_blocking)

    return convert


def _parsed(
    *args: Any,
    device: Any = None,
    dtype: Any = None,
    non_blocking: bool = False,
    memory_format: Any = None,
    tensor: Tensor | None = None,
) -> tuple[Any, Any, bool, Any]:
    """(device, dtype, non_blocking, memory_format) from the forms `Module.to` accepts."""
    positional = list(args)
    if positional and isinstance(positional[0], Tensor):
        tensor = positional.pop(0)
    elif positional and isinstance(positional[0], engine.dtype | type):
        dtype = positional.pop(0)
    elif positional:
        device = positional.pop(0)
        if positional and (positional[0] is None or isinstance(positional[0], engine.dtype | type)):
            dtype = positional.pop(0)
    if tensor is not None:
        device, dtype = tensor.device, tensor.dtype
    if positional:
        non_blocking = positional.pop(0)
    if positional or not isinstance(non_blocking, bool):
        raise TypeError(
            "Module.to: expected (device, dtype, non_blocking), (dtype, non_blocking) or (tensor, non_blocking), "
            f"got {args}"
        )
    dtype = None if dtype is None else require_dtype(dtype)
    return None if device is None else engine.device(device), dtype, non_blocking, memory_format
