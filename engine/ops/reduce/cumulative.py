"""Running extrema and log-sums along one axis, and differences. cumsum and cumprod are in
`engine.ops.shape.combine`.
"""

from types import ModuleType
from typing import Any

from engine.calls.derivative import implements
from engine.calls.dispatch import apply
from engine.calls.listening import heard
from engine.calls.operator import Operator, define
from engine.ops.pointwise.composed import logaddexp
from engine.ops.pointwise.selection import where
from engine.ops.reduce.extrema import values_indices
from engine.ops.shape.combine import cat
from engine.ops.shared.operands import in_single_precision, refuse_complex, require_real, running
from engine.rules import dtypes
from engine.rules.dims import wrap_dim
from engine.rules.dtypes import FLOATING_CATEGORY, int64
from engine.rules.spec import Spec
from engine.tensor import Tensor


def _running_extremum(name: str, accumulate: str) -> Operator:
    def rule(input: Spec, dim: int) -> tuple[Spec, Spec]:
        refuse_complex(name, input)
        return input.like(shape=input.shape), input.like(shape=input.shape, dtype=int64)

    def forward(xp: ModuleType, input: Any, dim: int) -> tuple[Any, Any]:
        values = running(xp, getattr(xp, accumulate), input, dim)
        attained = (input == values) | (input != input)
        places = xp.arange(input.shape[dim]).reshape((-1,) + (1,) * (input.ndim - 1 - dim))
        return values, running(xp, xp.maximum, xp.where(attained, places, 0), dim)

    def slope(g: Any, nd: Any, out1: Any, input_spec: Spec, dim: int) -> Any:
        return (None if g[0] is None else nd.scatter_add_zeros(g[0], out1, tuple(input_spec.shape), dim),)

    return define(name, rule=rule, forward=forward, backward=slope, attributes="dim", outputs=2)


CUMMAX = _running_extremum("cummax", "maximum")
CUMMIN = _running_extremum("cummin", "minimum")


def _along(operator: Operator, input: Tensor, dim: int) -> values_indices:
    dim = wrap_dim(dim, input.ndim, operator.name)
    if not input.ndim:
        return values_indices((input.clone(), input.new_zeros((), dtype=int64)))
    return values_indices(apply(operator, (input,), (dim,)))


def cummax(input: Tensor, dim: int) -> values_indices:
    """(largest element so far, where it lies) along an axis; the last of equal ones counts."""
    return _along(CUMMAX, input, dim)


def cummin(input: Tensor, dim: int) -> values_indices:
    """(smallest element so far, where it lies) along an axis; the last of equal ones counts."""
    return _along(CUMMIN, input, dim)


def _logcumsumexp_rule(input: Spec, dim: int) -> Spec:
    require_real("logcumsumexp", input)
    return input.like(shape=input.shape)


def _backward_sums(xp: ModuleType, logarithms: Any, dim: int) -> Any:
    """Log-sums from the end."""
    return xp.flip(running(xp, xp.logaddexp, xp.flip(logarithms, dim), dim), dim)


def _logcumsumexp_slope_composed(g: Any, input: Any, out: Any, dim: int) -> Any:
    if not out.numel():
        return g
    return _logcumsumexp_gains(g, input, out, dim) - _logcumsumexp_gains(-g, input, out, dim)


@implements(_logcumsumexp_slope_composed)
def _logcumsumexp_slope(g: Any, nd: Any, input: Any, out: Any, dim: int) -> Any:
    # Positive and negative parts by their logarithms: the exponentials of `out` itself may not be representable.
    xp = nd.xp
    g, input, out = map(in_single_precision, (g, input, out))
    gains = xp.exp(input + _backward_sums(xp, xp.log(xp.maximum(g, 0)) - out, dim))
    return gains - xp.exp(input + _backward_sums(xp, xp.log(xp.maximum(-g, 0)) - out, dim))


def _logcumsumexp_gains(g: Tensor, input: Tensor, out: Tensor, dim: int) -> Tensor:
    """What the positive elements of g contribute, by their logarithms; the rest is as good as log 0, but finite, so
    that its own derivative is 0 and not NaN.
    """
    positive = g.detach() > 0
    logarithms = where(positive, where(positive, g, 1.0).log(), dtypes.finfo(g.dtype).min / 4)
    return (input + logcumsumexp((logarithms - out).flip(dim), dim).flip(dim)).exp()


LOGCUMSUMEXP = define(
    "logcumsumexp",
    rule=_logcumsumexp_rule,
    forward=lambda xp, input, dim: running(xp, xp.logaddexp, in_single_precision(input), dim).astype(
        input.dtype, copy=False
    ),
    backward=(_logcumsumexp_slope,),
    attributes="dim",
)


def logcumsumexp(input: Tensor, dim: int) -> Tensor:
    """log of the running sum of exp(input) along an axis."""
    dim = wrap_dim(dim, input.ndim, "logcumsumexp")
    if input.is_complex() and input.ndim:
        return _complex_logcumsumexp(input, dim)
    return apply(LOGCUMSUMEXP, (input,), (dim,)) if input.ndim else input.clone()


def _complex_logcumsumexp(input: Tensor, dim: int) -> Tensor:
    """Each element is combined with ever farther ones: as many passes as the axis' size has bits."""
    distance, size = 1, input.shape[dim]
    while distance < size:
        sums = logaddexp(input.narrow(dim, distance, size - distance), input.narrow(dim, 0, size - distance))
        input = cat([input.narrow(dim, 0, distance), sums], dim)
        distance *= 2
    return input if distance > 1 else input.clone()


