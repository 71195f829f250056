"""Methods of Tensor about its memory (pinned, shared, resized), and further names of methods in place."""

import math
from typing import Any, NoReturn

from engine import backend, transfer
from engine.autograd.modes import no_grad
from engine.layout import contiguous_strides
from engine.methods import method
from engine.ops import factories
from engine.ops.as_strided import as_strided
from engine.ops.inplace import check_writable
from engine.ops.view_history import become_view
from engine.ops.views import transpose
from engine.promotion import can_cast
from engine.tensor import Tensor


@method
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


@method
def is_pinned(self: Tensor, device: Any = None) -> bool:
    """Whether this is page-locked host memory."""
    return self.is_cpu and transfer.is_pinned(self._array)


@method
def record_stream(self: Tensor, stream: Any) -> None:
    """Says that a stream uses this memory, which was allocated on another one: once freed, it is given to nobody before
    the stream has come so far.

    Raises: RuntimeError for a tensor that is not on a GPU.
    """
    if not self.is_cuda:
        raise RuntimeError(f"record_stream: only memory of a GPU belongs to streams, this tensor is on {self.device}")
    from engine.cuda.memory import record_stream

    record_stream(self._array, stream.raw)


@method
def is_shared(self: Tensor) -> bool:
    """Whether other processes may look at this memory: False."""
    return False


@method
def share_memory_(self: Tensor) -> NoReturn:
    """Raises NotImplementedError: each process has tensors of its own."""
    raise NotImplementedError(
        "share_memory_: tensors are not shared between processes; ddp.DistributedDataParallel keeps copies equal"
    )


@method
def new(self: Tensor, *arguments: Any) -> Tensor:
    """The older form of `new_empty` (sizes) and `new_tensor` (data)."""
    from engine.legacy import construct

    return construct(arguments, self.dtype).to(self.device)


@method
def resize_as_(self: Tensor, the_template: Tensor) -> Tensor:
    """`resize_` to the size of another tensor."""
    return self.resize_(the_template.shape)


@method
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
    self._array, self._spec = given._array, given._spec
    return self


@method
def as_strided_(self: Tensor, size: Any, stride: Any, storage_offset: int | None = None) -> Tensor:
    """This very tensor with other sizes, strides and offset into its storage."""
    return become_view(self, as_strided, size, stride, storage_offset)


@method
def to_dense(self: Tensor, dtype: Any = None, *, masked_grad: bool = True) -> Tensor:
    """As it is, in `dtype` where one is given: every tensor is dense."""
    return self if dtype is None else self.to(dtype)


@method
def swapaxes_(self: Tensor, axis0: int, axis1: int) -> Tensor:
    """This very tensor with two axes exchanged."""
    return become_view(self, transpose, axis0, axis1)


@method
def subtract_(self: Tensor, other: Any, *, alpha: float = 1) -> Tensor:
    """In-place sub."""
    return self.sub_(other if alpha == 1 else other * alpha)


@method
def log_normal_(self: Tensor, mean: float = 1, std: float = 2, *, generator: Any = None) -> Tensor:
    """Fills with exp of draws from N(mean, std²). Raises: RuntimeError for a std that is not above 0."""
    if not std > 0:
        raise RuntimeError(f"log_normal_ expects std > 0.0, but found std={std}")
    return self.normal_(mean, std, generator=generator).exp_()


@method
def geometric_(self: Tensor, p: float, *, generator: Any = None) -> Tensor:
    """Fills with numbers of trials until one succeeds, each with probability p."""
    if not 0 < p < 1:
        raise RuntimeError(f"geometric_ expects p to be in (0, 1), but got p={p}")
    uniform = factories.empty(self.shape, device=self.device).uniform_(0, 1, generator=generator)
    return self.copy_(((1 - uniform).log() / math.log1p(-p)).ceil().clamp(min=1))


_div_ = vars(Tensor)["div_"]


@method
def div_(self: Tensor, other: Any, *, rounding_mode: str | None = None) -> Tensor:
    """In-place div."""
    if rounding_mode is None:
        return _div_(self, other)
    # the quotient must not keep the memory that is about to be overwritten
    source = self.clone() if self.requires_grad else self
    quotient = source.div(other, rounding_mode=rounding_mode)
    if not can_cast(quotient.dtype, self.dtype):
        raise RuntimeError(
            f"div_: result type {quotient.dtype} can't be cast to the desired output type {self.dtype}; div() returns "
            "a new tensor"
        )
    return self.copy_(quotient)


for _alias, _name in {"swapdims_": "swapaxes_", "divide_": "div_", "true_divide_": "div_"}.items():
    setattr(Tensor, _alias, getattr(Tensor, _name))
