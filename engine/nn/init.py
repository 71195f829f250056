"""Initialisers fill a tensor in place, unrecorded, and return it: names, formulas and defaults of `torch.nn.init`."""

import math
import warnings
from collections.abc import Callable
from typing import Any

import engine
from engine.autograd.modes import no_grad
from engine.memory import backend
from engine.tensor import Tensor

_GAINS = {
    "linear": 1.0,
    "conv1d": 1.0,
    "conv2d": 1.0,
    "conv3d": 1.0,
    "conv_transpose1d": 1.0,
    "conv_transpose2d": 1.0,
    "conv_transpose3d": 1.0,
    "sigmoid": 1.0,
    "tanh": 5.0 / 3.0,
    "relu": math.sqrt(2.0),
    "selu": 0.75,
}


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """The factor that keeps the variance of activations through `nonlinearity`; `param` is leaky ReLU's slope (0.01).

    Raises: ValueError for an unknown nonlinearity or a slope that is no number.
    """
    if nonlinearity == "leaky_relu":
        slope = 0.01 if param is None else param
        if isinstance(slope, bool) or not isinstance(slope, int | float):
            raise ValueError(f"negative_slope {param} not a valid number")
        return math.sqrt(2.0 / (1 + slope**2))
    if nonlinearity not in _GAINS:
        known = ", ".join([*_GAINS, "leaky_relu"])
        raise ValueError(f"Unsupported nonlinearity {nonlinearity}; known are {known}")
    return _GAINS[nonlinearity]


def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: Any = None) -> Tensor:
    """Draws from U(a, b)."""
    with no_grad():
        return tensor.uniform_(a, b, generator=generator)


def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: Any = None) -> Tensor:
    """Draws from N(mean, std²)."""
    with no_grad():
        return tensor.normal_(mean, std, generator=generator)


def trunc_normal_(
    tensor: Tensor, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0, generator: Any = None
) -> Tensor:
    """Draws from N(mean, std²) restricted to [a, b], by inverting the distribution function."""

    def below(x: float) -> float:
        return (1.0 + math.erf(x / math.sqrt(2.0))) / 2.0

    if mean < a - 2 * std or mean > b + 2 * std:
        warnings.warn(
            "mean is more than 2 std from [a, b] in nn.init.trunc_normal_. The distribution of values may be "
            "incorrect.",
            stacklevel=2,
        )
    lower, upper = below((a - mean) / std), below((b - mean) / std)
    with no_grad():
        tensor.uniform_(2 * lower - 1, 2 * upper - 1, generator=generator)
        tensor.copy_(tensor.erfinv())
        tensor.mul_(std * math.sqrt(2.0))
        tensor.add_(mean)
        return tensor.clamp_(min=a, max=b)


def constant_(tensor: Tensor, val: float) -> Tensor:
    with no_grad():
        return tensor.fill_(val)


def ones_(tensor: Tensor) -> Tensor:
    return constant_(tensor, 1.0)


def zeros_(tensor: Tensor) -> Tensor:
    return constant_(tensor, 0.0)


def eye_(tensor: Tensor) -> Tensor:
    """The identity, as much of it as fits. Raises ValueError unless 2-D."""
    _require_dimensions(tensor, "Only tensors with 2 dimensions are supported", 2)
    with no_grad():
        tensor.zero_()
        tensor.diagonal().fill_(1.0)
    return tensor


def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    """Weights (out, in / groups, ...) that pass channels through unchanged. Raises ValueError unless 3-, 4- or 5-D."""
    _require_dimensions(tensor, "Only tensors with 3, 4, or 5 dimensions are supported", 3, 4, 5)
    if tensor.shape[0] % groups != 0:
        raise ValueError("dim 0 must be divisible by groups")
    each = tensor.shape[0] // groups
    centre = tuple(size // 2 for size in tensor.shape[2:])
    with no_grad():
        tensor.zero_()
        for group in range(groups):
            for channel in range(min(each, tensor.shape[1])):
                tensor[(group * each + channel, channel, *centre)] = 1
    return tensor


def _require_dimensions(tensor: Tensor, message: str, *allowed: int) -> None:
    if tensor.dim() not in allowed:
        raise ValueError(f"{message}; got shape {tuple(tensor.shape)}")


def _calculate_fan_in_and_fan_out(tensor: Tensor) -> tuple[int, int]:
    """(inputs an output depends on, outputs an input feeds) of weights (out, in, ...). Raises ValueError below 2-D."""
    if tensor.dim() < 2:
        raise ValueError("Fan in and fan out can not be computed for tensor with fewer than 2 dimensions")
    window = math.prod(tensor.shape[2:])
    return tensor.shape[1] * window, tensor.shape[0] * window


def _fan(tensor: Tensor, mode: str) -> int:
    if mode.lower() not in ("fan_in", "fan_out"):
        raise ValueError(f"Mode {mode} not supported, please use one of ['fan_in', 'fan_out']")
    return _calculate_fan_in_and_fan_out(tensor)[mode.lower() == "fan_out"]


def xavier_uniform_(tensor: Tensor, gain: float = 1.0, generator: Any = None) -> Tensor:
    """U(-x, x) with x = gain · sqrt(6 / (fan_in + fan_out)). Glorot and Bengio (2010)."""
    bound = gain * math.sqrt(2.0 / sum(_calculate_fan_in_and_fan_out(tensor))) * math.sqrt(3.0)
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: Any = None) -> Tensor:
    """N(0, std²) with std = gain · sqrt(2 / (fan_in + fan_out)). Glorot and Bengio (2010)."""
    return normal_(tensor, 0.0, gain * math.sqrt(2.0 / sum(_calculate_fan_in_and_fan_out(tensor))), generator)


