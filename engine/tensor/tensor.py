"""Tensor: a strided array, the Spec that describes it, and autograd metadata made on demand.

Operators are not here: `engine.methods.table` lists them from `engine.ops`. A view shares its base's memory and
version counter.
"""

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.autograd import saved
from engine.autograd.modes import open_blocks, state
from engine.autograd.node import Edge, Node, RemovableHandle
from engine.autograd.saved import SavedTensor, save
from engine.autograd.versions import VersionCounter
from engine.calls.listening import heard, tell, wanted
from engine.memory import backend
from engine.rules import layout
from engine.rules.device import CPU, device
from engine.rules.dims import wrap_dim
from engine.rules.dtypes import dtype
from engine.rules.layout import MemoryFormat, contiguous_format
from engine.rules.spec import Size, Spec, spec_of

creation = threading.Lock()  # two threads may use one leaf for the first time at once


class AutogradMeta:
    """What only some tensors have: a gradient, hooks, the sink node of a leaf."""

    __slots__ = (
        "accumulator",
        "breach",
        "destination",
        "destination_of",
        "grad",
        "inference",
        "listener",
        "name",
        "post_accumulate",
        "retains_grad",
    )

    def __init__(self) -> None:
        self.grad: Any = None  # a Tensor, a SparseTensor or None
        self.accumulator: Edge | None = None  # (AccumulateGrad node, 0); the node refers back weakly
        self.post_accumulate: OrderedDict[int, Callable[[Tensor], None]] | None = None
        self.retains_grad = False
        self.inference = False
        # For whoever reduces gradients (`engine.autograd.graph`): where the first gradient is to be written, and who is
        # told that one was accumulated.
        self.destination: Tensor | None = None
        self.destination_of: Spec | None = None  # what this tensor was when it was given the destination
        self.listener: Callable[[bool, Tensor | None], None] | None = None
        # For the layout report (`engine.reports.layout_report`).
        self.breach: Any = None
        self.name: str | None = None


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


if TYPE_CHECKING:
    from engine.methods.table import Methods
else:
    Methods = object  # `engine.methods` attaches them


