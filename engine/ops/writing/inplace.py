"""Writing into memory that exists: `x.add_(y)`, `x.copy_(y)`, `x[...] = y`, `out=`. Every in-place operator is the
functional one plus `write`.

Under autograd an in-place write gives the tensor the node of the functional operator. When the tensor is a view, its
base's history is rewritten as `base = scatter_view(base, view)` (PyTorch calls the node CopySlices), and every view
of that base takes its history from the base anew.
"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np

from engine.autograd.modes import state
from engine.autograd.versions import CopyCounter
from engine.autograd.writes import check_history, mark_written
from engine.calls.dispatch import _mask, _record
from engine.calls.listening import KERNEL, call, heard
from engine.calls.namespaces import OPERATORS
from engine.calls.operands import Scalar
from engine.calls.operator import Operator, define
from engine.calls.plan import Plan
from engine.memory import backend, transfer
from engine.memory.guard import on_gpu_of
from engine.ops.shared.operands import operand, scaled
from engine.ops.shared.scalars import checked
from engine.ops.views.history import adopt_history
from engine.rules import iterator, layout, promotion
from engine.rules.spec import Spec, spec_of
from engine.tensor import Tensor


def check_writable(target: Tensor, name: str, *sources: Any, repeated: bool = False) -> None:
    """Raises RuntimeError where `target` must not be written.

    That is: while recording, a leaf that requires grad (or a view of one, or a restricted view) when it or a source
    requires grad; an inference tensor outside inference mode; the conjugate of a complex tensor; expanded memory,
    unless one value goes everywhere (`repeated`).
    """
    if state.grad_enabled and _any_requires_grad((target, *sources)):
        check_history(target, name)
    if target._meta is not None and target._meta.inference and not state.inference:
        raise RuntimeError(
            f"{name}: Inplace update to inference tensor outside InferenceMode is not allowed. "
            "You can make a clone to get a normal tensor before doing inplace update."
        )
    if type(target._counter) is CopyCounter:
        raise RuntimeError(
            f"{name}: this is the conjugate of a complex tensor (conj(), H, mH, adjoint()) or a view of it: in PyTorch "
            "it shares that tensor's memory, here it is a copy, and what is written would not reach the tensor. Write "
            "to the tensor itself, or to a copy: conj_physical(), resolve_conj() or clone()"
        )
    spec = target._spec
    if not (repeated or spec.dense) and layout.internal_overlap(spec.shape, spec.stride) == "yes":
        raise RuntimeError(
            f"{name}: unsupported operation: more than one element of the written-to tensor refers to a single memory "
            "location. Please clone() the tensor before performing the operation "
            f"(shape {list(target.shape)}, strides {spec.stride})"
        )


def _any_requires_grad(values: tuple[Any, ...]) -> bool:
    """`any(value.requires_grad for value in values)`, without a generator: 0.1 µs where that takes 0.6."""
    for value in values:  # noqa: SIM110
        if value._requires_grad or (value._base is not None and value.requires_grad):
            return True
    return False


def _shares_memory(value: Any, target: Tensor) -> bool:
    return isinstance(value, Tensor) and value._version_counter() is target._counter


def check_overlap(name: str, out: Tensor, inputs: tuple[Any, ...], full: bool = False) -> None:
    """Raises RuntimeError where `out` partially overlaps an input (with `full`: overlaps at all): elements would be
    read after they were written.
    """
    array = out._array
    if array is None:
        return
    for value in inputs:
        if isinstance(value, Tensor) and value._array is not None:
            # 0.2 µs, and mostly the end of it; looking up addresses takes 1.5
            if type(array) is type(value._array) is np.ndarray and not np.may_share_memory(array, value._array):
                continue
            if value is out:
                status = "full" if out._spec.numel else "no"
            else:
                mine = (backend.address(array), out._spec.shape, out._spec.stride, out._spec.dtype.itemsize)
                of = value._spec
                status = layout.overlap_status(
                    *mine, backend.address(value._array), of.shape, of.stride, of.dtype.itemsize
                )
            if status == "partial" or (full and status == "full"):
                raise RuntimeError(
                    f"{name}: unsupported operation: some elements of the input tensor and the written-to tensor "
                    f"refer to a single memory location. Please clone() the tensor before performing the operation. "
                    f"(input of shape {list(value.shape)}, strides {value.stride()}; written: {list(out.shape)}, "
                    f"strides {out.stride()})"
                )


def inplace(operator: Operator, target: Tensor, others: tuple[Any, ...], attributes: tuple[Any, ...] = ()) -> Tensor:
    """`target` becomes `operator(target, *others)`; returns it.

    Raises: RuntimeError when the result has another shape, a dtype of a higher category, or `target` must not be
    written.
    """
    name = f"{operator.name}_"
    check_writable(target, name, *others)
    check_overlap(name, target, others)
    inputs = (target, *others)
    key = (attributes, *(value._spec for value in inputs))
    plan = operator.plans.get(key) or operator.plan(key)
    out = plan.outs[0]
    if out is not target._spec and out.shape != target.shape:
        raise RuntimeError(
            f"{name}: output with shape {list(target.shape)} doesn't match the broadcast shape {list(out.shape)}"
        )
    if out is not target._spec and not promotion.can_cast(out.dtype, target.dtype):
        raise RuntimeError(f"{name}: result type {out.dtype} can't be cast to the desired output type {target.dtype}")
    if not (state.grad_enabled and operator.differentiable and _any_requires_grad(inputs)):
        write(plan, target, [value._array for value in inputs])
        target._bump_version(name)
        return target
    # What the derivative needs of the memory that is about to be overwritten is kept as a copy.
    kept, _ = plan.operator.keeps(_mask(plan.operator, inputs))
    sources = inputs
    if True in kept:
        sources = tuple(
            value.clone() if keep and _shares_memory(value, target) else value
            for keep, value in zip(kept, inputs, strict=False)
        )
    write(plan, target, [value._array for value in inputs])
    mark_written(target, name, True)
    _rebase(operator, plan, target, sources)
    return target


@heard
def write(plan: Plan, target: Tensor, arrays: list[Any]) -> None:
    """Runs a plan into the memory of `target`; a bare ufunc, or a kernel for that, writes there itself."""
    if target._array is None:
        return
    if plan.into is not None and target._spec is plan.out and not state.operator_listeners:
        with on_gpu_of(target._array) if backend.several_gpus else nullcontext():
            plan.into(*arrays, target._array)
        return
    run = partial(call, KERNEL, plan, plan.run) if state.operator_listeners else plan.run
    if target._spec.dtype is plan.outs[0].dtype and (
        type(run) is np.ufunc or (target.is_cuda and isinstance(run, plan.nd.xp.ufunc))
    ):
        run(*arrays, out=target._array)
    elif backend.several_gpus:
        with on_gpu_of(target._array):
            target._array[...] = run(*arrays)
    else:
        target._array[...] = run(*arrays)


def _rebase(operator: Operator, plan: Plan, target: Tensor, sources: tuple[Any, ...]) -> None:
    """Gives `target` (and, for a view, its base) the history of the write."""
    out = Tensor(target._array, target._spec)
    out._counter = target._version_counter()
    _record(operator, plan, sources, (out,), ())
    adopt_history(target, out)


@heard
def become(target: Tensor, written: Tensor, name: str) -> Tensor:
    """`target` gets the values and the history of `written`, which was computed out of place; returns it."""
    check_writable(target, name, written)
    if backend.several_gpus and target._array is not None:
        with on_gpu_of(target._array):
            target._array[...] = written._array
    elif target._array is not None:
        target._array[...] = written._array
    recorded = state.grad_enabled and (target.requires_grad or written.requires_grad)
    mark_written(target, name, recorded)
    if recorded:
        adopt_history(target, written)
    return target


# --- copy_, fill_, and the rest that is no functional operator --------------------------------------------------------


def _copy_rule(input: Spec, source: Spec) -> Spec:
    layout.broadcast_shapes(input.shape, source.shape)
    return (
        input.like(stride=input.stride)
        if iterator.plan((input.operand, source.operand)).shape == input.shape
        else input.like(shape=iterator.plan((input.operand, source.operand)).shape)
    )


COPY = define(
    "copy",
    rule=_copy_rule,
    forward=lambda xp, input, source: xp.broadcast_to(source, input.shape),
    backward=(lambda g, nd: nd.zeros_like(g), lambda g: g),
    inputs="input source",
    prepare=lambda xp, plan: lambda input, source: source,
)


def copy_(self: Tensor, source: Any, non_blocking: bool = False) -> Tensor:
    """Writes `source`, broadcast and cast, into this tensor's memory; recorded. `non_blocking`: see `to`."""
    value = operand(source, "copy_")
    check_writable(self, "copy_", value)
    if isinstance(value, Tensor):
        if value.device is not self.device:
            if _transferred(self, value, non_blocking):
                return _written(self, "copy_", Scalar(0))
            value = value.to(self.device, non_blocking=non_blocking and self.is_cuda)
        if not _expands_to(value.shape, self.shape):
            raise RuntimeError(
                f"copy_: the source's shape {list(value.shape)} does not broadcast to {list(self.shape)}"
            )
        check_overlap("copy_", self, (value,))
    array = value._array
    if self.dtype.category < 3 and value._spec.dtype.category == 3:
        array = array.real
    return _overwrite(self, array, "copy_", value)


