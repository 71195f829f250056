"""What `gradcheck` computes with: Tensors as flat real vectors, random ones, and inputs moved a little.

Complex numbers count as pairs.
"""

from collections.abc import Callable

import numpy as np

from engine.calls.namespaces import tensor_namespace as on_tensors
from engine.tensor import Tensor


def as_reals(tensor: Tensor) -> np.ndarray:
    """A copy of the values as a flat vector, complex ones as pairs (row-major order)."""
    array = np.array(tensor.detach().cpu()._array, order="C").reshape(-1)
    return array.view(array.real.dtype) if array.dtype.kind == "c" else array


def from_reals(values: np.ndarray, like: Tensor) -> Tensor:
    """The inverse of `as_reals`."""
    kind = like.dtype.numpy
    values = values.astype(kind.type(0).real.dtype)
    array = (values.view(kind) if like.is_complex() else values).reshape(tuple(like.shape))
    made: Tensor = on_tensors.from_numpy(np.array(array)).to(like.device)
    return made


class Random:
    """Random vectors of its own, so that a check neither depends on nor changes the state of `engine.manual_seed`."""

    def __init__(self) -> None:
        self.stream = np.random.default_rng(20_240_229)

    def vector(self, size: int) -> np.ndarray:
        """Entries of either sign between 0.5 and 1 in size: none of them hides an entry of the Jacobian."""
        return self.stream.uniform(0.5, 1.0, size) * self.stream.choice([-1.0, 1.0], size)

    def like(self, tensor: Tensor, strided: bool) -> Tensor:
        """A leaf shaped as `tensor` that requires grad."""
        count = tensor.numel() * (2 if tensor.is_complex() else 1)
        values = from_reals(self.vector(count), tensor)
        if strided and tensor.ndim:
            spread = on_tensors.zeros((*tensor.shape, 2), dtype=tensor.dtype, device=tensor.device)
            spread[..., 0] = values
            values = spread.select(-1, 0)
        return values.detach().requires_grad_()


def shifted(tensor: Tensor, direction: np.ndarray, run: Callable[[], list[np.ndarray]]) -> list[np.ndarray]:
    """What `run` returns while `direction` is added to the memory of `tensor`, behind autograd's back."""
    array = tensor._array
    before = array.copy()
    array[...] = array + from_reals(direction, tensor)._array
    try:
        return run()
    finally:
        array[...] = before
