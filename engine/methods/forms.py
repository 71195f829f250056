"""Methods whose arguments are not those of the function of their name, and parts that are properties."""

from typing import Any

import numpy as np

from engine import ops
from engine.ops.creation import from_data
from engine.ops.pointwise import selection
from engine.ops.views import operator as views
from engine.rules.dims import shape_from
from engine.tensor import Tensor


def where(self: Tensor, condition: Tensor, other: Any) -> Tensor:
    """This tensor where the condition holds, `other` elsewhere."""
    return selection.where(condition, self, other)


def view_as(self: Tensor, other: Tensor) -> Tensor:
    """A view in the shape of `other`."""
    return views.view(self, other.shape)


def reshape_as(self: Tensor, other: Tensor) -> Tensor:
    """Reshaped to the shape of `other`."""
    return views.reshape(self, other.shape)


def sum_to_size(self: Tensor, *size: Any) -> Tensor:
    """Sums the axes along which `size` broadcasts to this shape; to one number also where there is nothing to sum."""
    wanted = shape_from(size, "sum_to_size")
    if not wanted:
        return self.sum()
    extra = self.ndim - len(wanted)
    if extra < 0 or any(n not in (1, self.shape[extra + axis]) for axis, n in enumerate(wanted)):
        raise RuntimeError(f"size {list(wanted)} is not expandable to size {list(self.shape)}.")
    axes = [*range(extra), *(extra + axis for axis, n in enumerate(wanted) if n == 1 and self.shape[extra + axis] != 1)]
    return self.sum(axes, True).reshape(wanted) if axes else self


def polygamma(self: Tensor, n: int) -> Tensor:
    """The n-th derivative of digamma at each element."""
    return ops.polygamma(n, self)


def reversed_axes(self: Tensor) -> Tensor:
    """A view with the axes in reverse order."""
    return ops.permute(self, tuple(range(self.ndim))[::-1])


def transposed(self: Tensor) -> Tensor:
    """A view with the last two axes exchanged. Raises: RuntimeError for a 1-d tensor."""
    if self.ndim == 1:
        raise RuntimeError(
            "tensor.mT and tensor.H are only supported on matrices or batches of matrices. Got 1-D tensor; "
            "unsqueeze(0) "
            "makes it a row"
        )
    return ops.transpose(self, -2, -1) if self.ndim else self


def hermitian(self: Tensor) -> Tensor:
    """The conjugate transpose of a matrix. Raises: RuntimeError for tensors that are not 0-d or 2-d."""
    if self.ndim not in (0, 2):
        raise RuntimeError(f"tensor.H is only supported on matrices (2-D tensors). Got {self.ndim}-D tensor.")
    return ops.adjoint(self)


def array_wrap(self: Tensor, array: np.ndarray, context: Any = None, return_scalar: bool = False) -> Tensor:
    """What NumPy's functions return for a Tensor: `numpy.exp(tensor)` is a Tensor, masks are uint8, as in
    PyTorch.
    """
    array = np.asarray(array)
    return from_data.from_numpy(array.astype(np.uint8) if array.dtype == bool else array)
