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
from engine.rules.dtypes import dtype
from engine.rules.layout import contiguous_format
from engine.rules.spec import Spec, spec_of
from engine.tensor.exchanged import exchanged
from engine.tensor.meta import AutogradMeta
from engine.tensor.values import Values

creation = threading.Lock()  # two threads may use one leaf for the first time at once


if TYPE_CHECKING:
    from engine.methods.table import Methods
else:
    Methods = object  # `engine.methods` attaches them


class Tensor(Values, Methods):
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
        self._take_memory(value._array, value._spec)

    def _take_memory(self, array: Any, spec: Spec) -> None:
        """Other memory, or the same laid out otherwise, from now on."""
        self._array, self._spec = array, spec
        exchanged.last = object()

    # --- copies ---

    def __format__(self, specification: str) -> str:
        """A 0-d tensor is formatted as its number."""
        if self._spec.ndim or self.is_meta or not (specification or type(self) is Tensor):
            return object.__format__(self, specification)
        return format(self.item(), specification)

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
