"""Distributions made of others: several as one event, a multivariate normal, and values passed through a function."""

import math
from collections.abc import Sequence
from typing import Any

import engine
from engine.distributions.continuous import Normal
from engine.distributions.distribution import Distribution, sum_last
from engine.distributions.transforms import ExpTransform, Transform
from engine.rules.spec import Size
from engine.tensor import Tensor


class Independent(Distribution):
    """Takes the last batch axes of another distribution as part of the event: log-probabilities are summed there."""

    def __init__(
        self, base_distribution: Distribution, reinterpreted_batch_ndims: int, validate_args: bool | None = None
    ) -> None:
        axes = len(base_distribution.batch_shape)
        if reinterpreted_batch_ndims > axes:
            raise ValueError(
                "Expected reinterpreted_batch_ndims <= len(base_distribution.batch_shape), actual "
                f"{reinterpreted_batch_ndims} vs {axes}"
            )
        self.base_dist = base_distribution
        self.reinterpreted_batch_ndims = reinterpreted_batch_ndims
        kept = axes - reinterpreted_batch_ndims
        self.batch_shape = base_distribution.batch_shape[:kept]
        self.event_shape = Size((*base_distribution.batch_shape[kept:], *base_distribution.event_shape))

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self.base_dist.sample(sample_shape)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self.base_dist.rsample(sample_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        return sum_last(self.base_dist.log_prob(value), self.reinterpreted_batch_ndims)

    def entropy(self) -> Tensor:
        return sum_last(self.base_dist.entropy(), self.reinterpreted_batch_ndims)

    @property
    def mean(self) -> Tensor:
        return self.base_dist.mean

    @property
    def variance(self) -> Tensor:
        return self.base_dist.variance

    def __repr__(self) -> str:
        return f"Independent({self.base_dist}, {self.reinterpreted_batch_ndims})"


class MultivariateNormal(Distribution):
    """N(loc, Σ) with Σ given as `covariance_matrix`, as its inverse `precision_matrix`, or as `scale_tril`, the lower
    triangular L with Σ = L Lᵀ. Raises: ValueError unless exactly one is given; what Cholesky raises.
    """

    has_rsample = True

    def __init__(
        self,
        loc: Tensor,
        covariance_matrix: Tensor | None = None,
        precision_matrix: Tensor | None = None,
        scale_tril: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        given = [each for each in (covariance_matrix, precision_matrix, scale_tril) if each is not None]
        if len(given) != 1:
            raise ValueError("Exactly one of covariance_matrix or precision_matrix or scale_tril may be specified.")
        if loc.dim() < 1:
            raise ValueError("loc must be at least one-dimensional.")
        if given[0].dim() < 2:
            raise ValueError("MultivariateNormal: expected a matrix of at least two dimensions")
        if scale_tril is None:
            scale_tril = engine.linalg.cholesky(given[0] if precision_matrix is None else engine.linalg.inv(given[0]))
        batch = engine.broadcast_shapes(scale_tril.shape[:-2], loc.shape[:-1])
        self.batch_shape, self.event_shape = Size(batch), loc.shape[-1:]
        self.loc = loc.expand((*batch, -1))
        self.scale_tril = scale_tril.expand((*batch, -1, -1))

    @property
    def covariance_matrix(self) -> Tensor:
        """Σ."""
        return self.scale_tril @ self.scale_tril.mT

    @property
    def precision_matrix(self) -> Tensor:
        """Σ⁻¹."""
        return engine.linalg.inv(self.covariance_matrix)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        noise = engine.randn(self._shape(sample_shape), dtype=self.loc.dtype, device=self.loc.device)
        return self.loc + (self.scale_tril @ noise.unsqueeze(-1)).squeeze(-1)

    def _half_log_det(self) -> Tensor:
        return self.scale_tril.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        difference = (value - self.loc).unsqueeze(-1)
        lower = self.scale_tril.expand((*difference.shape[:-2], -1, -1))
        scaled = engine.linalg.solve_triangular(lower, difference, upper=False).squeeze(-1)
        size = self.event_shape[0]
        return -0.5 * (size * math.log(2 * math.pi) + scaled.square().sum(-1)) - self._half_log_det()

    def entropy(self) -> Tensor:
        return 0.5 * self.event_shape[0] * (1.0 + math.log(2 * math.pi)) + self._half_log_det()

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        return self.scale_tril.square().sum(-1)


class TransformedDistribution(Distribution):
    """Values of another distribution passed through transforms, one after the other."""

    has_rsample = True

    def __init__(
        self,
        base_distribution: Distribution,
        transforms: Transform | Sequence[Transform],
        validate_args: bool | None = None,
    ) -> None:
        self.base_dist = base_distribution
        self.transforms = [transforms] if isinstance(transforms, Transform) else list(transforms)
        self.batch_shape, self.event_shape = base_distribution.batch_shape, base_distribution.event_shape

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        with engine.no_grad():
            return self._through(self.base_dist.sample(sample_shape))

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self._through(self.base_dist.rsample(sample_shape))

    def _through(self, x: Tensor) -> Tensor:
        for transform in self.transforms:
            x = transform(x)
        return x

    def log_prob(self, value: Tensor) -> Tensor:
        correction: Any = 0.0
        for transform in reversed(self.transforms):
            x = transform.inv(value)
            slope = transform.log_abs_det_jacobian(x, value)
            correction = correction + sum_last(slope, len(self.event_shape))
            value = x
        return self.base_dist.log_prob(value) - correction


class LogNormal(TransformedDistribution):
    """exp of N(loc, scale²)."""

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        normal = Normal(loc, scale, validate_args)
        super().__init__(normal, ExpTransform())
        self.loc, self.scale = normal.loc, normal.scale

    def entropy(self) -> Tensor:
        return self.base_dist.entropy() + self.loc

    @property
    def mean(self) -> Tensor:
        return (self.loc + self.scale**2 / 2).exp()

    @property
    def variance(self) -> Tensor:
        square = self.scale**2
        return square.expm1() * (2 * self.loc + square).exp()
