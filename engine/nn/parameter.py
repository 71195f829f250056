"""`Parameter` and `Buffer`: tensors that a `Module` notices when they are assigned as attributes."""

from typing import Any, Self

import engine
from engine.tensor import Tensor


class Parameter(Tensor):
    """A leaf tensor that belongs to a module: `Module.parameters()` yields it and optimizers update it.

    Args:
        data: the values; memory, strides, dtype and device are shared, nothing is copied. None makes an empty one.
        requires_grad: True by default.
    Raises: TypeError if `data` is no tensor; RuntimeError for integer data that should require a gradient.
    """

    __slots__ = ()

    def __init__(self, data: Tensor | None = None, requires_grad: bool = True) -> None:
        if data is None:
            data = engine.empty(0)
        elif not isinstance(data, Tensor):
            raise TypeError(
                f"Parameter: expected a Tensor, got {type(data).__name__}; make one with engine.tensor(...) first"
            )
        super().__init__(data._array, data._spec)
        self._counter = data._version_counter()
        self.requires_grad_(requires_grad)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        # unlike that of other tensors, a parameter's gradient is not copied (torch.nn.Parameter)
        known = memo.get(id(self))
        if known is None:
            known = memo[id(self)] = type(self)(self.detach().clone(), self.requires_grad)
        return known

    def __repr__(self) -> str:
        return "Parameter containing:\n" + super().__repr__()


class _BufferType(type):
    """Makes a plain tensor that `Buffer(...)` marked pass `isinstance(tensor, Buffer)`, as in PyTorch."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, Tensor) and getattr(instance, "_is_buffer", False)


class Buffer(Tensor, metaclass=_BufferType):
    """Marks a tensor so that assigning it to a module attribute registers a buffer.

    Args: data: the values, shared; persistent: whether `state_dict` includes it.
    """

    def __new__(cls, data: Tensor | None = None, *, persistent: bool = True) -> Tensor:  # type: ignore[misc]
        tensor = engine.empty(0) if data is None else data.detach().requires_grad_(data.requires_grad)
        tensor.persistent = persistent  # type: ignore[attr-defined]
        tensor._is_buffer = True  # type: ignore[attr-defined]
        return tensor
