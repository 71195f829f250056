"""Gamma, beta and Dirichlet distributions. Their samples carry no gradient here."""

from collections.abc import Sequence
from typing import Any

import engine
from engine.distributions.distribution import Distribution, require, tensors
from engine.ops.random import sampling
from engine.rules.spec import Size
from engine.tensor import Tensor


def _standard_gamma(concentration: Tensor, shape: Sequence[int]) -> Tensor:
    """Draws from gamma distributions of rate 1, kept above 0."""
    draws = sampling.standard_gamma(concentration, shape)
    return draws.to(concentration.dtype).clamp(min=engine.finfo(concentration.dtype).tiny)


class Gamma(Distribution):
    """rate^a x^(a-1) exp(-rate x) / Γ(a), a the concentration. Raises: ValueError unless both are above 0."""

    def __init__(self, concentration: Any, rate: Any, validate_args: bool | None = None) -> None:
        self.concentration, self.rate = tensors(concentration, rate)
        self.batch_shape = self.rate.shape
        if validate_args is not False:
            require((self.concentration > 0) & (self.rate > 0), "Gamma: expected concentration and rate above 0")

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws of shape sample_shape + batch_shape, without history."""
        return _standard_gamma(self.concentration, self._shape(sample_shape)) / self.rate.detach()

    def log_prob(self, value: Tensor) -> Tensor:
        a = self.concentration
        return engine.xlogy(a, self.rate) + engine.xlogy(a - 1, value) - self.rate * value - engine.lgamma(a)

    def entropy(self) -> Tensor:
        a = self.concentration
        return a - self.rate.log() + engine.lgamma(a) + (1.0 - a) * engine.digamma(a)

    @property
    def mean(self) -> Tensor:
        return self.concentration / self.rate

    @property
    def variance(self) -> Tensor:
        return self.concentration / self.rate**2


class Dirichlet(Distribution):
    """On vectors of non-negative numbers that sum to 1, along the last axis. Raises: ValueError unless all
    concentrations are above 0.
    """

    def __init__(self, concentration: Tensor, validate_args: bool | None = None) -> None:
        if concentration.dim() < 1:
            raise ValueError("`concentration` parameter must be at least one-dimensional.")
        self.concentration = concentration
        self.batch_shape, self.event_shape = concentration.shape[:-1], concentration.shape[-1:]
        if validate_args is not False:
            require(concentration > 0, "Dirichlet: expected concentrations above 0")

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws of shape sample_shape + batch_shape + event_shape, without history."""
        draws = _standard_gamma(self.concentration, self._shape(sample_shape))
        return draws / draws.sum(-1, keepdim=True)

    def log_prob(self, value: Tensor) -> Tensor:
        a = self.concentration
        return engine.xlogy(a - 1.0, value).sum(-1) + engine.lgamma(a.sum(-1)) - engine.lgamma(a).sum(-1)

    def entropy(self) -> Tensor:
        a, k = self.concentration, self.concentration.shape[-1]
        total = a.sum(-1)
        normaliser = engine.lgamma(a).sum(-1) - engine.lgamma(total)
        return normaliser - (k - total) * engine.digamma(total) - ((a - 1.0) * engine.digamma(a)).sum(-1)

    @property
    def mean(self) -> Tensor:
        return self.concentration / self.concentration.sum(-1, keepdim=True)

    @property
    def variance(self) -> Tensor:
        total = self.concentration.sum(-1, keepdim=True)
        return self.concentration * (total - self.concentration) / (total**2 * (total + 1))


class Beta(Distribution):
    """x^(a-1) (1-x)^(b-1) / B(a, b) on [0, 1]. Raises: ValueError unless both concentrations are above 0."""

    event_shape = Size(())

    def __init__(self, concentration1: Any, concentration0: Any, validate_args: bool | None = None) -> None:
        self.concentration1, self.concentration0 = tensors(concentration1, concentration0)
        self.batch_shape = self.concentration1.shape
        self._dirichlet = Dirichlet(engine.stack([self.concentration1, self.concentration0], -1), validate_args)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws of shape sample_shape + batch_shape, without history."""
        return self._dirichlet.sample(sample_shape).select(-1, 0)

    def log_prob(self, value: Tensor) -> Tensor:
        return self._dirichlet.log_prob(engine.stack([value, 1.0 - value], -1))

    def entropy(self) -> Tensor:
        return self._dirichlet.entropy()

    @property
    def mean(self) -> Tensor:
        return self.concentration1 / (self.concentration1 + self.concentration0)

    @property
    def variance(self) -> Tensor:
        total = self.concentration1 + self.concentration0
        return self.concentration1 * self.concentration0 / (total**2 * (total + 1))
