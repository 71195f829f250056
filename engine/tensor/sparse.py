"""SparseTensor: a tensor as coordinates and values, all other elements being zeros (PyTorch's layout sparse_coo).

It is no Tensor but a pair of them, and what it computes is made of their methods: histories are those of its values.
There is as much of it as graph networks and sparse gradients of tables need; anything else is done on `to_dense()`.
"""

from math import prod
from typing import Any, NoReturn

import numpy as np

from engine.rules.device import device
from engine.rules.dtypes import dtype
from engine.rules.spec import Size
from engine.tensor.tensor import Tensor


class SparseTensor:
    """A tensor of `shape` with `values` (N, *dense sizes) at `indices` (sparse axes, N), int64; made by
    `engine.sparse_coo_tensor`, `Tensor.to_sparse`, and as the gradient of `Embedding(sparse=True)`.

    Where coordinates repeat, their values are summed. `coalesced`: whether they are known to be sorted, each once.
    """

    is_sparse = True
    layout = "engine.sparse_coo"
    is_leaf = True

    def __init__(self, indices: Tensor, values: Tensor, shape: tuple[int, ...], coalesced: bool = False) -> None:
        self._places = indices
        self._elements = values
        self._coalesced = coalesced or values.shape[0] < 2
        self.shape = Size(shape)

    # --- what it is ---------------------------------------------------------------------------------------------------

    @property
    def dtype(self) -> dtype:
        """Element type of the values."""
        return self._elements.dtype

    @property
    def device(self) -> device:
        """Where the values are."""
        return self._elements.device

    @property
    def requires_grad(self) -> bool:
        """Whether the values do."""
        return self._elements.requires_grad

    @property
    def grad_fn(self) -> Any:
        """The node that made the values."""
        return self._elements.grad_fn

    @property
    def is_cuda(self) -> bool:
        """Whether the values are on a GPU."""
        return self._elements.is_cuda

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def dim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def size(self, dim: int | None = None) -> Any:
        """The shape, or the size of one axis."""
        return self.shape if dim is None else self.shape[dim]

    def numel(self) -> int:
        """Number of elements, zeros included."""
        return prod(self.shape)

    def sparse_dim(self) -> int:
        """Number of axes that have coordinates: the first ones."""
        return self._places.shape[0]

    def dense_dim(self) -> int:
        """Number of axes of each value."""
        return self._elements.ndim - 1

    def is_coalesced(self) -> bool:
        """Whether the coordinates are known to be sorted, each once."""
        return self._coalesced

    def _nnz(self) -> int:
        return self._elements.shape[0]

    def _indices(self) -> Tensor:
        return self._places

    def _values(self) -> Tensor:
        return self._elements

    def indices(self) -> Tensor:
        """The coordinates, (sparse axes, N). Raises: RuntimeError unless it is coalesced."""
        self._require_coalesced("indices")
        return self._places

    def values(self) -> Tensor:
        """The values, (N, *dense sizes). Raises: RuntimeError unless it is coalesced."""
        self._require_coalesced("values")
        return self._elements

    def _require_coalesced(self, name: str) -> None:
        if not self._coalesced:
            raise RuntimeError(
                f"Cannot get {name} on an uncoalesced tensor, please call .coalesce() first, or _{name}()"
            )

    # --- another one --------------------------------------------------------------------------------------------------

    def _with(self, values: Tensor) -> "SparseTensor":
        return SparseTensor(self._places, values, self.shape, self._coalesced)

    def detach(self) -> "SparseTensor":
        """On the same memory, without history."""
        return self._with(self._elements.detach())

    def clone(self) -> "SparseTensor":
        """A copy."""
        return SparseTensor(self._places.clone(), self._elements.clone(), self.shape, self._coalesced)

    def to(self, *target: Any, **options: Any) -> "SparseTensor":
        """As `Tensor.to`: another dtype or device."""
        values = self._elements.to(*target, **options)
        return SparseTensor(self._places.to(values.device), values, self.shape, self._coalesced)

    def float(self) -> "SparseTensor":
        """In float32."""
        return self._with(self._elements.float())

    def double(self) -> "SparseTensor":
        """In float64."""
        return self._with(self._elements.double())

    def cpu(self) -> "SparseTensor":
        """In host memory."""
        return self.to("cpu")

    def cuda(self, *device: Any) -> "SparseTensor":
        """On a GPU."""
        values = self._elements.cuda(*device)
        return SparseTensor(self._places.to(values.device), values, self.shape, self._coalesced)

    def to_sparse(self) -> "SparseTensor":
        """Itself."""
        return self

    def to_dense(self) -> Tensor:
        """The Tensor with these elements, row-major."""
        sizes = self.shape[: self.sparse_dim()]
        table = self._elements.new_zeros(prod(sizes), *self._elements.shape[1:])
        return table.index_add(0, self._flat(), self._elements).reshape(self.shape)

    def _flat(self) -> Tensor:
        """The coordinates as numbers in row-major order, (N,)."""
        flat = self._places.new_zeros(self._nnz())
        for size, places in zip(self.shape, self._places, strict=False):
            flat = flat * size + places
        return flat

    def coalesce(self) -> "SparseTensor":
        """The same with sorted coordinates, each once, values of one place summed in their order."""
        if self._coalesced:
            return self
        flat, place = self._flat().unique(return_inverse=True)
        values = self._elements.new_zeros(flat.shape[0], *self._elements.shape[1:])
        rows = []
        remaining = flat
        for size in reversed(self.shape[: self.sparse_dim()]):
            rows.append(remaining % size)
            remaining = remaining // size
        places = self._places.new_zeros(self.sparse_dim(), flat.shape[0])
        for axis, row in enumerate(reversed(rows)):
            places[axis] = row
        return SparseTensor(places, values.index_add(0, place, self._elements), self.shape, True)

    def transpose(self, dim0: int, dim1: int) -> "SparseTensor":
        """Two sparse axes exchanged. Raises: NotImplementedError for a dense one."""
        axes = [*range(self.sparse_dim())]
        a, b = dim0 % self.ndim, dim1 % self.ndim
        if max(a, b) >= len(axes):
            raise NotImplementedError("transpose of a sparse tensor: expected two sparse axes; use to_dense()")
        axes[a], axes[b] = axes[b], axes[a]
        shape = (*(self.shape[axis] for axis in axes), *self.shape[len(axes) :])
        return SparseTensor(self._places[axes], self._elements, shape)

    def t(self) -> "SparseTensor":
        """The transposed matrix."""
        return self.transpose(0, 1)

    def zero_(self) -> "SparseTensor":
        """All elements zero: nothing is stored any more."""
        self._places, self._elements = self._places[:, :0], self._elements.detach()[:0]
        self._coalesced = True
        return self

    def requires_grad_(self, requires_grad: bool = True) -> "SparseTensor":
        """Raises: NotImplementedError where it is to become a leaf: its values can be one."""
        if requires_grad and not self.requires_grad:
            raise NotImplementedError(
                "a sparse tensor is no leaf here: make it of values that require grad, "
                "engine.sparse_coo_tensor(indices, values, shape)"
            )
        return self if requires_grad else self.detach()

    # --- what it computes ---------------------------------------------------------------------------------------------

    def mm(self, mat2: Tensor) -> Tensor:
        """Its product with a matrix or vector, dense; terms are summed in the order of the coordinates.

        Raises: NotImplementedError for a sparse factor, or for dense axes; RuntimeError for other dtypes or
        sizes.
        """
        if not isinstance(mat2, Tensor):
            raise NotImplementedError(
                f"mm of a sparse tensor: expected a dense Tensor, got {type(mat2).__name__}; use to_dense()"
            )
        if self.sparse_dim() != 2 or self.dense_dim() or mat2.ndim not in (1, 2):
            raise NotImplementedError(
                f"mm: expected a sparse matrix and a dense matrix or vector, got {list(self.shape)} with "
                f"{self.dense_dim()} dense axes and {list(mat2.shape)}; use to_dense()"
            )
        if self.dtype is not mat2.dtype:
            raise RuntimeError(
                f"mm: expected operands of one dtype, got {self.dtype} and {mat2.dtype}; convert one with .to()"
            )
        if self.shape[1] != mat2.shape[0]:
            raise RuntimeError(
                f"mm: mat1 and mat2 shapes cannot be multiplied ({list(self.shape)} and {list(mat2.shape)})"
            )
        rows, columns = self._places
        factors = self._elements if mat2.ndim == 1 else self._elements.unsqueeze(1)
        products = mat2.index_select(0, columns) * factors
        return mat2.new_zeros(self.shape[0], *mat2.shape[1:]).index_add(0, rows, products)

    mv = matmul = __matmul__ = mm

    def __rmatmul__(self, other: Tensor) -> Tensor:
        return self.t().mm(other.t()).t()

    def add(self, other: Any, *, alpha: Any = 1) -> Any:
        """`self + alpha * other`: sparse with a sparse tensor, dense with a dense one."""
        if isinstance(other, Tensor):
            return self.to_dense() + other * alpha
        if not isinstance(other, SparseTensor) or other.sparse_dim() != self.sparse_dim():
            raise TypeError(
                f"add: expected a Tensor or a sparse tensor with {self.sparse_dim()} sparse axes, got "
                f"{type(other).__name__}"
            )
        if self.shape != other.shape:
            raise RuntimeError(f"add: expected sparse tensors of one shape, got {self.shape} and {other.shape}")
        places, values = self._places, self._elements
        joined = places.new_zeros(places.shape[0], self._nnz() + other._nnz())
        joined[:, : self._nnz()], joined[:, self._nnz() :] = places, other._places
        both = values.new_zeros(joined.shape[1], *values.shape[1:])
        both[: self._nnz()], both[self._nnz() :] = values, other._elements * alpha
        return SparseTensor(joined, both, self.shape)

    def __add__(self, other: Any) -> Any:
        return self.add(other) if isinstance(other, Tensor | SparseTensor) else NotImplemented

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self.add(other, alpha=-1) if isinstance(other, Tensor | SparseTensor) else NotImplemented

    def __mul__(self, number: Any) -> "SparseTensor":
        return self._with(self._elements * number) if isinstance(number, int | float) else NotImplemented

    __rmul__ = __mul__

    def __truediv__(self, number: Any) -> "SparseTensor":
        return self._with(self._elements / number) if isinstance(number, int | float) else NotImplemented

    def __neg__(self) -> "SparseTensor":
        return self._with(-self._elements)

    def sum(self, dim: Any = None) -> Tensor:
        """The sum of all elements, or that over an axis; dense."""
        return self._elements.sum() if dim is None else self.to_dense().sum(dim)

    def __array_ufunc__(self, function: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """`array + self`, as gradients on their way are summed: in a new array, or in that of `out`."""
        others = [each for each in inputs if each is not self]
        if function is not np.add or method != "__call__" or len(others) != 1 or not isinstance(others[0], np.ndarray):
            return NotImplemented
        (target,) = options.get("out") or (others[0].copy(),)
        np.add.at(target, tuple(self._places.detach().numpy()), self._elements.detach().numpy())
        return target

    def _no_memory(self) -> NoReturn:
        raise TypeError("expected a dense Tensor, got a sparse one, which has no strided memory; use to_dense()")

    _array = property(_no_memory)
    _spec = property(_no_memory)

    def __repr__(self) -> str:
        return (
            f"tensor(indices={self._places!r},\n       values={self._elements!r},\n       size={tuple(self.shape)}, "
            f"nnz={self._nnz()}, layout={self.layout})"
        )