@heard
def diff(
    input: Tensor, n: int = 1, dim: int = -1, prepend: Tensor | None = None, append: Tensor | None = None
) -> Tensor:
    """Differences of neighbours along an axis, n times.

    Raises: RuntimeError for a 0-dim tensor or a negative n.
    """
    if not input.ndim:
        raise RuntimeError("diff expects input to be at least one-dimensional")
    if n < 0:
        raise RuntimeError(f"order must be non-negative but got {n}")
    dim = wrap_dim(dim, input.ndim, "diff")
    if n == 0:
        return input.clone()  # without what would be put before and behind it, as in PyTorch
    parts = [part for part in (prepend, input, append) if part is not None]
    result = cat(parts, dim) if len(parts) > 1 else input
    for _ in range(n):
        size = result.shape[dim]
        if size == 0:
            break
        later, earlier = result.narrow(dim, 1, size - 1), result.narrow(dim, 0, size - 1)
        result = later ^ earlier if result.dtype.category == 0 else later - earlier
    return result if result is not input else input.clone()


@heard
def trapezoid(y: Tensor, x: Tensor | None = None, *, dx: float = 1.0, dim: int = -1) -> Tensor:
    """The integral by the trapezoidal rule along an axis, at points `x` or spaced by `dx`."""
    return _trapezoids(y, x, dx, dim).sum(dim)


trapz = trapezoid


@heard
def cumulative_trapezoid(y: Tensor, x: Tensor | None = None, *, dx: float = 1.0, dim: int = -1) -> Tensor:
    """The running integral by the trapezoidal rule along an axis."""
    return _trapezoids(y, x, dx, dim).cumsum(dim)


def _trapezoids(y: Tensor, x: Tensor | None, dx: float, dim: int) -> Tensor:
    dim = wrap_dim(dim, y.ndim, "trapezoid")
    size = max(y.shape[dim], 1)
    heights = y.narrow(dim, 1, size - 1) + y.narrow(dim, 0, size - 1) if y.shape[dim] else y
    if x is None:
        return heights * (dx / 2)
    widths = diff(x, dim=0 if x.ndim == 1 else dim)
    if x.ndim == 1 and y.ndim > 1:
        widths = widths.reshape((-1,) + (1,) * (y.ndim - 1 - dim))
    return heights * widths / 2


@heard
def gradient(input: Tensor, *, spacing: Any = 1, dim: Any = None, edge_order: int = 1) -> tuple[Tensor, ...]:
    """Derivatives along axes by differences of second order inside and of order `edge_order` at the ends.

    `spacing` is a number (1 for None), one an axis, or vectors of coordinates.
    """
    if edge_order not in (1, 2):
        raise RuntimeError("torch.gradient only supports edge_order=1 and edge_order=2.")
    axes = range(input.ndim) if dim is None else (dim,) if isinstance(dim, int) else dim
    axes = [wrap_dim(axis, input.ndim, "gradient") for axis in axes]
    if len(set(axes)) < len(axes):
        raise RuntimeError(f"gradient: a dim appears multiple times in the list of dims {axes}")
    spacing = 1 if spacing is None else spacing
    spaces = list(spacing) if isinstance(spacing, list | tuple) else [spacing] * len(axes)
    if len(spaces) != len(axes):
        raise RuntimeError(
            f"torch.gradient expected spacing to be unspecified, a scalar or a list of length {len(axes)}, got "
            f"{len(spaces)}"
        )
    return tuple(_slope_along(input, axis, space, edge_order) for axis, space in zip(axes, spaces, strict=True))


def _slope_along(input: Tensor, dim: int, space: Any, edge_order: int) -> Tensor:
    size = input.shape[dim]
    if size < edge_order + 1:
        raise RuntimeError("torch.gradient expected each dimension size to be at least edge_order+1")
    x = input if input.dtype.category >= FLOATING_CATEGORY else input.float()
    part = lambda start, length: x.narrow(dim, start, length)  # noqa: E731
    if isinstance(space, Tensor) and space.ndim:
        steps = (space[1:] - space[:-1]).reshape((-1,) + (1,) * (x.ndim - 1 - dim))
        before, after = steps.narrow(0, 0, size - 2), steps.narrow(0, 1, size - 2)
        middle = (
            part(0, size - 2) * (-after / (before * (before + after)))
            + part(1, size - 2) * ((after - before) / (before * after))
            + part(2, size - 2) * (before / (after * (before + after)))
        )
        first, second, last, previous = steps[:1], steps[1:2], steps[-1:], steps[-2:-1]
    else:
        step = space
        middle = (part(2, size - 2) - part(0, size - 2)) / (2 * step)
        first = second = last = previous = step
    if edge_order == 1:
        start = (part(1, 1) - part(0, 1)) / first
        end = (part(size - 1, 1) - part(size - 2, 1)) / last
    else:
        start = (
            part(0, 1) * (-(2 * first + second) / (first * (first + second)))
            + part(1, 1) * ((first + second) / (first * second))
            + part(2, 1) * (-first / (second * (first + second)))
        )
        end = (
            part(size - 3, 1) * (last / (previous * (previous + last)))
            + part(size - 2, 1) * (-(previous + last) / (previous * last))
            + part(size - 1, 1) * ((2 * last + previous) / (last * (previous + last)))
        )
    return cat([start, middle, end], dim)
