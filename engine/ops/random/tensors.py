"""Random tensors and in-place random fills. Values are drawn in logical (row-major) order, so that a layout does not
change them: for host memory by NumPy, for a GPU by kernels that write where the tensor lies (engine/kernels/cuda).
"""

from typing import Any

import numpy as np

from engine.calls.listening import heard
from engine.ops.creation.factories import empty, empty_like
from engine.ops.creation.from_data import wrap_array
from engine.ops.pointwise.selection import constant_beside
from engine.ops.random import sampling
from engine.ops.random.gpu import bernoulli_there, filled_there, made_there, multinomial_there, permutation_there
from engine.ops.writing.inplace import overwrite
from engine.random import Generator, default_generator
from engine.rules.device import default
from engine.rules.device import device as as_device
from engine.rules.dims import shape_from
from engine.rules.dtypes import dtype as Kind
from engine.rules.dtypes import finfo, get_default_dtype, int64, require_dtype
from engine.rules.layout import broadcast_shapes
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


def _on_gpu(where: Any) -> bool:
    return (default.device if where is None else as_device(where)).type == "cuda"


# --- new tensors ------------------------------------------------------------------------------------------------------


@heard
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
    if _on_gpu(device):
        return made_there(shape, _floating(dtype), device, requires_grad, generator, "uniform", 0.0, 1.0)
    return wrap_array(_drawn("random", shape, _floating(dtype), generator), device, requires_grad)


@heard
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
    if _on_gpu(device):
        return made_there(shape, _floating(dtype), device, requires_grad, generator, "normal", 0.0, 1.0)
    return wrap_array(_drawn("standard_normal", shape, _floating(dtype), generator), device, requires_grad)


@heard
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
    if _on_gpu(device):
        return made_there(
            shape, require_dtype(dtype), device, requires_grad, generator, "integers", int(low), int(high)
        )
    values = _stream(generator).integers(low, high, shape)
    return wrap_array(np.asarray(values).astype(require_dtype(dtype).numpy), device, requires_grad)


@heard
def randperm(n: int, *, generator: Generator | None = None, dtype: Any = int64, device: Any = None) -> Tensor:
    """A random permutation of 0 ... n-1. Raises: RuntimeError for a negative n."""
    if n < 0:
        raise RuntimeError(f"randperm: Trying to create tensor with negative dimension {n}: [{n}]")
    if _on_gpu(device):
        return permutation_there(n, require_dtype(dtype), device, generator)
    return wrap_array(_stream(generator).permutation(n).astype(require_dtype(dtype).numpy), device)


@heard
def rand_like(input: Tensor, *, requires_grad: bool = False, **options: Any) -> Tensor:
    """Uniform on [0, 1), in the shape, strides and dtype of `input`."""
    return uniform_(empty_like(input, **options)).requires_grad_(requires_grad)


@heard
def randn_like(input: Tensor, *, requires_grad: bool = False, **options: Any) -> Tensor:
    """Standard normal, in the shape, strides and dtype of `input`."""
    return normal_(empty_like(input, **options)).requires_grad_(requires_grad)


@heard
def randint_like(input: Tensor, low: int, high: int | None = None, **options: Any) -> Tensor:
    """Integers in the shape of `input`."""
    if high is None:
        low, high = 0, low
    kind, where = options.pop("dtype", input.dtype), options.pop("device", input.device)
    return randint(low, high, tuple(input.shape), dtype=kind, device=where, **options)


@heard
def normal(
    mean: Any = 0.0,
    std: Any = 1.0,
    size: Any = None,
    *,
    generator: Generator | None = None,
    dtype: Any = None,
    device: Any = None,
) -> Tensor:
    """Normal with the given means and standard deviations (numbers or Tensors), in the dtype of the first Tensor.

    The derivative by both is 0, as in PyTorch; `distributions.Normal(mean, std).rsample()` has the reparametrised one.
    Raises: RuntimeError for standard deviations below 0 (on a GPU, where looking would wait for it, for numbers only);
    NotImplementedError for integers.
    """
    like = mean if isinstance(mean, Tensor) else std
    if isinstance(std, Tensor):
        if std.is_cpu and std.numel() and bool((std.detach() < 0).any()):
            raise RuntimeError("normal expects all elements of std >= 0.0")
    elif std < 0:
        raise RuntimeError(f"normal expects std >= 0.0, but found std {std}")
    if size is None:
        if not isinstance(like, Tensor):
            raise TypeError("normal: with numbers for mean and std, size is needed")
        size = broadcast_shapes(*(tuple(each.shape) for each in (mean, std) if isinstance(each, Tensor)))
        device = like.device if device is None else device
        dtype = like.dtype if dtype is None else dtype
        if dtype.category < 2:
            raise NotImplementedError(f'"normal" not implemented for {dtype}; convert the Tensor with .float()')
    drawn = randn(size, generator=generator, dtype=dtype, device=device)
    scale, shift = (each.detach() if isinstance(each, Tensor) else each for each in (std, mean))
    return constant_beside((drawn * scale + shift).to(drawn.dtype), mean, std)


@heard
def bernoulli(input: Tensor, p: float | None = None, *, generator: Generator | None = None) -> Tensor:
    """1 with the probability each element gives, or `p` for all of them, else 0; the derivative is 0.

    Raises: RuntimeError for probabilities outside [0, 1] (those of a GPU are not looked at); NotImplementedError for
    integers without `p`.
    """
    if p is not None:
        return bernoulli_(empty_like(input), p, generator=generator)
    if not input.is_floating_point():
        raise NotImplementedError(f'"bernoulli" not implemented for {input.dtype}; convert with .float(), or give p')
    if input.is_cuda:
        drawn = empty(tuple(input.shape), dtype=input.dtype, device=input.device)
        return constant_beside(bernoulli_(drawn, input.detach(), generator=generator), input)
    draws = _stream(generator).random(tuple(input.shape))
    probability = input.detach().numpy()
    if not ((probability >= 0) & (probability <= 1)).all():
        raise RuntimeError("bernoulli: expected all probabilities to be in [0, 1]")
    return constant_beside(wrap_array(np.asarray(draws < probability).astype(input.dtype.numpy), input.device), input)


