"""The values of a tensor as those of Python and NumPy."""

from typing import TYPE_CHECKING, Any

import numpy as np

from engine.autograd.modes import state
from engine.calls.listening import heard
from engine.memory import backend
from engine.rules.device import CPU
from engine.tensor.described import Described

if TYPE_CHECKING:
    from engine.tensor.tensor import Tensor


class Values(Described):
    """The part of Tensor that gives its values out."""

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def requires_grad(self) -> bool: ...
        def detach(self) -> Tensor: ...

    @heard
    def numpy(self, *, force: bool = False) -> np.ndarray:
        """A NumPy array on the same memory, with the same strides.

        Raises: RuntimeError when the tensor requires grad; TypeError when its memory is not host memory (unless
        `force`).
        """
        if force:
            return self.detach().cpu().numpy()
        if self.requires_grad and state.grad_enabled:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad; use tensor.detach().numpy() instead")
        if self._spec.device is not CPU:
            raise TypeError(
                f"can't convert {self.device} tensor to numpy; use tensor.cpu() to copy it to host memory first"
            )
        return self._array

    def item(self) -> Any:
        """The value of a one-element tensor as a Python number.

        Raises: RuntimeError unless the tensor has exactly one element.
        """
        if self._spec.numel != 1:
            raise RuntimeError(
                f"a Tensor with {self._spec.numel} elements cannot be converted to Scalar; expected one element"
            )
        value = self._readable().item()
        return value if isinstance(value, bool | int | float | complex) else float(value)  # ml_dtypes' bfloat16

    @heard
    def _readable(self) -> Any:
        if self._array is None:
            backend.array_module(self._spec.device)  # raises for "meta"
        return self._array

    def tolist(self) -> Any:
        """Nested lists of Python numbers (a number for a 0-dim tensor)."""
        array = self._readable()
        return array.astype(np.float32).tolist() if self._spec.dtype.name == "bfloat16" else array.tolist()

    def __bool__(self) -> bool:
        """Whether the one element is not zero. Raises: RuntimeError for several elements."""
        if self._spec.numel != 1:
            raise RuntimeError("Boolean value of Tensor with more than one value is ambiguous; use .any() or .all()")
        return bool(self.item())

    def __float__(self) -> float:
        """The one element as a Python float."""
        return float(self._single())

    def __int__(self) -> int:
        """The one element as a Python int."""
        return int(self._single())

    def __index__(self) -> int:
        """The one element of an integer tensor, where Python wants an index."""
        if self._spec.dtype.category > 1:
            raise TypeError(f"only integer tensors of a single element can be converted to an index, got {self.dtype}")
        return int(self._single())

    def __complex__(self) -> complex:
        """The one element as a Python complex."""
        return complex(self._single())

    def _single(self) -> Any:
        if self._spec.numel != 1:
            raise ValueError(
                f"only one element tensors can be converted to Python scalars, got shape {list(self.shape)}"
            )
        return self.item()

    def __len__(self) -> int:
        """Size of the first axis. Raises: TypeError for a 0-d tensor."""
        if not self._spec.ndim:
            raise TypeError("len() of a 0-d tensor")
        return self._spec.shape[0]

    def __hash__(self) -> int:
        """By identity: `==` compares elements."""
        return id(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """The memory as a NumPy array, copied where the dtype asks for it."""
        array = self.numpy()
        if dtype is not None and array.dtype != dtype:
            if copy is False:
                raise ValueError(
                    f"__array__: a copy is needed to convert {array.dtype} to {dtype}, and copy=False forbids it"
                )
            return array.astype(dtype)
        return array.copy() if copy else array

    __array_priority__ = 1000  # NumPy's scalars and arrays on the left leave an operator to this class

    @heard
    def __dlpack__(self, **keywords: Any) -> Any:
        """DLPack export of the memory, without history."""
        if self.requires_grad:
            raise BufferError("can't export tensors that require gradient, use tensor.detach()")
        return self._array.__dlpack__(**keywords)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Type and number of the device, as DLPack counts them."""
        return self._array.__dlpack_device__()

    def __iter__(self) -> Any:
        """The slices along the first axis. Raises: TypeError for a 0-d tensor."""
        if not self._spec.ndim:
            raise TypeError("iteration over a 0-d tensor")
        return iter(self.unbind(0))  # type: ignore[attr-defined] # a method of the table
