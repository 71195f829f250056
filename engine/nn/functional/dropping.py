"""Dropout: zero elements (or whole channels) at random and scale the rest, so that the expectation stays."""

from engine import ops
from engine.ops.random.dropout import keep_mask
from engine.tensor import Tensor


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Zeroes elements with probability p and divides the others by 1 - p. Raises ValueError unless 0 <= p <= 1."""
    return _drop(input, tuple(input.shape), p, training, inplace)


def dropout1d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Zeroes whole channels of (N, C, L) or (C, L)."""
    if input.dim() not in (2, 3):
        raise RuntimeError(f"dropout1d: Expected 2D or 3D input, but received a {input.dim()}D input.")
    return _drop(input, _channels(input, unbatched=input.dim() == 2), p, training, inplace)


def dropout2d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Zeroes whole channels of (N, C, H, W) or any (N, C, ...)."""
    return _drop(input, _channels(input, unbatched=False), p, training, inplace)


def dropout3d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Zeroes whole channels of (N, C, D, H, W) or (C, D, H, W)."""
    return _drop(input, _channels(input, unbatched=input.dim() == 4), p, training, inplace)


def alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """Dropout that keeps the mean and variance of SELU networks. Klambauer et al. (2017)."""
    return _drop_alpha(input, tuple(input.shape), p, training, inplace)


def feature_alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """`alpha_dropout` of whole channels of (N, C, ...)."""
    if not training:
        return _drop_alpha(input, (), p, False, inplace)
    return _drop_alpha(input, _channels(input, unbatched=False), p, training, inplace)


def _channels(input: Tensor, unbatched: bool) -> tuple[int, ...]:
    """Shape of a mask with one value a channel."""
    if input.dim() < 2:
        raise RuntimeError("Feature dropout requires at least 2 dimensions in the input")
    kept = 1 if unbatched else 2
    return tuple(input.shape[:kept]) + (1,) * (input.dim() - kept)


def _drop(input: Tensor, shape: tuple[int, ...], p: float, training: bool, inplace: bool) -> Tensor:
    dropped = ops.dropout(input, p, training, shape)
    return input.copy_(dropped) if inplace and dropped is not input else dropped


def _drop_alpha(input: Tensor, shape: tuple[int, ...], p: float, training: bool, inplace: bool) -> Tensor:
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
    if not training or p == 0 or input.numel() == 0:
        return input
    if p == 1:
        return input.mul_(0.0) if inplace else input * 0.0
    # dropped values become -scale · alpha of SELU, then an affine map restores mean 0 and variance 1
    alpha = 1.7580993408473766
    slope = 1.0 / ((alpha * alpha * p + 1) * (1 - p)) ** 0.5
    kept = keep_mask(shape, 1 - p, input.device).to(input.dtype)
    factor = kept * slope
    shift = (kept - 1) * (alpha * slope) + alpha * slope * p
    return input.mul_(factor).add_(shift) if inplace else input * factor + shift