def kaiming_uniform_(
    tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu", generator: Any = None
) -> Tensor:
    """U(-x, x) with x = gain · sqrt(3 / fan). He et al. (2015). `a` is the slope of a leaky ReLU."""
    if 0 in tensor.shape:
        warnings.warn("Initializing zero-element tensors is a no-op", stacklevel=2)
        return tensor
    bound = math.sqrt(3.0) * (calculate_gain(nonlinearity, a) / math.sqrt(_fan(tensor, mode)))
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(
    tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu", generator: Any = None
) -> Tensor:
    """N(0, std²) with std = gain / sqrt(fan). He et al. (2015). `a` is the slope of a leaky ReLU."""
    if 0 in tensor.shape:
        warnings.warn("Initializing zero-element tensors is a no-op", stacklevel=2)
        return tensor
    return normal_(tensor, 0.0, calculate_gain(nonlinearity, a) / math.sqrt(_fan(tensor, mode)), generator)


def orthogonal_(tensor: Tensor, gain: float = 1, generator: Any = None) -> Tensor:
    """A (semi-)orthogonal matrix of shape (rows, the rest flattened), times gain. Saxe et al. (2013).

    Raises: ValueError below 2-D.
    """
    if tensor.dim() < 2:
        raise ValueError("Only tensors with 2 or more dimensions are supported")
    if tensor.numel() == 0:
        return tensor
    rows = tensor.shape[0]
    columns = tensor.numel() // rows
    with no_grad():
        flat = engine.empty(rows, columns, dtype=tensor.dtype, device=tensor.device).normal_(0, 1, generator=generator)
        xp = backend.array_module(tensor.device)
        tall = flat._array.T if rows < columns else flat._array
        q, r = xp.linalg.qr(tall)
        # the signs make the decomposition unique, and the distribution uniform: Mezzadri (2006)
        q *= xp.sign(xp.diagonal(r))
        matrix = (q.T if rows < columns else q).reshape(tuple(tensor.shape))
        return tensor.copy_(Tensor(matrix, backend.spec_of_array(matrix, tensor.device))).mul_(gain)


def sparse_(tensor: Tensor, sparsity: float, std: float = 0.01, generator: Any = None) -> Tensor:
    """N(0, std²) with a fraction `sparsity` of each column zero. Martens (2010). Raises ValueError unless 2-D."""
    _require_dimensions(tensor, "Only tensors with 2 dimensions are supported", 2)
    rows, columns = tensor.shape
    zeros = math.ceil(sparsity * rows)
    with no_grad():
        tensor.normal_(0, std, generator=generator)
        for column in range(columns):
            tensor[engine.randperm(rows)[:zeros], column] = 0
    return tensor


def _older(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The function under the name without the underscore, which says so."""
    new = function.__name__
    old = new.rstrip("_")

    def initialiser(*args: Any, **kwargs: Any) -> Tensor:
        warnings.warn(f"`nn.init.{old}` is now deprecated in favor of `nn.init.{new}`.", FutureWarning, stacklevel=2)
        return function(*args, **kwargs)

    initialiser.__name__ = initialiser.__qualname__ = old
    initialiser.__doc__ = f"The older name of `{new}`."
    return initialiser


uniform = _older(uniform_)
normal = _older(normal_)
constant = _older(constant_)
eye = _older(eye_)
dirac = _older(dirac_)
xavier_uniform = _older(xavier_uniform_)
xavier_normal = _older(xavier_normal_)
kaiming_uniform = _older(kaiming_uniform_)
kaiming_normal = _older(kaiming_normal_)
orthogonal = _older(orthogonal_)
sparse = _older(sparse_)
