"""Distributions of real numbers with a location, a scale or bounds: all have reparameterized samples."""

import math
from collections.abc import Sequence
from typing import Any

import engine
from engine.distributions.distribution import Distribution, require, tensors
from engine.tensor import Tensor

EULER = 0.57721566490153286


def _noise(parameter: Tensor, shape: Sequence[int]) -> Tensor:
    return engine.randn(shape, dtype=parameter.dtype, device=parameter.device)


def _open_uniform(parameter: Tensor, shape: Sequence[int]) -> Tensor:
    """From (0, 1), the ends left out, so that logarithms are finite."""
    draws = engine.rand(shape, dtype=parameter.dtype, device=parameter.device)
    return draws.clamp(min=engine.finfo(parameter.dtype).tiny)


class _LocationScale(Distribution):
    has_rsample = True

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        self.loc, self.scale = tensors(loc, scale)
        self.batch_shape = self.loc.shape
        if validate_args is not False:
            require(self.scale > 0, f"{type(self).__name__}: expected a scale above 0, got {self.scale}")

    @property
    def mean(self) -> Tensor:
        return self.loc


class Normal(_LocationScale):
    """N(loc, scale²). Raises: ValueError unless scale > 0."""

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self.loc + _noise(self.loc, self._shape(sample_shape)) * self.scale

    def log_prob(self, value: Tensor) -> Tensor:
        distance = (value - self.loc) ** 2
        return -distance / (2 * self.scale**2) - self.scale.log() - math.log(math.sqrt(2 * math.pi))

    def cdf(self, value: Tensor) -> Tensor:
        """P(x <= value)."""
        return 0.5 * (1 + engine.erf((value - self.loc) / (self.scale * math.sqrt(2))))

    def icdf(self, value: Tensor) -> Tensor:
        """The inverse of `cdf`."""
        return self.loc + self.scale * engine.erfinv(2 * value - 1) * math.sqrt(2)

    def entropy(self) -> Tensor:
        return 0.5 + 0.5 * math.log(2 * math.pi) + self.scale.log()

    @property
    def mode(self) -> Tensor:
        """The most likely value."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        return self.scale**2


class Laplace(_LocationScale):
    """exp(-|x - loc| / scale) / (2 scale). Raises: ValueError unless scale > 0."""

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        u = engine.rand(self._shape(sample_shape), dtype=self.loc.dtype, device=self.loc.device) * 2 - 1
        u = u.clamp(min=-1 + engine.finfo(u.dtype).eps)
        return self.loc - self.scale * u.sign() * engine.log1p(-u.abs())

    def log_prob(self, value: Tensor) -> Tensor:
        return -(2 * self.scale).log() - (value - self.loc).abs() / self.scale

    def entropy(self) -> Tensor:
        return 1 + (2 * self.scale).log()

    @property
    def variance(self) -> Tensor:
        return 2 * self.scale**2


class Cauchy(_LocationScale):
    """1 / (π scale (1 + ((x - loc) / scale)²)): no mean, no variance. Raises: ValueError unless scale > 0."""

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        draws = engine.rand(self._shape(sample_shape), dtype=self.loc.dtype, device=self.loc.device)
        return self.loc + self.scale * engine.tan(math.pi * (draws - 0.5))

    def log_prob(self, value: Tensor) -> Tensor:
        return -math.log(math.pi) - self.scale.log() - (((value - self.loc) / self.scale) ** 2).log1p()

    def entropy(self) -> Tensor:
        return math.log(4 * math.pi) + self.scale.log()

    @property
    def mean(self) -> Tensor:
        return engine.full_like(self.loc, math.nan)

    @property
    def variance(self) -> Tensor:
        return engine.full_like(self.loc, math.inf)


class Gumbel(_LocationScale):
    """Density exp(-z - exp(-z)) / scale with z = (x - loc) / scale. Raises: ValueError unless scale > 0."""

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        uniform = _open_uniform(self.loc, self._shape(sample_shape))
        uniform = uniform.clamp(max=1 - engine.finfo(uniform.dtype).eps)
        return self.loc - self.scale * (-uniform.log()).log()

    def log_prob(self, value: Tensor) -> Tensor:
        y = (self.loc - value) / self.scale
        return (y - y.exp()) - self.scale.log()

    def entropy(self) -> Tensor:
        return self.scale.log() + (1 + EULER)

    @property
    def mean(self) -> Tensor:
        return self.loc + self.scale * EULER

    @property
    def variance(self) -> Tensor:
        return (math.pi / math.sqrt(6) * self.scale) ** 2


class Uniform(Distribution):
    """Uniform on [low, high). Raises: ValueError unless low < high."""

    has_rsample = True

    def __init__(self, low: Any, high: Any, validate_args: bool | None = None) -> None:
        self.low, self.high = tensors(low, high)
        self.batch_shape = self.low.shape
        if validate_args is not False:
            require(self.low < self.high, f"Uniform: expected low < high, got {self.low} and {self.high}")

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        draws = engine.rand(self._shape(sample_shape), dtype=self.low.dtype, device=self.low.device)
        return self.low + draws * (self.high - self.low)

    def log_prob(self, value: Tensor) -> Tensor:
        inside = ((value >= self.low) & (value < self.high)).to(self.low.dtype)
        return inside.log() - (self.high - self.low).log()

    def entropy(self) -> Tensor:
        return (self.high - self.low).log()

    @property
    def mean(self) -> Tensor:
        return (self.low + self.high) / 2

    @property
    def variance(self) -> Tensor:
        return (self.high - self.low) ** 2 / 12


class Exponential(Distribution):
    """rate exp(-rate x). Raises: ValueError unless rate > 0."""

    has_rsample = True

    def __init__(self, rate: Any, validate_args: bool | None = None) -> None:
        (self.rate,) = tensors(rate)
        self.batch_shape = self.rate.shape
        if validate_args is not False:
            require(self.rate > 0, f"Exponential: expected a rate above 0, got {self.rate}")

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return -_open_uniform(self.rate, self._shape(sample_shape)).log() / self.rate

    def log_prob(self, value: Tensor) -> Tensor:
        return self.rate.log() - self.rate * value

    def entropy(self) -> Tensor:
        return 1 - self.rate.log()

    @property
    def mean(self) -> Tensor:
        return self.rate.reciprocal()

    @property
    def variance(self) -> Tensor:
        return self.rate**-2


class HalfNormal(Distribution):
    """The absolute value of N(0, scale²). Raises: ValueError unless scale > 0."""

    has_rsample = True

    def __init__(self, scale: Any, validate_args: bool | None = None) -> None:
        self._base = Normal(0.0, scale, validate_args)
        self.scale = self._base.scale
        self.batch_shape = self.scale.shape

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self._base.rsample(sample_shape).abs()

    def log_prob(self, value: Tensor) -> Tensor:
        density = self._base.log_prob(value) + math.log(2)
        return engine.where(value >= 0, density, -math.inf)

    def entropy(self) -> Tensor:
        return self._base.entropy() - math.log(2)

    @property
    def mean(self) -> Tensor:
        return self.scale * math.sqrt(2 / math.pi)

    @property
    def variance(self) -> Tensor:
        return self.scale**2 * (1 - 2 / math.pi)
