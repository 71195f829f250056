"""Gradients on their way between nodes: made to fit the input they belong to, summed, shown to users as Tensors, and
dropped by them.

They travel as raw arrays; under create_graph as Tensors, and what is done to them is recorded.
"""

import sys
from collections.abc import Iterable, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any

import numpy as np

from engine.autograd.modes import open_blocks
from engine.autograd.node import Edge, Node
from engine.calls.listening import heard
from engine.memory import backend
from engine.rules.spec import Spec
from engine.tensor import Tensor
from engine.tensor.sparse import SparseTensor


def as_tensor(value: Any, like: Spec) -> Any:
    """A raw gradient as a Tensor on the same memory, for hooks and Functions; None and sparse ones as they are."""
    if value is None or isinstance(value, Tensor | SparseTensor):
        return value
    if isinstance(value, backend.SCALAR):
        value = np.asarray(value)
    if value.strides and min(value.strides) < 0:  # a rule may return a flipped view; no Tensor has negative strides
        value = value.copy()
    return Tensor(value, backend.spec_of_array(value, like.device))


gradient_of = attrgetter("_meta.grad")
"""`.grad` of a leaf that had one or is listened to; without the attribute's hooks and hints, and in C."""


def gradients_of(leaves: Sequence[Tensor]) -> list[Any]:
    """`.grad` of each of these tensors, which an optimizer steps."""
    if not open_blocks.open:  # nobody listens to `grad`: 1.0 µs for 48, 3.4 through it, 2.6 by an attrgetter
        try:
            return [leaf._meta.grad for leaf in leaves]  # type: ignore[union-attr]
        except AttributeError:  # of one that never had a gradient
            pass
    return [leaf.grad for leaf in leaves]


def drop_gradients(leaves: Iterable[Tensor], set_to_none: bool) -> None:
    """Forgets the gradients of tensors, or detaches and zeroes them in place."""
    if set_to_none and not open_blocks.open:  # nobody listens to `grad`: 0.6 µs for 18, 2.8 through it
        for leaf in leaves:
            if leaf._meta is not None:
                leaf._meta.grad = None
        return
    for leaf in leaves:
        gradient = leaf.grad
        if gradient is None:
            continue
        if set_to_none:
            leaf.grad = None
        else:
            gradient.detach_() if gradient.grad_fn is not None else gradient.requires_grad_(False)
            gradient.zero_()


# --- made to fit ------------------------------------------------------------------------------------------------------


@heard
def fit(node: Node, results: Sequence[Any], edge: Edge, gradient: Any, spec: Spec, recorded: bool) -> Any:
    """One of a node's results, which goes along an edge, as a gradient that looks like the input it belongs to:
    broadcasting undone, dtype cast. The only place that does so.

    Raises: RuntimeError naming the node when the input's shape does not broadcast to the gradient's; TypeError for what
    is no gradient.
    """
    if recorded:
        return _fit_tensor(node, results, edge, gradient, spec)
    if gradient.__class__ is SparseTensor:
        return gradient
    if gradient.shape != spec.shape:
        axes = _axes_to_sum(gradient.shape, spec.shape)
        if axes is None:
            raise _misfit(node, results, edge, gradient, spec)
        # keepdims leaves the strides of a row-major sum, so that the layout contract is met without another copy
        gradient = gradient.sum(axis=axes, keepdims=True).reshape(spec.shape)
    if gradient.dtype != spec.dtype.numpy:
        if spec.dtype.category < 3 and gradient.dtype.kind == "c":
            gradient = gradient.real
        gradient = gradient.astype(spec.dtype.numpy)
    return gradient


def _fit_tensor(node: Node, results: Sequence[Any], edge: Edge, gradient: Any, spec: Spec) -> Tensor:
    if not isinstance(gradient, Tensor):
        raise TypeError(
            f"Function {node.name()} returned a gradient of type {type(gradient).__name__} at index "
            f"{_position(node, results, edge, gradient)}; expected a Tensor or None"
        )
    if gradient.shape != spec.shape:
        axes = _axes_to_sum(gradient.shape, spec.shape)
        if axes is None:
            raise _misfit(node, results, edge, gradient, spec)
        gradient = gradient.sum(axes, True).reshape(spec.shape)
    if gradient.dtype is not spec.dtype:
        if gradient.is_complex() and not spec.dtype.is_complex:
            gradient = gradient.real
        gradient = gradient.to(spec.dtype)
    return gradient


