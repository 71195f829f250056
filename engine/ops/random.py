"""Random tensors and in-place random fills. Values are drawn on the host in logical (row-major) order, so that a layout
does not change them.
"""

from typing import Any

import numpy as np

from engine.dtypes import get_default_dtype, int64, require_dtype
from engine.ops.factories import empty_like, shape_from, wrap_array
from engine.ops.inplace import overwrite
from engine.random import Generator, default_generator
from engine.tensor import Tensor


def _stream(generator: Generator | None) -> np.random.Generator:
    return (generator or default_generator).numpy


def _floating(kind: Any) -> Any:
    kind = get_default_dtype() if kind is None else require_dtype(kind)
    if kind.category < 2:
        raise RuntimeError(f"random values of a continuous distribution need a floating point dtype, got {kind}")
    return kind


def _drawn(function: str, shape: tuple[int, ...], kind: Any, generator: Generator | None) -> np.ndarray:
    """float32 is drawn as such (half the work), every other dtype by way of float64."""
    drawn_as = np.float32 if kind.numpy == np.float32 else np.float64
    return np.asarray(getattr(_stream(generator), function)(shape, dtype=drawn_as)).astype(kind.numpy, copy=False)


def rand(
    *sizes: Any,
    size: Any = None,
    generator: Generator | None = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Uniform on [0, 1)."""
    shape = shape_from(sizes if size is None else (size,), "rand")
    return wrap_array(_drawn("random", shape, _floating(dtype), generator), device, requires_grad)


def randn(
    *sizes: Any,
    size: Any = None,
    generator: Generator | None = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Normal with mean 0 and variance 1."""
    shape = shape_from(sizes if size is None else (size,), "randn")
    return wrap_array(_drawn("standard_normal", shape, _floating(dtype), generator), device, requires_grad)


def randint(
    low: Any = None,
    high: Any = None,
    size: Any = None,
    *,
    generator: Generator | None = None,
    dtype: Any = int64,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Integers uniform on [low, high); `randint(high, size)` starts at 0."""
    if size is None:
        low, high, size = 0, low, high
    elif low is None:
        low = 0
    elif high is None:
        low, high = 0, low
    shape = shape_from((size,), "randint")
    if low >= high:
        raise RuntimeError(f"random_ expects 'from' to be less than 'to', but got from={low} >= to={high}")
    values = _stream(generator).integers(low, high, shape)
    return wrap_array(np.asarray(values).astype(require_dtype(dtype).numpy), device, requires_grad)


def randperm(n: int, *, generator: Generator | None = None, dtype: Any = int64, device: Any = None) -> Tensor:
    """A random permutation of 0 ... n-1. Raises: RuntimeError for a negative n."""
    if n < 0:
        raise RuntimeError(f"randperm: Trying to create tensor with negative dimension {n}: [{n}]")
    return wrap_array(_stream(generator).permutation(n).astype(require_dtype(dtype).numpy), device)


def rand_like(input: Tensor, **options: Any) -> Tensor:
    """Uniform on [0, 1), in the shape, strides and dtype of `input`."""
    return uniform_(empty_like(input, **options))


def randn_like(input: Tensor, **options: Any) -> Tensor:
    """Standard normal, in the shape, strides and dtype of `input`."""
    return normal_(empty_like(input, **options))


def randint_like(input: Tensor, low: int, high: int | None = None, **options: Any) -> Tensor:
    """Integers in the shape of `input`."""
    return (
        randint(low, high, tuple(input.shape), dtype=options.pop("dtype", input.dtype), **options)
        if high is not None
        else randint(0, low, tuple(input.shape), dtype=options.pop("dtype", input.dtype), **options)
    )


def normal(
    mean: Any = 0.0,
    std: Any = 1.0,
    size: Any = None,
    *,
    generator: Generator | None = None,
    dtype: Any = None,
    device: Any = None,
) -> Tensor:
    """Normal with the given means and standard deviations (numbers or Tensors)."""
    if size is None:
        like = mean if isinstance(mean, Tensor) else std
        if not isinstance(like, Tensor):
            raise TypeError("normal: with numbers for mean and std, size is needed")
        size = (mean + std).shape if isinstance(mean, Tensor) and isinstance(std, Tensor) else like.shape
    return randn(size, generator=generator, dtype=dtype, device=device) * std + mean


def bernoulli(input: Tensor, *, generator: Generator | None = None) -> Tensor:
    """1 with the probability each element gives, else 0."""
    draws = _stream(generator).random(tuple(input.shape))
    probability = input.detach().cpu().numpy()
    return wrap_array((draws < probability).astype(input.dtype.numpy), input.device)


def multinomial(
    input: Tensor, num_samples: int, replacement: bool = False, *, generator: Generator | None = None
) -> Tensor:
    """Indices drawn from the rows' weights."""
    if input.ndim not in (1, 2):
        raise RuntimeError(f"multinomial: prob_dist must be 1 or 2 dim, got shape {list(input.shape)}")
    if num_samples <= 0:
        raise RuntimeError(f"multinomial: cannot sample n_sample <= 0 samples, got {num_samples}")
    if not replacement and num_samples > input.shape[-1]:
        raise RuntimeError(
            f"multinomial: cannot sample n_sample > prob_dist.size(-1) samples without replacement, got {num_samples} "
            f"of {input.shape[-1]}"
        )
    weights = input.detach().cpu().numpy().astype(np.float64)
    rows = weights.reshape(-1, weights.shape[-1])
    if not len(rows):
        return wrap_array(np.empty((0, num_samples), np.int64), input.device)
    if (rows < 0).any() or not np.isfinite(rows).all() or (rows.sum(1) <= 0).any():
        raise RuntimeError(
            "multinomial: probability tensor contains either `inf`, `nan` or element < 0, or sums to zero"
        )
    if not replacement and (num_samples > (rows > 0).sum(1)).any():
        raise RuntimeError(
            f"multinomial: cannot sample n_sample > prob_dist.size(-1) samples without replacement, got {num_samples} "
            f"of {rows.shape[1]}"
        )
    stream = _stream(generator)
    picked = np.stack(
        [stream.choice(rows.shape[1], num_samples, replace=replacement, p=row / row.sum()) for row in rows]
    )
    return wrap_array(picked.reshape(*weights.shape[:-1], num_samples), input.device)


def _fill(target: Tensor, values: np.ndarray, name: str) -> Tensor:
    return overwrite(target, values if target.is_cpu or target._array is None else type(target._array)(values), name)


def uniform_(
    self: Tensor, a: float = 0.0, b: float = 1.0, *, generator: Generator | None = None, **bounds: float
) -> Tensor:
    """Fills with uniform values on [a, b)."""
    a, b = bounds.pop("from", a), bounds.pop("to", b)
    if a > b:
        raise RuntimeError(f"uniform_ expects to return a [from, to) range, but found from={a} > to={b}")
    drawn = _drawn("random", tuple(self.shape), _floating(self.dtype), generator)
    return _fill(self, drawn * (b - a) + a, "uniform_")


def normal_(self: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Generator | None = None) -> Tensor:
    """Fills with normal values."""
    if std < 0:
        raise RuntimeError(f"normal expects std >= 0.0, but found std {std}")
    drawn = _drawn("standard_normal", tuple(self.shape), _floating(self.dtype), generator)
    return _fill(self, drawn * std + mean, "normal_")


def bernoulli_(self: Tensor, p: Any = 0.5, *, generator: Generator | None = None) -> Tensor:
    """Fills with 1 (probability p) and 0."""
    p = p.detach().cpu().numpy() if isinstance(p, Tensor) else p
    return _fill(self, _stream(generator).random(tuple(self.shape)) < p, "bernoulli_")


def random_(self: Tensor, low: int = 0, high: int | None = None, *, generator: Generator | None = None) -> Tensor:
    """Fills with integers on [low, high)."""
    if high is None:
        low, high = 0, low or (2**24 if self.is_floating_point() else 2 ** (8 * self.itemsize - 1) - 1)
    return _fill(self, _stream(generator).integers(low, high, tuple(self.shape)), "random_")


def exponential_(self: Tensor, lambd: float = 1.0, *, generator: Generator | None = None) -> Tensor:
    """Fills with exponential values of rate `lambd`."""
    return _fill(self, _stream(generator).exponential(1 / lambd, tuple(self.shape)), "exponential_")