class Tensor(Methods):
    """An n-dimensional array with a gradient history. Made by `engine.tensor`, `engine.zeros`, `engine.from_numpy` and
    other factories; `Tensor(2, 3)` and `Tensor([1.0, 2.0])` are PyTorch's older ways.

    The engine itself gives two arguments: an array and the Spec that describes it.
    """

    __slots__ = (
        "__dict__",
        "__weakref__",
        "_array",
        "_base",
        "_counter",
        "_grad_fn",
        "_meta",
        "_output_nr",
        "_requires_grad",
        "_spec",
        "_view_version",
    )
    _array: Any
    _spec: Spec
    _output_nr: int  # set where there is a _grad_fn
    _view_version: int  # set where there is a _base (`engine.autograd.versions`)

    def __init__(self, array: Any = None, spec: Any = None, *sizes: int) -> None:
        """See the class."""
        if spec.__class__ is not Spec:  # 15 ns of about 200
            given = () if array is None else (array,) if spec is None else (array, spec, *sizes)
            made = self._constructed(given)
            array, spec = made._array, made._spec
        self._array = array
        self._spec = spec
        self._requires_grad = False
        self._grad_fn: Node | None = None
        self._meta: AutogradMeta | None = None
        self._counter: VersionCounter | None = None
        self._base: Tensor | None = None

    # --- what it is ---------------------------------------------------------------------------------------------------

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

    # --- history ------------------------------------------------------------------------------------------------------

    def _autograd_meta(self) -> AutogradMeta:
        meta = self._meta
        if meta is None:
            with creation:
                meta = self._meta
                if meta is None:
                    meta = self._meta = AutogradMeta()
        return meta

    @property
    def requires_grad(self) -> bool:
        """Whether operations on this tensor are recorded. Only a leaf of floating point or complex dtype can be
        switched.
        """
        return self._requires_grad or (self._base is not None and self._base._requires_grad)

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self.requires_grad_(value)

    @heard
    def requires_grad_(self, requires_grad: bool = True) -> "Tensor":
        """Switches recording for a leaf, in place; returns it.

        Raises: RuntimeError for a non-leaf being switched off, and for integer or bool dtypes.
        """
        if self.grad_fn is not None:
            if requires_grad:
                return self
            raise RuntimeError(
                "you can only change requires_grad flags of leaf variables; to stop the gradient here use x.detach()"
            )
        if requires_grad and not (self.is_floating_point() or self.is_complex()):
            raise RuntimeError(
                f"only Tensors of floating point and complex dtype can require gradients, got {self.dtype}"
            )
        if requires_grad and self.is_inference() and not state.inference:
            raise RuntimeError(
                "Setting requires_grad=True on inference tensor outside InferenceMode is not allowed; clone it first"
            )
        self._requires_grad = bool(requires_grad)
        return self

    @property
    def grad_fn(self) -> Node | None:
        """The node that made this tensor (None for a leaf).

        A view whose base was written in place takes its history from the base anew.
        """
        base = self._base
        if base is not None and self._view_version != self._counter.value:  # type: ignore[union-attr]
            self._refresh(base)
        return self._grad_fn

    @property
    def output_nr(self) -> int:
        """Which output of `grad_fn` this is."""
        return self._output_nr if self._grad_fn is not None else 0

    @property
    def is_leaf(self) -> bool:
        """Whether no recorded operation made this tensor."""
        return self.grad_fn is None

    def gradient_edge(self) -> Edge:
        """Where a gradient of this tensor goes: (grad_fn, output_nr), or the AccumulateGrad node of a leaf."""
        fn = self._grad_fn if self._base is None else self.grad_fn
        if fn is not None:
            edge: Any = (fn, self._output_nr)
        else:
            meta = self._meta
            edge = None if meta is None else meta.accumulator
            if edge is None:
                edge = self._new_accumulator()
        return edge

    def _set_gradient_edge(self, edge: Edge) -> None:
        """Makes this tensor a stand-in for the one whose gradient goes along `edge`."""
        self._requires_grad = True
        if hasattr(edge[0], "variable"):
            self._autograd_meta().accumulator = edge
        else:
            self._grad_fn, self._output_nr = edge

    def _save(self, output_nr: int = -1) -> SavedTensor:
        return save(self, output_nr)

    def _mark_inference(self) -> None:
        self._autograd_meta().inference = True

    def is_inference(self) -> bool:
        """Whether the tensor was made inside `inference_mode`."""
        return self._meta is not None and self._meta.inference

    @property
    def _version(self) -> int:
        return 0 if self._counter is None else self._counter.value

    def _version_counter(self) -> VersionCounter:
        counter = self._counter
        if counter is None:
            counter = self._counter = VersionCounter()
        return counter

    @heard
    def _bump_version(self, writer: str = "") -> None:
        """Counts one in-place write by the operator `writer`."""
        counter = self._version_counter()
        counter.value += 1
        counter.last_writer = writer

    def _is_view(self) -> bool:
        return self._base is not None

    @property
    def grad(self) -> "Tensor | None":
        """The accumulated gradient of a leaf (or of a tensor with `retain_grad`)."""
        if open_blocks.open and wanted(_GRAD.fget):
            return tell(_GRAD.fget, self)
        meta = self._meta
        if meta is None:
            if self._grad_fn is not None:
                _warn_non_leaf_grad()
            return None
        if meta.grad is None and self._grad_fn is not None and not meta.retains_grad:
            _warn_non_leaf_grad()
        return meta.grad

    @grad.setter
    def grad(self, value: "Tensor | None") -> None:
        if open_blocks.open and wanted(_GRAD.fset):
            tell(_GRAD.fset, self, value)
            return
        if value is not None:
            if not isinstance(value, Tensor) and not getattr(value, "is_sparse", False):
                raise TypeError(f"assigned grad expected to be a Tensor or None but got {type(value).__name__}")
            if value is self:
                raise RuntimeError("can't assign a Tensor as its own grad")
            if value.shape != self.shape:
                raise RuntimeError(
                    f"assigned grad has data of a different size: expected {list(self.shape)}, got {list(value.shape)}"
                )
            if value.dtype is not self.dtype:
                raise RuntimeError(
                    f"assigned grad has data of a different type: expected {self.dtype}, got {value.dtype}; convert "
                    f"it with .to()"
                )
            if value.device is not self.device:
                raise RuntimeError(
                    f"assigned grad has data located on a different device: expected {self.device}, got {value.device}"
                )
        self._autograd_meta().grad = value

    @grad.deleter
    def grad(self) -> None:
        self._autograd_meta().grad = None

    def retain_grad(self) -> None:
        """Keeps the gradient of this non-leaf in `.grad`, too.

        Raises: RuntimeError when the tensor does not require grad.
        """
        if not self.requires_grad:
            raise RuntimeError("can't retain_grad on a Tensor that has requires_grad=False")
        fn = self.grad_fn
        if fn is None:
            return
        meta = self._autograd_meta()
        meta.retains_grad = True
        itself = weakref.ref(self)

        def keep(gradient: Tensor) -> None:
            tensor = itself()
            if tensor is not None:
                kept = tensor._autograd_meta()
                kept.grad = (
                    gradient.clone(memory_format=contiguous_format) if kept.grad is None else kept.grad + gradient
                )

        fn.hooks_of(self._output_nr).retain = keep

    @property
    def retains_grad(self) -> bool:
        """Whether `retain_grad` was called on this non-leaf."""
        return self._meta is not None and self._meta.retains_grad

    def register_hook(self, hook: Callable[["Tensor"], "Tensor | None"]) -> RemovableHandle:
        """`hook(grad)` runs once per backward with the summed gradient; what it returns (if not None) replaces it.

        Raises: RuntimeError when the tensor does not require grad.
        """
        if not self.requires_grad:
            raise RuntimeError("cannot register a hook on a tensor that doesn't require gradient")
        node, number = self.gradient_edge()
        return RemovableHandle(node.hooks_of(number).hooks, hook)

    def register_post_accumulate_grad_hook(self, hook: Callable[["Tensor"], None]) -> RemovableHandle:
        """`hook(tensor)` runs after a gradient has been accumulated into a leaf.

        Raises: RuntimeError for non-leaves and tensors that do not require grad.
        """
        if not self.requires_grad:
            raise RuntimeError("cannot register a hook on a tensor that doesn't require gradient")
        if self.grad_fn is not None:
            raise RuntimeError("post accumulate grad hooks cannot be registered on non-leaf tensors")
        meta = self._autograd_meta()
        if meta.post_accumulate is None:
            meta.post_accumulate = OrderedDict()
        return RemovableHandle(meta.post_accumulate, hook)

    def detach(self) -> "Tensor":
        """The same memory and version counter without history."""
        alias = Tensor(self._array, self._spec)
        alias._counter = self._version_counter()
        if self._meta is not None and self._meta.inference:
            alias._mark_inference()
        return alias

    def detach_(self) -> "Tensor":
        """Cuts this tensor off its history, in place.

        Raises: RuntimeError for a view, whose history belongs to its base (a DDP bucket view, say).
        """
        if self._base is not None:
            raise RuntimeError(
                "can't detach views in-place: use detach() instead. If this is a .grad that looks into a DDP bucket, "
                "zero_grad() handles it; do not call detach_() on it yourself"
            )
        self._requires_grad, self._grad_fn = False, None
        return self

    @property
    @heard
    def data(self) -> "Tensor":
        """The same memory without history, and with a version counter of its own. Assigning swaps the memory."""
        return Tensor(self._array, self._spec)

    @data.setter
    @heard
    def data(self, value: "Tensor") -> None:
        if not isinstance(value, Tensor):
            raise TypeError(f"Tensor.data: expected a Tensor, got {type(value).__name__}")
        if self._requires_grad and value.dtype.category < 2:
            raise RuntimeError(
                "data set to a tensor that requires gradients must be floating point or complex dtype, got "
                f"{value.dtype}; convert it with .to(), or call requires_grad_(False) first"
            )
        self._array, self._spec = value._array, value._spec

    # --- values -------------------------------------------------------------------------------------------------------

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

    def __format__(self, specification: str) -> str:
        """A 0-d tensor is formatted as its number."""
        if self._spec.ndim or self.is_meta or not (specification or type(self) is Tensor):
            return object.__format__(self, specification)
        return format(self.item(), specification)

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
        return iter(self.unbind(0))

    def __reduce_ex__(self, protocol: Any) -> Any:
        """For pickle. Raises: RuntimeError for a tensor with a history."""
        if self.grad_fn is not None:
            raise RuntimeError("only leaf Tensors can be pickled; call .detach() first")
        return (
            _rebuild,
            (
                type(self),
                np.ascontiguousarray(self.cpu()._array),
                self._spec.shape,
                self._spec.stride,
                self.dtype,
                self._requires_grad,
                self.__dict__,
                str(self.device),
            ),
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> "Tensor":
        """A leaf with memory of its own. Raises: RuntimeError for a tensor with a history."""
        if id(self) in memo:
            return memo[id(self)]
        if self.grad_fn is not None:
            raise RuntimeError(
                "only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol; call "
                ".detach() first"
            )
        copy = type(self).__new__(type(self))
        fresh = self.detach().clone()
        Tensor.__init__(copy, fresh._array, fresh._spec)
        copy._requires_grad = self._requires_grad
        if self._meta is not None and self._meta.grad is not None:
            copy.grad = self._meta.grad.__deepcopy__(memo)
        memo[id(self)] = copy
        for name, value in self.__dict__.items():
            from copy import deepcopy

            copy.__dict__[name] = deepcopy(value, memo)
        return copy


saved.tensor_type = Tensor


_GRAD: Any = Tensor.__dict__["grad"]


def _warn_non_leaf_grad() -> None:
    import warnings

    warnings.warn(
        "The .grad attribute of a Tensor that is not a leaf Tensor is being accessed. It is not populated by "
        "backward(); "
        "call .retain_grad() on the tensor before backward() if you want it.",
        UserWarning,
        stacklevel=3,
    )


def _rebuild(
    kind: type[Tensor],
    array: np.ndarray,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    of: dtype,
    requires_grad: bool,
    extra: dict[str, Any],
    where: str = "cpu",
) -> Tensor:
    """Unpickles a tensor in the strides it had (row-major where those were not dense), on the device it was on."""
    spec = spec_of(shape, layout.preserve_strides(tuple(shape), stride), of)
    memory = backend.empty(spec)
    memory[...] = array
    if where != "cpu":
        there = Tensor(memory, spec).to(where)
        memory, spec = there._array, there._spec
    tensor = kind.__new__(kind)
    Tensor.__init__(tensor, memory, spec)
    tensor._requires_grad = requires_grad
    tensor.__dict__.update(extra)
    return tensor


def array_of(tensor: Tensor) -> Any:
    """The NumPy or CuPy array on the memory of `tensor`, with its shape, strides and dtype; None on "meta".

    Unlike `tensor.numpy()` it is given out whatever the device, and of a tensor that requires grad, too. Neither
    autograd nor the version counter hears of what is written there; `engine.autograd.graph.increment_version` says it.
    """
    return tensor._array