@lru_cache(4096)
def _axes_to_sum(given: tuple[int, ...], expected: tuple[int, ...]) -> tuple[int, ...] | None:
    """The axes of `given` to sum so that it becomes `expected`: leading ones, and those of size 1 in `expected`. None
    where that is not all.
    """
    extra = len(given) - len(expected)
    if extra < 0:
        return None
    kept = tuple(extra + axis for axis, size in enumerate(expected) if size == 1 and given[extra + axis] != 1)
    if any(size != given[extra + axis] and extra + axis not in kept for axis, size in enumerate(expected)):
        return None
    return (*range(extra), *kept)


def _misfit(node: Node, results: Sequence[Any], edge: Edge, gradient: Any, spec: Spec) -> RuntimeError:
    return RuntimeError(
        f"Function {node.name()} returned an invalid gradient at index {_position(node, results, edge, gradient)} - "
        f"got {list(gradient.shape)} but expected shape compatible with {list(spec.shape)}"
    )


def _position(node: Node, results: Sequence[Any], edge: Edge, gradient: Any) -> int:
    """Which of its results a node sends along an edge."""
    return next(
        place
        for place, (other, result) in enumerate(zip(node.next_edges, results, strict=False))
        if other is edge and result is gradient
    )


# --- summed -----------------------------------------------------------------------------------------------------------


@heard
def add_into(buffer: list[Any], slot: int, gradient: Any, recorded: bool) -> None:
    """Adds a gradient to the one that waits in the buffer: in its memory where nobody else can see that, else in new
    memory.
    """
    held = buffer[slot]
    is_array = type(held) is np.ndarray or backend.is_on_gpu(held)
    if is_array and not recorded and sys.getrefcount(held) <= UNSHARED and owns_memory(held):
        held += gradient
    else:
        buffer[slot] = held + gradient


def owns_memory(array: Any) -> bool:
    """Whether no other array or tensor looks into the memory of `array`, which itself only its caller holds."""
    base = array.base
    if type(array) is not np.ndarray:
        return _owns_device_memory(array, base)
    if base is None:
        return True
    if type(base) is not np.ndarray or base.base is not None or not array.flags.writeable:
        return False
    del base
    return _references_of_base(array) <= _UNSHARED_BASE


def _owns_device_memory(array: Any, base: Any) -> bool:
    """The same of CuPy's, each of which has a pointer of its own to the memory. A view made from a pointer has no base;
    one that repeats elements may be written to there, and must not be.
    """
    if 0 in array.strides and any(
        step == 0 and size > 1 for size, step in zip(array.shape, array.strides, strict=True)
    ):
        return False
    if base is None:
        return sys.getrefcount(array.data.mem) <= _UNSHARED_MEMORY
    del base  # one more reference is the caller's
    return sys.getrefcount(array.data.mem) <= _UNSHARED_MEMORY + 1 and _references_of_base(array) <= _UNSHARED_BASE + 1


def _references_of_base(array: Any) -> int:
    base = array.base
    return sys.getrefcount(base)


def _references_of_held(buffer: list[Any], slot: int, gradient: Any, recorded: bool) -> int:
    """What `sys.getrefcount` says, called as `add_into` calls it, of an array that only the buffer holds."""
    held = buffer[slot]
    return sys.getrefcount(held) if not recorded and type(held) is np.ndarray else 0


def _references_of_sole_base() -> int:
    """The same for an array that only one view refers to."""
    view = np.empty(2)[:1]
    return _references_of_base(view)


class _Pointer:
    """As CuPy's MemoryPointer, which each array has its own of, refers to the memory."""

    __slots__ = ("mem",)

    def __init__(self) -> None:
        self.mem = object()


UNSHARED = _references_of_held([np.empty(1)], 0, None, False)
_UNSHARED_BASE = _references_of_sole_base()
_pointer = _Pointer()
_UNSHARED_MEMORY = sys.getrefcount(_pointer.mem)
