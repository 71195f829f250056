"""Invertible elementwise functions with the logarithm of their slope."""

import math
from typing import Any

import engine
from engine.nn.functional import softplus
from engine.tensor import Tensor


class Transform:
    """y = f(x). `cache_size=1` remembers the last pair, so that `inv` of the last y is exactly its x."""

    def __init__(self, cache_size: int = 0) -> None:
        if cache_size not in (0, 1):
            raise ValueError("cache_size must be 0 or 1")
        self._remembers = cache_size == 1
        self._last: tuple[Any, Any] = (None, None)

    def __call__(self, x: Tensor) -> Tensor:
        if self._remembers and x is self._last[0]:
            return self._last[1]
        y = self._forward(x)
        if self._remembers:
            self._last = (x, y)
        return y

    def inv(self, y: Tensor) -> Tensor:
        """x with f(x) = y."""
        if self._remembers and y is self._last[1]:
            return self._last[0]
        return self._inverse(y)

    def _forward(self, x: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} defines no _forward")

    def _inverse(self, y: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} defines no _inverse")

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """log |dy/dx| at each element."""
        raise NotImplementedError(f"{type(self).__name__} defines no log_abs_det_jacobian")


class ExpTransform(Transform):
    """y = exp(x)."""

    def _forward(self, x: Tensor) -> Tensor:
        return x.exp()

    def _inverse(self, y: Tensor) -> Tensor:
        return y.log()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return x


class SigmoidTransform(Transform):
    """y = 1 / (1 + exp(-x))."""

    def _forward(self, x: Tensor) -> Tensor:
        tiny, eps = engine.finfo(x.dtype).tiny, engine.finfo(x.dtype).eps
        return x.sigmoid().clamp(min=tiny, max=1.0 - eps)

    def _inverse(self, y: Tensor) -> Tensor:
        tiny, eps = engine.finfo(y.dtype).tiny, engine.finfo(y.dtype).eps
        y = y.clamp(min=tiny, max=1.0 - eps)
        return y.log() - (-y).log1p()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return -softplus(-x) - softplus(x)


class TanhTransform(Transform):
    """y = tanh(x)."""

    def _forward(self, x: Tensor) -> Tensor:
        return x.tanh()

    def _inverse(self, y: Tensor) -> Tensor:
        return y.atanh()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return 2.0 * (math.log(2.0) - x - softplus(-2.0 * x))


class AffineTransform(Transform):
    """y = loc + scale x."""

    def __init__(self, loc: Any, scale: Any, event_dim: int = 0, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        if event_dim:
            raise NotImplementedError(
                f"AffineTransform: event_dim={event_dim} is not supported; wrap the base in Independent"
            )
        self.loc, self.scale = loc, scale

    def _forward(self, x: Tensor) -> Tensor:
        return self.loc + self.scale * x

    def _inverse(self, y: Tensor) -> Tensor:
        return (y - self.loc) / self.scale

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        scale = engine.as_tensor(self.scale, dtype=x.dtype)
        return scale.abs().log().expand(x.shape)