def _transferred(target: Tensor, source: Tensor, non_blocking: bool) -> bool:
    """Whether this was a copy between a GPU and page-locked memory of the same dtype and layout, and it is under way or
    done; one that autograd records is none.
    """
    if target._array is None or source._array is None or target.is_cuda == source.is_cuda:
        return False
    if state.grad_enabled and (target.requires_grad or source.requires_grad):
        return False
    if not transfer.is_pinned(target._array if source.is_cuda else source._array):
        return False
    if target._spec.shape != source._spec.shape or not target._spec.dense:
        return False
    if not transfer.same_block(source._spec, target._spec):
        if not source.is_cuda or source.is_complex() != target.is_complex():
            return False
        spec = target._spec
        laid = backend.empty(spec_of(spec.shape, spec.stride, spec.dtype, source.device))  # converted on the GPU
        laid[...] = source._array
        transfer.copy_block(laid, target._array, wait=not non_blocking)
    else:
        transfer.copy_block(source._array, target._array, wait=not non_blocking)
    return True


def _expands_to(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    extra = len(target) - len(shape)
    return extra >= 0 and all(size in (1, target[extra + axis]) for axis, size in enumerate(shape))


def overwrite(target: Tensor, array: Any, name: str) -> Tensor:
    """Writes a raw array or number into the memory of `target`, whose history ends there: constants, random values."""
    check_writable(target, name, repeated=isinstance(array, int))
    return _overwrite(target, array, name, Scalar(0))


@heard
def _overwrite(target: Tensor, array: Any, name: str, source: Any) -> Tensor:
    if backend.several_gpus and target._array is not None:
        with on_gpu_of(target._array):
            target._array[...] = array
    elif target._array is not None:
        target._array[...] = array
    return _written(target, name, source)


def fill_by(target: Tensor, name: str, write: Callable[[Any], None]) -> Tensor:
    """`write(array)` puts values that depend on nothing into the raw array of `target`, whose history ends there."""
    check_writable(target, name)
    if target._array is not None:
        write(target._array)
    return _written(target, name, Scalar(0))


def _written(target: Tensor, name: str, source: Any) -> Tensor:
    recorded = state.grad_enabled and (target.requires_grad or source.requires_grad)
    mark_written(target, name, recorded)
    if recorded:
        key = ((), target._spec, source._spec)
        _rebase(COPY, COPY.plans.get(key) or COPY.plan(key), target, (target, source))
    return target


def fill_(self: Tensor, value: Any) -> Tensor:
    """Every element becomes `value` (a number or a 0-dim Tensor)."""
    if isinstance(value, Tensor) and value.ndim:
        raise RuntimeError(f"fill_ only supports 0-dimension value tensor but got tensor with {value.ndim} dimensions.")
    if isinstance(value, Tensor):
        return copy_(self, value)
    number = Scalar(checked("fill_", operand(value, "fill_")._array, self.dtype))
    check_writable(self, "fill_", number, repeated=True)
    return _overwrite(self, number._array, "fill_", number)


def zero_(self: Tensor) -> Tensor:
    """Every element becomes 0."""
    return overwrite(self, 0, "zero_")


TENSORS_ONLY = {  # whose other operand PyTorch does not take as a number
    *("atan2", "fmax", "fmin", "gcd", "hypot", "igamma", "igammac", "lcm", "logaddexp", "logaddexp2"),
    *("logical_and", "logical_or", "logical_xor", "maximum", "minimum", "nextafter"),
}


def functional_inplace(name: str) -> Any:
    """The method `x.<name>_(...)` of a pointwise operator."""
    operator = OPERATORS[name]

    def method(self: Tensor, *others: Any, alpha: Any = 1) -> Tensor:
        if alpha != 1:
            others = (scaled(f"{name}_", self, others[0], alpha), *others[1:])
        operands = tuple(operand(other, f"{name}_") for other in others)
        if len(operands) == 1 and name in TENSORS_ONLY and isinstance(operands[0], Scalar):
            raise TypeError(f"{name}_(): argument 'other' (position 1) must be Tensor, not {type(others[0]).__name__}")
        return inplace(operator, self, operands)

    method.__name__ = method.__qualname__ = f"{name}_"
    method.__doc__ = f"In-place {name}: `self` becomes {name}(self, ...)."
    return method
