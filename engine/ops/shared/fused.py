"""What operators with fused kernels for a GPU (engine.kernels.cuda) share: which arrays these serve, in which layout,
and derivative rules that use them on raw arrays.
"""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any

from engine.calls.derivative import composition_of, implements
from engine.calls.plan import Plan
from engine.memory import backend
from engine.ops.shared.windows import channels_first, channels_last
from engine.rules import layout
from engine.rules.dtypes import bfloat16, float16, float32, float64
from engine.rules.spec import Spec

_SERVED = frozenset(kind.numpy for kind in (float32, float64, float16, bfloat16))


def served(*arrays: Any) -> bool:
    """Whether the fused kernels have the element types of these arrays (None where there is none)."""
    for array in arrays:  # noqa: SIM110, a generator takes twice as long
        if array is not None and array.dtype not in _SERVED:
            return False
    return True


def has_kernels(kind: Any) -> bool:
    """Whether the fused kernels have an element type, of NumPy's."""
    return kind in _SERVED


def planned_alike(plan: Plan, prepare: Callable[[bool], Callable[..., None]]) -> Callable[..., Any] | None:
    """The kernel of an elementwise plan whose operands and result lie alike, in one block of memory without gaps, and
    the plan's `into`; None for other plans, without elements, and for element types that have no kernels.

    prepare: the launch, of (operands, result), for memory that begins at multiples of 16 bytes, or not.
    """
    spec = plan.out
    if not (spec.numel and spec.dense and has_kernels(spec.dtype.numpy)):
        return None
    if any(each is not spec for each in plan.input_specs):
        return None
    (sizes, axes), dtype, empty = spec.allocation, spec.dtype.numpy, backend.device_empty
    launches: dict[bool, Callable[..., None]] = {}

    def into(*arrays: Any) -> None:
        bits = 0
        for array in arrays:
            bits |= array.data.ptr
        in_line = not bits & 15
        launch = launches.get(in_line)
        if launch is None:
            launch = launches[in_line] = prepare(in_line)
        launch(*arrays)

    def run(*arrays: Any) -> Any:
        out = empty(sizes, dtype)
        if axes is not None:
            out = out.transpose(axes)
        into(*arrays, out)
        return out

    plan.into = into
    return run


def on_arrays(rule: Callable[..., Any], kernel: Callable[..., Any]) -> Callable[..., Any]:
    """A derivative rule for a GPU: `kernel` on raw arrays of the types it serves, else `rule`, which has the same
    parameters, `g` and `nd` first.
    """

    @implements(composition_of(rule))
    @wraps(rule)
    def chosen(g: Any, nd: Any, *rest: Any) -> Any:
        return (kernel if served(g) else rule)(g, nd, *rest)

    return chosen


def bias_slope(g: Any, nd: Any, bias_spec: Spec) -> Any:
    """The gradient of a bias that was added to rows of the shape of `g`: sums over all axes but the last."""
    from engine.ops.reduce import cuda as reduce

    columns = bias_spec.shape[0]
    return reduce.column_sums(row_major(nd.xp, g, g.dtype, (g.size // max(columns, 1), columns)))


def row_major(xp: Any, array: Any, kind: Any, shape: tuple[int, ...]) -> Any:
    """The array in row-major order, in the dtype `kind` and in `shape`; itself where it is that already."""
    if array.dtype != kind or not array.flags.c_contiguous:
        array = xp.ascontiguousarray(array, dtype=kind)
    return array if array.shape == shape else array.reshape(shape)


def flattened(xp: Any, array: Any, kind: Any) -> Any:
    """The same as a vector; None stays None."""
    return None if array is None else row_major(xp, array, kind, (array.size,))


def alike(xp: Any, *arrays: Any) -> list[Any]:
    """Arrays of one shape, in the dense layout of the first one; row-major where that is not dense."""
    first = arrays[0]
    if not _dense(first.shape, first.strides, first.dtype.itemsize):
        first = xp.ascontiguousarray(first).reshape(first.shape)
    return [first, *(_as(xp, array, first) for array in arrays[1:])]


@lru_cache(4096)
def _dense(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> bool:
    return layout.is_non_overlapping_and_dense(shape, tuple(step // itemsize for step in strides))


def _as(xp: Any, array: Any, model: Any) -> Any:
    wanted = model.dtype if array.dtype.kind in "fV" else array.dtype
    steps = tuple(step // model.dtype.itemsize * array.dtype.itemsize for step in model.strides)
    if array.dtype == wanted and array.strides == steps:
        return array
    copied = xp.empty_like(model, dtype=wanted)
    copied[...] = array
    return copied


def to_pool(xp: Any, image: Any, as_channels_last: bool) -> Any:
    """(N, C, d...) as the kernels of pooling take it: planes (N C, d..., 1), or channels-last (N, d..., C)."""
    if as_channels_last:
        return xp.ascontiguousarray(channels_last(image))
    return xp.ascontiguousarray(image).reshape(image.shape[0] * image.shape[1], *image.shape[2:], 1)


def from_pool(result: Any, shape: tuple[int, ...], as_channels_last: bool) -> Any:
    """The inverse, for an image of `shape`, (N, C, d...) or (C, d...), with other spatial sizes."""
    spatial = result.shape[1:-1]
    image = channels_first(result) if as_channels_last else result
    return image.reshape(*shape[: len(shape) - len(spatial)], *spatial)
