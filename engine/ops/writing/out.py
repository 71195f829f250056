"""`out=`: results written into tensors that exist.

A result of another shape makes `out` that shape, in the layout the result has, with a warning if it had elements; its
own memory is used when that is large enough. An `out` of the right shape keeps its strides. Writing is refused for
expanded memory, for memory that partly overlaps an input, for a dtype that cannot hold the result, and where grad mode
would have to record it.

Source: resize_outputs and the overlap checks of PyTorch's aten/src/ATen/TensorIterator.cpp; set_output of structured
kernels.
"""

import warnings
from collections.abc import Callable, Iterable
from typing import Any, Literal

from engine.autograd.modes import no_grad, state
from engine.autograd.versions import VersionCounter
from engine.autograd.writes import mark_written
from engine.calls.operator import Operator
from engine.errors.callers import stack_level
from engine.memory import backend
from engine.ops.writing.inplace import check_overlap, check_writable, write
from engine.rules import layout, promotion
from engine.rules.spec import Spec
from engine.tensor import Tensor

Overlap = Literal["partial", "any", "unchecked"]


def write_into(out: Tensor, operator: Operator, inputs: tuple[Any, ...], attributes: tuple[Any, ...] = ()) -> Tensor:
    """The result of an elementwise operator in `out`; a result of a lower category is cast.

    Raises: TypeError when `out` is no Tensor; RuntimeError as the module says.
    """
    name = operator.name
    key = (attributes, *(value._spec for value in inputs))
    plan = operator.plans.get(key) or operator.plan(key)
    spec = plan.outs[0]
    _check(name, out, inputs, bool(operator.grad_mask))
    _check_dtype(name, out, spec, same=False)
    _prepare(name, out, spec, inputs, "partial")
    write(plan, out, [value._array for value in inputs])
    mark_written(out, f"{name}(out=)", False)
    return out


def deliver(
    out: Any,
    function: Callable[..., Any],
    *arguments: Any,
    same_dtype: bool = True,
    overlap: Overlap = "unchecked",
    cast_error: type[Exception] = RuntimeError,
    warn: bool = True,
    **keywords: Any,
) -> Any:
    """What `function(*arguments, **keywords)` returns, in `out`: a Tensor, or a tuple of as many as there are results
    (they come back under the results' names, where those have any).

    Computed in memory of its own first. `same_dtype`: whether `out` must have the result's dtype, or one it can be cast
    to (else `cast_error` is raised). `overlap`: which overlap with an input is refused. `warn`: of a resize.
    Raises: TypeError when `out` is no Tensor; RuntimeError as the module says.
    """
    name = function.__name__
    inputs = list(_tensors((*arguments, *keywords.values())))
    outs = tuple(out) if isinstance(out, tuple | list) else (out,)
    for each in outs:
        _check(name, each, inputs)
    with no_grad():
        returned = function(*arguments, **keywords)
    results = (returned,) if isinstance(returned, Tensor) else returned
    if len(results) != len(outs):
        raise TypeError(f"{name}(): argument 'out' must be a tuple of {len(results)} Tensors, got {len(outs)}")
    for each, result in zip(outs, results, strict=True):
        _check_dtype(name, each, result._spec, same_dtype, cast_error)
        _prepare(name, each, result._spec, inputs, overlap, warn)
        if each._array is not None:
            each._array[...] = result._array
        mark_written(each, f"{name}(out=)", False)
    if isinstance(returned, Tensor) or type(returned) is tuple:
        return out
    return returned._make(outs) if hasattr(returned, "_make") else type(returned)(outs)  # with the results' names


def _tensors(arguments: Iterable[Any]) -> Iterable[Tensor]:
    for argument in arguments:
        if isinstance(argument, Tensor):
            yield argument
        elif isinstance(argument, tuple | list):
            yield from _tensors(argument)


def _check(name: str, out: Any, inputs: Iterable[Any], differentiable: bool = True) -> None:
    if not isinstance(out, Tensor):
        raise TypeError(f"{name}(): argument 'out' must be Tensor, not {type(out).__name__}")
    if differentiable and state.grad_enabled and (out.requires_grad or any(value.requires_grad for value in inputs)):
        raise RuntimeError(
            f"{name}(): functions with out=... arguments don't support automatic differentiation, but one of the "
            "arguments requires grad; leave out= away, or write inside engine.no_grad()"
        )


def _check_dtype(name: str, out: Tensor, result: Spec, same: bool, cast_error: type[Exception] = RuntimeError) -> None:
    if out.dtype is result.dtype:
        return
    if same:
        raise RuntimeError(
            f"{name}(out=): Expected out tensor to have dtype {result.dtype}, but got {out.dtype} instead"
        )
    if not promotion.can_cast(result.dtype, out.dtype):
        raise cast_error(
            f"{name}(out=): result type {result.dtype} can't be cast to the desired output type {out.dtype}"
        )


def _prepare(name: str, out: Tensor, result: Spec, inputs: Iterable[Any], overlap: Overlap, warn: bool = True) -> None:
    """Brings `out` to the result's shape and refuses memory that must not be written."""
    if out.device is not result.device:
        raise RuntimeError(f"{name}(out=): Expected out tensor to be on {result.device}, but got {out.device} instead")
    if out.shape != result.shape:
        if out.numel() and warn:
            warnings.warn(
                f"{name}: An output with one or more elements was resized since it had shape {list(out.shape)}, which "
                f"does not match the required output shape {list(result.shape)}. Pass an out tensor of that shape, or "
                "one without elements (out.resize_(0)).",
                UserWarning,
                stacklevel=stack_level(),
            )
        resized(out, result.like(dtype=out.dtype))
    check_writable(out, f"{name}(out=)")
    if overlap != "unchecked":
        check_overlap(f"{name}(out=)", out, tuple(inputs), full=overlap == "any")


def resized(tensor: Tensor, wanted: Spec) -> Tensor:
    """`tensor` itself with another Spec: on its storage where that is large enough, else in new memory that begins with
    what the storage holds from the tensor's first element on.
    """
    memory = tensor._array
    if memory is not None:
        owner = backend.storage(tensor._array)
        room = (owner.nbytes - (backend.address(tensor._array) - backend.address(owner))) // wanted.dtype.itemsize
        needed = layout.storage_size(wanted.shape, wanted.stride)
        if room and needed <= room:
            memory = backend.strided_view(memory, wanted, 0)
        else:
            grown = backend.empty(wanted)
            if wanted.numel and room:
                line = wanted.like(shape=(room,))
                backend.strided_view(grown, line, 0)[...] = backend.strided_view(tensor._array, line, 0)
            memory = grown
            counter = VersionCounter()
            counter.value = tensor._version  # of memory that is its own from here on
            tensor._base, tensor._counter = None, counter
    tensor._take_memory(memory, wanted)
    return tensor
