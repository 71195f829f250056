"""Activations: those that `engine.ops` has without `inplace`, and those composed from its primitives."""

from typing import Any

import engine
from engine import ops
from engine.calls.listening import heard
from engine.tensor import Tensor


def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """max(0, x)."""
    return ops.relu_(input) if inplace else ops.relu(input)


def hardtanh_(input: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    return hardtanh(input, min_val, max_val, inplace=True)


def threshold_(input: Tensor, threshold: float, value: float) -> Tensor:
    return ops.threshold(input, threshold, value, inplace=True)


def elu_(input: Tensor, alpha: float = 1.0) -> Tensor:
    return elu(input, alpha, inplace=True)


def selu_(input: Tensor) -> Tensor:
    return selu(input, inplace=True)


def celu_(input: Tensor, alpha: float = 1.0) -> Tensor:
    return celu(input, alpha, inplace=True)


def leaky_relu_(input: Tensor, negative_slope: float = 0.01) -> Tensor:
    return leaky_relu(input, negative_slope, inplace=True)


def rrelu_(input: Tensor, lower: float = 1.0 / 8, upper: float = 1.0 / 3, training: bool = False) -> Tensor:
    return rrelu(input, lower, upper, training, inplace=True)


def relu6(input: Tensor, inplace: bool = False) -> Tensor:
    """min(max(0, x), 6)."""
    return ops.relu6(input, inplace)


def hardtanh(input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Tensor:
    """x clamped to [min_val, max_val]; no gradient at and beyond the bounds. Raises ValueError if min_val > max_val."""
    return ops.hardtanh(input, min_val, max_val, inplace=inplace)


def threshold(input: Tensor, threshold: float, value: float, inplace: bool = False) -> Tensor:
    """x where x > threshold, else value."""
    return ops.threshold(input, threshold, value, inplace=inplace)


def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """x where x > 0, else alpha (exp(x) - 1)."""
    return ops.elu(input, alpha, inplace=inplace)


def selu(input: Tensor, inplace: bool = False) -> Tensor:
    """scale · elu with the constants of Klambauer et al. (2017), which keep mean 0 and variance 1."""
    return ops.selu(input, inplace)


def celu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """max(0, x) + min(0, alpha (exp(x / alpha) - 1)). Raises RuntimeError if alpha is 0."""
    return ops.celu(input, alpha, inplace=inplace)


def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """x where x > 0, else negative_slope · x."""
    return ops.leaky_relu(input, negative_slope, inplace=inplace)


def rrelu(
    input: Tensor, lower: float = 1.0 / 8, upper: float = 1.0 / 3, training: bool = False, inplace: bool = False
) -> Tensor:
    """Leaky ReLU whose slope is drawn from U(lower, upper) for each element in training, their mean otherwise."""
    if lower > upper:
        raise RuntimeError(f"rrelu: Lower bound should be less than or equal to the upper bound, got {lower} > {upper}")
    if not training:
        return leaky_relu(input, (lower + upper) / 2, inplace)
    slopes = engine.empty_like(input).uniform_(lower, upper)
    sloped = engine.where(input > 0, input, input * slopes)
    return input.copy_(sloped) if inplace else sloped


def silu(input: Tensor, inplace: bool = False) -> Tensor:
    """x σ(x)."""
    return ops.silu(input, inplace)


def mish(input: Tensor, inplace: bool = False) -> Tensor:
    """x tanh(softplus(x))."""
    return ops.mish(input, inplace)


def hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    """min(max(0, x + 3), 6) / 6."""
    return ops.hardsigmoid(input, inplace)


def hardswish(input: Tensor, inplace: bool = False) -> Tensor:
    """x · hardsigmoid(x)."""
    return ops.hardswish(input, inplace)


def tanhshrink(input: Tensor) -> Tensor:
    """x - tanh(x)."""
    return input - ops.tanh(input)


def softsign(input: Tensor) -> Tensor:
    """x / (1 + |x|)."""
    return input / (input.abs() + 1)


def tanh(input: Tensor) -> Tensor:
    return ops.tanh(input)


def sigmoid(input: Tensor) -> Tensor:
    return ops.sigmoid(input)


def glu(input: Tensor, dim: int = -1) -> Tensor:
    """a · σ(b) for the two halves of x along `dim`. Raises RuntimeError if the size there is odd."""
    if input.dim() == 0:
        raise RuntimeError("glu does not support 0-dimensional tensors")
    if input.shape[dim] % 2:
        raise RuntimeError(f"Halving dimension must be even, but dimension {dim} is size {input.shape[dim]}")
    a, b = input.chunk(2, dim)
    return a * ops.sigmoid(b)


@heard
def softmax(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
    """exp(x) / Σ exp(x) along `dim`."""
    return ops.softmax(input, _default_dim(input, dim), dtype)


def softmin(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
    """softmax(-x)."""
    return ops.softmax(-input, _default_dim(input, dim), dtype)


@heard
def log_softmax(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
    """log softmax(x) along `dim`, computed without overflow."""
    return ops.log_softmax(input, _default_dim(input, dim), dtype)


def gumbel_softmax(logits: Tensor, tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1) -> Tensor:
    """A sample of the Gumbel-softmax distribution; `hard` gives one-hot values with the soft sample's gradient.

    Jang et al. (2017). `eps` has no effect, as in PyTorch.
    """
    noise = -engine.empty_like(logits).exponential_().log()
    soft = ops.softmax((logits + noise) / tau, dim, None)
    if not hard:
        return soft
    index = soft.argmax(dim, keepdim=True)
    return engine.zeros_like(soft).scatter_(dim, index, 1.0) - soft.detach() + soft


def _default_dim(input: Tensor, dim: int | None) -> int:
    """PyTorch's guess where softmax is called without `dim`: 0 for 0-, 1- and 3-D input, else 1."""
    if dim is not None:
        return dim
    return 0 if input.dim() in (0, 1, 3) else 1