@heard
def multinomial(
    input: Tensor, num_samples: int, replacement: bool = False, *, generator: Generator | None = None
) -> Tensor:
    """Indices drawn from the rows' weights. On a GPU the weights themselves are not checked: that would wait for it."""
    if input.ndim not in (1, 2):
        raise RuntimeError(f"multinomial: prob_dist must be 1 or 2 dim, got shape {list(input.shape)}")
    if not input.is_floating_point():
        raise RuntimeError(f"multinomial only supports floating-point dtypes for input, got: {input.dtype}")
    if num_samples <= 0:
        raise RuntimeError(f"multinomial: cannot sample n_sample <= 0 samples, got {num_samples}")
    if not replacement and num_samples > input.shape[-1]:
        raise RuntimeError(
            f"multinomial: cannot sample n_sample > prob_dist.size(-1) samples without replacement, got {num_samples} "
            f"of {input.shape[-1]}"
        )
    if input.is_cuda:
        return multinomial_there(input, num_samples, replacement, generator)
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


# --- in place ---------------------------------------------------------------------------------------------------------


@heard
def uniform_(
    self: Tensor, a: float = 0.0, b: float = 1.0, *, generator: Generator | None = None, **bounds: float
) -> Tensor:
    """Fills with uniform values on [a, b)."""
    a, b = bounds.pop("from", a), bounds.pop("to", b)
    if a > b:
        raise RuntimeError(f"uniform_ expects to return a [from, to) range, but found from={a} > to={b}")
    if self.is_cuda:
        _floating(self.dtype)
        return filled_there(self, "uniform_", generator, "uniform", a, b)
    drawn = _drawn("random", tuple(self.shape), _floating(self.dtype), generator)
    return overwrite(self, drawn * (b - a) + a, "uniform_")


@heard
def normal_(self: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Generator | None = None) -> Tensor:
    """Fills with normal values."""
    if std < 0:
        raise RuntimeError(f"normal expects std >= 0.0, but found std {std}")
    if self.is_cuda:
        _floating(self.dtype)
        return filled_there(self, "normal_", generator, "normal", mean, std)
    drawn = _drawn("standard_normal", tuple(self.shape), _floating(self.dtype), generator)
    return overwrite(self, drawn * std + mean, "normal_")


@heard
def bernoulli_(self: Tensor, p: Any = 0.5, *, generator: Generator | None = None) -> Tensor:
    """Fills with 1 (probability p) and 0."""
    if not isinstance(p, Tensor) and not 0 <= p <= 1:
        raise RuntimeError(f"bernoulli_ expects p to be in [0, 1], but got p={p}")
    if self.is_cuda:
        if not isinstance(p, Tensor):
            return filled_there(self, "bernoulli_", generator, "bernoulli", float(p))
        return bernoulli_there(self, p, generator)
    p = p.detach().cpu().numpy() if isinstance(p, Tensor) else p
    return overwrite(self, _stream(generator).random(tuple(self.shape)) < p, "bernoulli_")


@heard
def random_(self: Tensor, low: int = 0, high: int | None = None, *, generator: Generator | None = None) -> Tensor:
    """Fills with integers on [low, high)."""
    if high is None:
        low, high = 0, low or _integers_of(self.dtype)
    if low >= high:
        raise RuntimeError(f"random_ expects 'from' to be less than 'to', but got from={low} >= to={high}")
    if self.is_cuda:
        return filled_there(self, "random_", generator, "integers", int(low), int(high))
    return overwrite(self, _stream(generator).integers(low, high, tuple(self.shape)), "random_")


def _integers_of(kind: Kind) -> int:
    """How many integers from 0 on a dtype has without gaps, up to 2**63 - 1."""
    if kind.is_floating_point:
        return int(2 / finfo(kind).eps) + 1
    return 2 if kind.category == 0 else 2 ** (8 * kind.itemsize - kind.is_signed)


@heard
def exponential_(self: Tensor, lambd: float = 1.0, *, generator: Generator | None = None) -> Tensor:
    """Fills with exponential values of rate `lambd`."""
    if lambd <= 0:
        raise RuntimeError(f"exponential_ expects lambda > 0.0, but found lambda={lambd}")
    if self.is_cuda:
        _floating(self.dtype)
        return filled_there(self, "exponential_", generator, "exponential", float(lambd))
    return overwrite(self, _stream(generator).exponential(1 / lambd, tuple(self.shape)), "exponential_")


def poisson(input: Tensor, generator: Generator | None = None) -> Tensor:
    """Draws from Poisson distributions with the elements as rates, in their dtype.

    Raises: RuntimeError below 0; on a GPU, where looking would wait for it, such a draw is NaN.
    """
    if input.is_cpu and (input.detach() < 0).any():
        raise RuntimeError(f"poisson: expected rates that are not negative, got {input.min().item()}")
    return sampling.poisson(input, input.shape, generator).to(input.dtype)


def binomial(count: Tensor, prob: Tensor, generator: Generator | None = None) -> Tensor:
    """Draws of how many of `count` trials succeed, each with probability `prob`, in their dtype.

    Raises: ValueError for negative counts or probabilities outside [0, 1]; on a GPU such a draw is NaN.
    """
    shape = broadcast_shapes(tuple(count.shape), tuple(prob.shape))
    return sampling.binomial(count, prob, shape, generator).to(count.dtype)
