"""Views: other shapes and strides on the same memory; those of a part of it are in `engine.ops.views.parts`. Each row
has a rule on Specs and a NumPy view; all share one derivative.

The gradient of a view is the incoming gradient written into zeros through the same view (`view_backward`), so a new
view needs no rule of its own. Views whose elements overlap (unfold, as_strided) add instead of write. Rules:
PyTorch's aten/src/ATen/native/TensorShape.cpp.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import index, methodcaller
from types import ModuleType
from typing import Any

from engine.calls.dispatch import apply, apply_view
from engine.calls.listening import heard
from engine.calls.namespaces import OPERATORS, composite
from engine.calls.operator import define
from engine.calls.plan import Plan
from engine.memory import backend
from engine.ops.index.scattering import combine_at
from engine.rules import layout
from engine.rules.dims import wrap_dim
from engine.rules.spec import Spec
from engine.tensor import Tensor


def view_operator(
    name: str,
    rule: Callable[..., Any],
    forward: Callable[..., Any],
    attributes: str,
    backward: Any = None,
    overlapping: bool = False,
    prepare: Callable[[ModuleType, Plan], Callable[..., Any]] | None = None,
) -> Any:
    """Defines a view of one input and one output. prepare: what makes `forward` for one plan."""
    if backward is None:

        def scatter(g: Any, nd: Any, input_spec: Spec, attributes: tuple[Any, ...]) -> Any:
            return nd.view_backward(g, name, attributes, tuple(input_spec.shape), overlapping)

        backward = (scatter,)
    return define(
        name, rule=rule, forward=forward, backward=backward, attributes=attributes, view=True, prepare=prepare
    )


def _view_backward(
    xp: ModuleType, g: Any, name: str, attributes: tuple[Any, ...], shape: tuple[int, ...], overlapping: bool
) -> Any:
    zeros = xp.zeros(shape, g.dtype)
    if not overlapping:
        OPERATORS[name].forward(xp, zeros, *attributes)[...] = g
        return zeros
    positions = xp.arange(zeros.size).reshape(shape)
    where = OPERATORS[name].forward(xp, positions, *attributes)
    combine_at(xp, "add", zeros.reshape(-1), (where,), g)
    return zeros


VIEW_BACKWARD = define(
    "view_backward",
    rule=lambda input, name, attributes, shape, overlapping: input.like(shape=shape),
    forward=_view_backward,
    backward=(lambda g, nd, name, attributes: _view_again(g, nd, name, attributes),),
    attributes="name attributes shape overlapping",
)


def _view_again(g: Any, nd: Any, name: str, attributes: tuple[Any, ...]) -> Any:
    return nd.viewed(g, name, attributes)


composite(
    "viewed",
    lambda xp, x, name, attributes: OPERATORS[name].forward(xp, x, *attributes),
    lambda x, name, attributes: apply(OPERATORS[name], (x,), attributes),
)


def view_backward(
    input: Tensor, name: str, attributes: tuple[Any, ...], shape: tuple[int, ...], overlapping: bool = False
) -> Tensor:
    """Zeros of `shape` with `input` written (added, if overlapping) through the named view; adjoint of that view."""
    return apply(VIEW_BACKWARD, (input,), (name, attributes, shape, overlapping))


# --- shape only -------------------------------------------------------------------------------------------------------


def _view_rule(input: Spec, size: tuple[int, ...]) -> Spec:
    stride = layout.view_strides(input.shape, input.stride, size)
    if stride is None:
        raise RuntimeError(
            f"view size is not compatible with input tensor's size and stride (at least one dimension spans across "
            f"two contiguous subspaces): "
            f"{list(input.shape)} with strides {input.stride} cannot be viewed as {list(size)}. Use .reshape(...) "
            f"instead."
        )
    return input.like(shape=size, stride=stride)


def _reshape_gradient(g: Any, nd: Any, input_spec: Spec) -> Any:
    return nd.reshape(g, tuple(input_spec.shape))


def _view_forward(xp: ModuleType, input: Any, size: tuple[int, ...]) -> Any:
    viewed = input.reshape(size)
    if viewed.base is None or not backend.share_storage(viewed, input):
        spec = backend.spec_of_array(input)
        stride = layout.view_strides(spec.shape, spec.stride, size)
        assert stride is not None
        return backend.strided_view(input, spec.like(shape=size, stride=stride), 0)
    return viewed


VIEW = view_operator("view", _view_rule, _view_forward, "size", backward=(_reshape_gradient,))


def view(input: Tensor, *size: Any) -> Tensor:
    """The same elements in row-major order under another shape, without a copy. `view(dtype)` reinterprets the bytes.

    Raises: RuntimeError when only a copy could show them so.
    """
    if len(size) == 1 and not isinstance(size[0], int | Sequence):
        return _view_as_dtype(input, size[0])
    wanted = layout.infer_size(_sizes(size, "view"), input._spec.numel)
    return apply_view(VIEW, input, (wanted,))


def _sizes(size: tuple[Any, ...], name: str) -> tuple[int, ...]:
    """Like `shape_from`, but -1 may stand for one size."""
    if len(size) == 1 and isinstance(size[0], tuple | list | Sequence):  # the first two are found out fastest
        size = tuple(size[0])
    try:
        return tuple([n.__index__() for n in size])
    except AttributeError:
        raise TypeError(f"{name}(): sizes must be integers, got {size!r}") from None


def _view_as_dtype(input: Tensor, kind: Any) -> Tensor:
    from engine.rules.dtypes import require_dtype

    kind = require_dtype(kind)
    if kind.itemsize != input.itemsize:
        raise RuntimeError(f"view(dtype): expected a dtype of {input.itemsize} bytes, got {kind} of {kind.itemsize}")
    viewed = Tensor(input._array.view(kind.numpy), input._spec.like(dtype=kind))
    viewed._counter = input._version_counter()
    return viewed


@heard
def reshape(input: Tensor, *shape: Any) -> Tensor:
    """The same elements in row-major order under another shape: a view where possible, else a copy."""
    wanted, is_view = _reshaped(input._spec, _sizes(shape, "reshape"))
    if not is_view:
        input = input.clone(memory_format=layout.contiguous_format)
    return apply_view(VIEW, input, (wanted,))


@lru_cache(4096)
def _reshaped(spec: Spec, size: tuple[int, ...]) -> tuple[tuple[int, ...], bool]:
    """The shape that is meant, and whether a view can show it."""
    wanted = layout.infer_size(size, spec.numel)
    return wanted, layout.view_strides(spec.shape, spec.stride, wanted) is not None


@heard
def flatten(input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Joins the axes from `start_dim` to `end_dim`."""
    start, end = wrap_dim(start_dim, input.ndim, "flatten"), wrap_dim(end_dim, input.ndim, "flatten")
    if start > end:
        raise RuntimeError("flatten() has invalid args: start_dim cannot come after end_dim")
    if not input.ndim:
        return reshape(input, 1)
    if start == end:
        return input
    joined = 1
    for size in input.shape[start : end + 1]:
        joined *= size
    return reshape(input, (*input.shape[:start], joined, *input.shape[end + 1 :]))


