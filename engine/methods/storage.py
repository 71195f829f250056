"""The memory of a tensor: pinned, shared, resized, exchanged."""

from typing import Any, NoReturn

from engine.autograd.modes import no_grad
from engine.memory import backend, blocks, transfer
from engine.ops.writing.inplace import check_writable
from engine.ops.writing.out import resized
from engine.rules import layout
from engine.rules.dims import shape_from
from engine.rules.layout import contiguous_format, contiguous_strides, preserve_format
from engine.tensor import Tensor


def pin_memory(self: Tensor, device: Any = None) -> Tensor:
    """In page-locked host memory, which GPUs copy from while the CPU goes on: itself where it is there, else a copy.

    Raises: RuntimeError without a GPU, and for a tensor that is not in host memory.
    """
    if not self.is_cpu:
        raise RuntimeError(f"cannot pin '{self.type()}' only dense CPU tensors can be pinned")
    try:
        backend.require_cupy()
    except RuntimeError as cause:
        raise RuntimeError(f"Cannot access accelerator device when none is available: {cause}") from cause
    if transfer.is_pinned(self._array):
        return self
    array = transfer.pinned_copy(self._array, self._spec)
    spec = self._spec if self._spec.dense else backend.spec_of_array(array)
    return Tensor(array, spec).requires_grad_(self.requires_grad and self.is_leaf)


def is_pinned(self: Tensor, device: Any = None) -> bool:
    """Whether this is page-locked host memory."""
    return self.is_cpu and transfer.is_pinned(self._array)


def record_stream(self: Tensor, stream: Any) -> None:
    """Says that a stream uses this memory, which was allocated on another one: once freed, it is given to nobody before
    the stream has come so far.

    Raises: RuntimeError for a tensor that is not on a GPU.
    """
    if not self.is_cuda:
        raise RuntimeError(f"record_stream: only memory of a GPU belongs to streams, this tensor is on {self.device}")
    blocks.record_stream(self._array, stream.raw)


def is_shared(self: Tensor) -> bool:
    """Whether other processes may look at this memory: False."""
    return False


def share_memory_(self: Tensor) -> NoReturn:
    """Raises NotImplementedError: each process has tensors of its own."""
    raise NotImplementedError(
        "share_memory_: tensors are not shared between processes; ddp.DistributedDataParallel keeps copies equal"
    )


def resize_(self: Tensor, *size: Any, memory_format: Any = preserve_format) -> Tensor:
    """Another size on the same storage, row-major (or in the memory format) from the first element on; elements are
    kept in the order in which they lie in memory. Where the storage is too small, larger memory takes its place, in
    which the further elements are undefined: other tensors on the storage keep the old memory. The same size changes
    nothing.

    Raises: RuntimeError for a tensor that requires grad.
    """
    if self.requires_grad:
        raise RuntimeError("cannot resize variables that require grad")
    shape = shape_from(size, "resize_")
    if shape == self.shape and memory_format is preserve_format:
        return self
    wanted = contiguous_format if memory_format is preserve_format else memory_format
    resized(self, self._spec.like(shape=shape, stride=layout.strides_for_format(shape, wanted)))
    self._bump_version("resize_")
    return self


def resize_as_(self: Tensor, the_template: Tensor) -> Tensor:
    """`resize_` to the size of another tensor."""
    return self.resize_(the_template.shape)


def set_(self: Tensor, source: Any = None, storage_offset: int = 0, size: Any = None, stride: Any = None) -> Tensor:
    """This very tensor on the memory of another one, as that lies or with an offset, a size and strides of its own;
    without a source it is empty.

    Raises: RuntimeError for another dtype or device, for a view, and for a tensor that autograd is recording.
    """
    given = self.new_empty(0) if source is None else source
    if not isinstance(given, Tensor):
        raise TypeError(f"set_(): argument 'source' must be Tensor, not {given.__class__.__name__}")
    if given.dtype is not self.dtype or given.device is not self.device:
        raise RuntimeError(
            f"set_: expected a source of {self.dtype} on {self.device}, got {given.dtype} on {given.device}; convert "
            "it with .to()"
        )
    check_writable(self, "set_", given, repeated=True)
    if self._base is not None:
        raise RuntimeError("set_: this tensor is a view, whose memory is its base's; call .detach() on it first")
    with no_grad():
        if size is not None:
            steps = contiguous_strides(tuple(size)) if stride is None else stride
            given = given.as_strided(size, steps, storage_offset)
        elif storage_offset:
            raise RuntimeError("set_: an offset needs a size, and strides unless the elements lie one after the other")
    self._bump_version("set_")
    self._take_memory(given._array, given._spec)
    return self


def is_set_to(self: Tensor, tensor: Tensor) -> bool:
    """Whether both look at the same memory in the same way."""
    return self.data_ptr() == tensor.data_ptr() and self._spec is tensor._spec
