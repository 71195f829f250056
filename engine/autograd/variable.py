"""`Variable`: a name older PyTorch code uses for Tensor, and the handle on the engine that hangs on it."""

from collections.abc import Callable
from typing import Any

from engine.autograd.task import is_checkpoint_valid, queue_callback
from engine.tensor import Tensor


class _ExecutionEngine:
    """What `Variable._execution_engine` offers."""

    def queue_callback(self, callback: Callable[[], None]) -> None:
        """Runs `callback` at the end of the backward that is running on this thread.

        Raises: RuntimeError outside a backward pass.
        """
        queue_callback(callback)

    def is_checkpoint_valid(self) -> bool:
        """Whether a re-entrant checkpoint may run its backward now."""
        return is_checkpoint_valid()


class _VariableType(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, Tensor)


class Variable(metaclass=_VariableType):
    """`Variable(tensor, requires_grad)` is a Tensor on the same memory; every Tensor is an instance of Variable."""

    _execution_engine = _ExecutionEngine()

    def __new__(cls, data: Tensor, requires_grad: bool = False) -> Any:
        if not isinstance(data, Tensor):
            raise TypeError(f"Variable data has to be a tensor, but got {type(data).__name__}")
        return data.detach().requires_grad_(requires_grad)
