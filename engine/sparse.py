"""`torch.sparse` as far as graph networks and sparse gradients need it: matrices in coordinate format.

`engine.tensor.sparse` is what they are. Source of names and behaviour: PyTorch's torch.sparse; compressed layouts
(CSR and the like) and products of two sparse tensors are not here.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from engine.errors.absent import absent
from engine.ops.creation.constructors import TYPES
from engine.ops.creation.from_data import tensor
from engine.rules.dtypes import dtype, int64
from engine.tensor import Tensor
from engine.tensor.sparse import SparseTensor

__all__ = ["SparseTensor", "addmm", "mm", "sparse_coo_tensor", "sum"]


def sparse_coo_tensor(
    indices: Any,
    values: Any = None,
    size: Sequence[int] | None = None,
    *,
    dtype: dtype | None = None,
    device: Any = None,
    requires_grad: bool = False,
    check_invariants: bool | None = None,
    is_coalesced: bool | None = None,
) -> SparseTensor:
    """A sparse tensor of `size` with `values` (N, ...) at `indices` (sparse axes, N): arrays, lists or Tensors.

    Without `size` it is the smallest that holds them. A history of `values` is kept. Raises: RuntimeError for shapes
    that do not fit together or an index outside; NotImplementedError for `requires_grad=True`, since only values are
    leaves.
    """
    if values is None:
        raise NotImplementedError(
            "sparse_coo_tensor: expected indices and values; an empty one is zeros(...).to_sparse()"
        )
    places = _as_tensor(indices, int64, device)
    elements = _as_tensor(values, dtype, device)
    if places.ndim != 2:
        raise RuntimeError(f"sparse_coo_tensor: indices must be sparse_dim x nnz, got shape {list(places.shape)}")
    if not elements.ndim:
        elements = elements.expand(places.shape[1])
    if places.shape[1] != elements.shape[0]:
        raise RuntimeError(
            f"sparse_coo_tensor: indices and values must have same nnz, but got nnz from indices: {places.shape[1]}, "
            f"nnz from values: {elements.shape[0]}"
        )
    largest = (places.max(1).values + 1).tolist() if places.numel() else [0] * places.shape[0]
    shape = (*largest, *elements.shape[1:]) if size is None else tuple(size)
    if len(shape) != places.shape[0] + elements.ndim - 1 or shape[places.shape[0] :] != tuple(elements.shape[1:]):
        raise RuntimeError(
            f"sparse_coo_tensor: size {list(shape)} does not fit indices of {places.shape[0]} axes and values of shape "
            f"{list(elements.shape)}"
        )
    if places.numel() and (int(places.min()) < 0 or any(a > b for a, b in zip(largest, shape, strict=False))):
        raise RuntimeError(f"sparse_coo_tensor: size is inconsistent with indices: one is outside of {list(shape)}")
    if requires_grad:
        raise NotImplementedError(
            "sparse_coo_tensor: a sparse tensor is no leaf here; leave requires_grad out, and give values that require "
            "grad"
        )
    return SparseTensor(places, elements, shape, bool(is_coalesced))


def _as_tensor(value: Any, dtype: dtype | None, device: Any) -> Tensor:
    made = value if isinstance(value, Tensor) else tensor(value)
    return made.to(device=made.device if device is None else device, dtype=made.dtype if dtype is None else dtype)


def to_sparse(input: Tensor, sparse_dim: int | None = None) -> SparseTensor:
    """The elements other than zero with their coordinates, coalesced; `sparse_dim` says how many axes have them."""
    count = input.ndim if sparse_dim is None else sparse_dim
    if not 0 < count <= input.ndim:
        raise RuntimeError(f"to_sparse: expected 1 to {input.ndim} sparse axes, got {count}")
    filled = input.detach() != 0
    if count < input.ndim:
        filled = filled.flatten(count).any(count)
    places = filled.nonzero().t().contiguous()
    return SparseTensor(places, input[tuple(places)], tuple(input.shape), True)


def mm(mat1: Any, mat2: Any) -> Tensor:
    """The product of two matrices, of which one is sparse; dense."""
    product: Tensor = mat1 @ mat2
    return product


spmm = mm


def addmm(mat: Tensor, mat1: SparseTensor, mat2: Tensor, *, beta: float = 1.0, alpha: float = 1.0) -> Tensor:
    """`beta * mat + alpha * (mat1 @ mat2)` with a sparse `mat1`."""
    return mat * beta + (mat1 @ mat2) * alpha


def sum(input: SparseTensor, dim: Any = None, dtype: dtype | None = None) -> Tensor:
    """The sum of all elements or over axes; dense, also where PyTorch's is sparse."""
    return (input if dtype is None else input.to(dtype)).sum(dim)


def __getattr__(name: str) -> Callable[..., SparseTensor]:
    """`FloatTensor(indices, values, size)` and the like, PyTorch's older constructors."""
    if name in TYPES:
        return partial(sparse_coo_tensor, dtype=TYPES[name].dtype)
    raise absent("engine.sparse", name)
