"""What a tensor is: shape, strides, dtype, device, place in memory, all of it read from its Spec and its array."""

from typing import Any

from engine.memory import backend
from engine.rules import layout
from engine.rules.device import CPU, device
from engine.rules.dims import wrap_dim
from engine.rules.dtypes import dtype
from engine.rules.layout import MemoryFormat, contiguous_format
from engine.rules.spec import Size, Spec


class Storage:
    """The block of memory a tensor looks into."""

    def __init__(self, owner: Any) -> None:
        self._owner = owner

    def data_ptr(self) -> int:
        """Address in bytes of the start of the block."""
        return backend.address(self._owner)

    def nbytes(self) -> int:
        """Size of the block in bytes."""
        return int(self._owner.nbytes)

    size = __len__ = nbytes


class Described:
    """The part of Tensor that says what it is."""

    __slots__ = ()
    _array: Any
    _spec: Spec

    @property
    def shape(self) -> Size:
        """Sizes of the axes."""
        return self._spec.shape

    @property
    def dtype(self) -> dtype:
        """Element type."""
        return self._spec.dtype

    @property
    def device(self) -> device:
        """Where the memory is."""
        return self._spec.device

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self._spec.ndim

    def dim(self) -> int:
        """Number of axes."""
        return self._spec.ndim

    ndimension = dim

    @property
    def layout(self) -> str:
        """Always "engine.strided"."""
        return "engine.strided"

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self._spec.dtype.itemsize

    def element_size(self) -> int:
        """Bytes of one element."""
        return self._spec.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self._spec.numel * self._spec.dtype.itemsize

    def size(self, dim: int | None = None) -> Any:
        """The shape, or the size of one axis."""
        return self._spec.shape if dim is None else self._spec.shape[wrap_dim(dim, self._spec.ndim)]

    def numel(self) -> int:
        """Number of elements."""
        return self._spec.numel

    nelement = numel

    def stride(self, dim: int | None = None) -> Any:
        """Strides in elements, or that of one axis."""
        return self._spec.stride if dim is None else self._spec.stride[wrap_dim(dim, self._spec.ndim)]

    def storage_offset(self) -> int:
        """Elements between the start of the storage and the first element."""
        return (
            backend.address(self._array) - backend.address(backend.storage(self._array))
        ) // self._spec.dtype.itemsize

    def data_ptr(self) -> int:
        """Address in bytes of the first element (0 without elements, as in PyTorch)."""
        return backend.address(self._array) if self._spec.numel else 0

    def untyped_storage(self) -> Storage:
        """The memory block this tensor looks into."""
        return Storage(backend.storage(self._array))

    def is_contiguous(self, memory_format: MemoryFormat = contiguous_format) -> bool:
        """Whether the elements lie in memory in the order of the format."""
        return (
            self._spec.contiguous
            if memory_format is contiguous_format
            else layout.is_contiguous(self.shape, self._spec.stride, memory_format)
        )

    def is_non_overlapping_and_dense(self) -> bool:
        """Whether the elements fill one block of memory, each address once."""
        return self._spec.dense

    def is_floating_point(self) -> bool:
        """Whether the dtype is a floating point type."""
        return self._spec.dtype.is_floating_point

    def is_complex(self) -> bool:
        """Whether the dtype is complex."""
        return self._spec.dtype.is_complex

    @property
    def is_cuda(self) -> bool:
        """Whether the memory is on a GPU."""
        return self._spec.device.type == "cuda"

    @property
    def is_cpu(self) -> bool:
        """Whether the memory is host memory."""
        return self._spec.device is CPU

    @property
    def is_meta(self) -> bool:
        """Whether there is a shape and no memory."""
        return self._spec.device.type == "meta"

    is_sparse = is_quantized = is_nested = is_mps = is_xpu = False