@heard
def unflatten(input: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
    """Splits one axis into several; one size may be -1."""
    dim = wrap_dim(dim, input.ndim, "unflatten")
    inner = layout.infer_size(tuple(sizes), input.shape[dim])
    return view(input, (*input.shape[:dim], *inner, *input.shape[dim + 1 :]))


# --- order of axes ----------------------------------------------------------------------------------------------------


def _inverse(dims: tuple[int, ...]) -> tuple[int, ...]:
    inverse = [0] * len(dims)
    for position, dim in enumerate(dims):
        inverse[dim] = position
    return tuple(inverse)


PERMUTE = view_operator(
    "permute",
    lambda input, dims: input.like(
        shape=[input.shape[dim] for dim in dims], stride=tuple(input.stride[dim] for dim in dims)
    ),
    lambda xp, input, dims: input.transpose(dims),
    "dims",
    backward=(lambda g, nd, dims: nd.permute(g, _inverse(dims)),),
    prepare=lambda xp, plan: methodcaller("transpose", *plan.attributes),
)


def permute(input: Tensor, *dims: Any) -> Tensor:
    """Axes in another order."""
    return apply_view(PERMUTE, input, (_order(_sizes(dims, "permute"), input._spec.ndim),))


@lru_cache(4096)
def _order(dims: tuple[int, ...], ndim: int) -> tuple[int, ...]:
    if len(dims) != ndim:
        raise RuntimeError(
            "permute: number of dimensions in the tensor input does not match the length of the desired ordering of "
            f"dimensions, i.e. input.dim() = {ndim} is not equal to len(dims) = {len(dims)}"
        )
    order = tuple(wrap_dim(dim, ndim, "permute") for dim in dims)
    if len(set(order)) < len(order):
        raise RuntimeError(f"permute(): duplicate dims are not allowed, got {list(order)}")
    return order


@heard
def transpose(input: Tensor, dim0: int, dim1: int) -> Tensor:
    """Two axes exchanged."""
    return apply_view(PERMUTE, input, (_exchanged(input._spec.ndim, index(dim0), index(dim1)),))


@lru_cache(4096)
def _exchanged(ndim: int, dim0: int, dim1: int) -> tuple[int, ...]:
    a, b = wrap_dim(dim0, ndim, "transpose"), wrap_dim(dim1, ndim, "transpose")
    order = list(range(ndim))
    if order:
        order[a], order[b] = b, a
    return tuple(order)


swapaxes = swapdims = transpose


@heard
def t(input: Tensor) -> Tensor:
    """The transpose of a matrix (a vector stays as it is)."""
    if input.ndim > 2:
        raise RuntimeError(f"t() expects a tensor with <= 2 dimensions, but self is {input.ndim}D")
    return transpose(input, 0, 1) if input.ndim == 2 else apply_view(PERMUTE, input, (tuple(range(input.ndim)),))


@heard
def movedim(input: Tensor, source: int | Sequence[int], destination: int | Sequence[int]) -> Tensor:
    """Axes moved to new positions, the others in order."""
    if not input.ndim:
        for dim in (source, destination):
            wrap_dim(dim if isinstance(dim, int) else (dim or [0])[0], 0, "movedim")
        return permute(input, ())
    sources = [wrap_dim(dim, input.ndim, "movedim") for dim in ([source] if isinstance(source, int) else source)]
    targets = [
        wrap_dim(dim, input.ndim, "movedim") for dim in ([destination] if isinstance(destination, int) else destination)
    ]
    if len(sources) != len(targets):
        raise RuntimeError(
            f"movedim: Invalid source or destination dims: source ({sources} dims) should contain the same number of "
            f"dims as destination ({targets} dims)"
        )
    if len(set(sources)) < len(sources) or len(set(targets)) < len(targets):
        raise RuntimeError(f"movedim: repeated dim in `source` ({sources}) or `destination` ({targets})")
    order: list[int] = [dim for dim in range(input.ndim) if dim not in sources]
    for target, moved in sorted(zip(targets, sources, strict=True)):
        order.insert(target, moved)
    return permute(input, order)


moveaxis = movedim

# --- expand, squeeze --------------------------------------------------------------------------------------------------


def _expand_rule(input: Spec, size: tuple[int, ...]) -> Spec:
    extra = len(size) - input.ndim
    if extra < 0:
        raise RuntimeError(
            f"expand({list(input.shape)}, size={list(size)}): the number of sizes provided ({len(size)}) must be "
            f"greater or equal to the number of "
            f"dimensions in the tensor ({input.ndim})"
        )
    if any(n < (-1 if input.ndim else 0) for n in size):
        raise RuntimeError(
            f"expand: the expanded size of a tensor must not be negative: got {list(size)} for shape "
            f"{list(input.shape)}; -1 keeps the size of an axis that exists"
        )
    if not input.ndim:
        return input.like(shape=size, stride=(0,) * len(size))
    shape: list[int] = []
    stride: list[int] = []
    for axis in range(len(size) - 1, -1, -1):
        old = axis - extra
        have = input.shape[old] if old >= 0 else 1
        step = input.stride[old] if old >= 0 else (shape[-1] * stride[-1] if shape else 1)
        want = size[axis]
        if want == -1:
            if old < 0:
                raise RuntimeError(
                    f"expand: The expanded size of the tensor (-1) isn't allowed in a leading, non-existing dimension "
                    f"{axis}"
                )
            want = have
        if have != want:
            if have != 1:
                raise RuntimeError(
                    f"The expanded size of the tensor ({want}) must match the existing size ({have}) at non-singleton "
                    f"dimension {axis}. "
                    f"Target sizes: {list(size)}. Tensor sizes: {list(input.shape)}"
                )
            step = 0
        shape.append(want)
        stride.append(step)
    return input.like(shape=shape[::-1], stride=tuple(stride[::-1]))


def _expand(xp: ModuleType, input: Any, size: tuple[int, ...]) -> Any:
    return backend.strided_view(input, _expand_rule(backend.spec_of_array(input), size), 0)


EXPAND = define(
    "expand",
    rule=_expand_rule,
    forward=_expand,
    backward=(lambda g: g,),  # the walker undoes the broadcast
    attributes="size",
    view=True,
    # 0.4 µs, where NumPy's broadcast_to takes 2 and gives a view that cannot be written to
    prepare=lambda xp, plan: lambda input: backend.strided_view(input, plan.outs[0], 0),
)


def expand(input: Tensor, *size: Any) -> Tensor:
    """Axes of size 1 repeated without a copy; -1 keeps a size."""
    return apply_view(EXPAND, input, (_sizes(size, "expand"),))


@heard
def expand_as(input: Tensor, other: Tensor) -> Tensor:
    """Expanded to the shape of `other`."""
    return expand(input, other.shape)


@heard
def broadcast_to(input: Tensor, size: Sequence[int]) -> Tensor:
    """Expanded to `size`."""
    return expand(input, size)


def _unsqueeze_rule(input: Spec, dim: int) -> Spec:
    step = input.shape[dim] * input.stride[dim] if dim < input.ndim else 1
    return input.like(
        shape=(*input.shape[:dim], 1, *input.shape[dim:]), stride=(*input.stride[:dim], step, *input.stride[dim:])
    )


UNSQUEEZE = view_operator(
    "unsqueeze",
    _unsqueeze_rule,
    lambda xp, input, dim: input[(*(slice(None),) * dim, None)],  # expand_dims forgets the strides of an empty array
    "dim",
    backward=(lambda g, nd, dim: nd.squeeze(g, (dim,)),),
)


def unsqueeze(input: Tensor, dim: int) -> Tensor:
    """A new axis of size 1 at `dim`."""
    return apply_view(UNSQUEEZE, input, (wrap_dim(dim, input.ndim + 1, "unsqueeze"),))


SQUEEZE = view_operator(
    "squeeze",
    lambda input, dims: input.like(
        shape=[n for axis, n in enumerate(input.shape) if axis not in dims],
        stride=tuple(n for axis, n in enumerate(input.stride) if axis not in dims),
    ),
    lambda xp, input, dims: (
        input.reshape([n for axis, n in enumerate(input.shape) if axis not in dims])
        if not dims
        else input.squeeze(dims)
    ),
    "dims",
    backward=(_reshape_gradient,),
)


def squeeze(input: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    """Without axes of size 1 (all, or those named)."""
    named = (
        range(input.ndim)
        if dim is None
        else [wrap_dim(d, input.ndim, "squeeze") for d in ([dim] if isinstance(dim, int) else dim)]
    )
    return apply_view(SQUEEZE, input, (tuple(axis for axis in named if input.ndim and input.shape[axis] == 1),))
