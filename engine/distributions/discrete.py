"""Distributions over classes and counts."""

import math
from collections.abc import Sequence
from typing import Any

import engine
from engine.autograd.modes import no_grad
from engine.distributions.distribution import Distribution, require, tensors
from engine.ops.random import sampling
from engine.rules.spec import Size
from engine.tensor import Tensor


class _Given(Distribution):
    """Given by `probs` or by `logits`, exactly one of them."""

    def __init__(self, probs: Any, logits: Any) -> None:
        if (probs is None) == (logits is None):
            raise ValueError("Either `probs` or `logits` must be specified, but not both.")
        self._given_logits = probs is None
        (self._parameter,) = tensors(logits if probs is None else probs)

    def _clamped(self) -> Tensor:
        """Given probabilities, kept away from 0 and 1 so that their logarithms are finite."""
        eps = engine.finfo(self._parameter.dtype).eps
        return self._parameter.clamp(eps, 1 - eps)


class Categorical(_Given):
    """One of n classes, n the last axis of `probs` (any non-negative weights) or `logits`.

    Raises: ValueError unless exactly one is given, of at least one axis, non-negative weights or no NaN.
    """

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        super().__init__(probs, logits)
        given = self._parameter
        if not given.ndim:
            name = "logits" if self._given_logits else "probs"
            raise ValueError(f"`{name}` parameter must be at least one-dimensional.")
        self.batch_shape = given.shape[:-1]
        if validate_args is not False:
            require(given == given, f"Categorical: expected no NaN, got {given}")
            if not self._given_logits:
                require(given >= 0, f"Categorical: expected non-negative probs, got {given}")
        if self._given_logits:
            self.logits = given - given.logsumexp(-1, keepdim=True)
            self.probs = self.logits.softmax(-1)
        else:
            self.probs = given / given.sum(-1, keepdim=True)
            eps = engine.finfo(given.dtype).eps
            self.logits = self.probs.clamp(eps, 1 - eps).log()

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Class numbers (int64) of shape sample_shape + batch_shape."""
        draws = math.prod(sample_shape)
        with no_grad():
            rows = self.probs.reshape(-1, self.probs.shape[-1])
            return engine.multinomial(rows, draws, True).t().reshape((*sample_shape, *self.batch_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        value, logits = engine.broadcast_tensors(value.long().unsqueeze(-1), self.logits)
        return logits.gather(-1, value[..., :1]).squeeze(-1)

    def entropy(self) -> Tensor:
        smallest = engine.finfo(self.logits.dtype).min
        return -(self.logits.clamp(min=smallest) * self.probs).sum(-1)

    @property
    def mode(self) -> Tensor:
        """The most likely class."""
        return self.probs.argmax(-1)


class OneHotCategorical(Categorical):
    """`Categorical` whose values are one-hot vectors."""

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        super().__init__(probs, logits, validate_args)
        self.event_shape = self.probs.shape[-1:]

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """One-hot vectors of shape sample_shape + batch_shape + (classes,)."""
        chosen = super().sample(sample_shape)
        return engine.nn.functional.one_hot(chosen, self.probs.shape[-1]).to(self.probs.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        return super().log_prob(value.argmax(-1))

    @property
    def mean(self) -> Tensor:
        return self.probs

    @property
    def variance(self) -> Tensor:
        return self.probs * (1 - self.probs)


class RelaxedOneHotCategorical(_Given):
    """softmax((logits + Gumbel noise) / temperature): a differentiable stand-in for a one-hot draw. Jang et al.
    (2017), Maddison et al. (2017).
    """

    has_rsample = True

    def __init__(
        self, temperature: Any, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        super().__init__(probs, logits)
        chosen = Categorical(probs, logits, validate_args)
        self.temperature, self.probs, self.logits = temperature, chosen.probs, chosen.logits
        self.batch_shape, self.event_shape = chosen.batch_shape, chosen.probs.shape[-1:]

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        uniform = engine.rand(self._shape(sample_shape), dtype=self.logits.dtype, device=self.logits.device)
        eps = engine.finfo(uniform.dtype).eps
        noise = -(-uniform.clamp(eps, 1 - eps).log()).log()
        return ((self.logits + noise) / self.temperature).softmax(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        k = self.logits.shape[-1]
        temperature = engine.as_tensor(self.temperature, dtype=self.logits.dtype)
        scale = math.lgamma(k) + (k - 1) * temperature.log()
        score = self.logits - temperature * value.log()
        return (score - score.logsumexp(-1, keepdim=True)).sum(-1) + scale - value.log().sum(-1)


class Bernoulli(_Given):
    """1 with probability `probs` (or sigmoid of `logits`), else 0.

    Raises: ValueError unless exactly one is given; for probabilities outside of [0, 1].
    """

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        super().__init__(probs, logits)
        given = self._parameter
        self.batch_shape = given.shape
        if self._given_logits:
            self.logits, self.probs = given, given.sigmoid()
        else:
            if validate_args is not False:
                require((given >= 0) & (given <= 1), f"{type(self).__name__}: expected probs in [0, 1], got {given}")
            clamped = self._clamped()
            self.logits, self.probs = clamped.log() - (-clamped).log1p(), given

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Zeros and ones in the dtype of the parameter, of shape sample_shape + batch_shape."""
        with no_grad():
            return engine.bernoulli(self.probs.expand(self._shape(sample_shape)))

    def log_prob(self, value: Tensor) -> Tensor:
        logits, value = engine.broadcast_tensors(self.logits, value)
        return -_binary_cross_entropy(logits, value)

    def entropy(self) -> Tensor:
        return _binary_cross_entropy(self.logits, self.probs)

    @property
    def mode(self) -> Tensor:
        """The more likely value, NaN where both are equally likely."""
        return engine.where(self.probs == 0.5, math.nan, (self.probs >= 0.5).to(self.probs.dtype))

    @property
    def mean(self) -> Tensor:
        return self.probs

    @property
    def variance(self) -> Tensor:
        return self.probs * (1 - self.probs)


class Geometric(Bernoulli):
    """The number of failures before the first success of a `Bernoulli`."""

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Whole numbers in the dtype of the parameter, of shape sample_shape + batch_shape."""
        with no_grad():
            draws = engine.rand(self._shape(sample_shape), dtype=self.probs.dtype, device=self.probs.device)
            return (draws.clamp(min=engine.finfo(draws.dtype).tiny).log() / (-self.probs).log1p()).floor()

    def log_prob(self, value: Tensor) -> Tensor:
        value, probs = engine.broadcast_tensors(value, self.probs)
        return value * (-probs).log1p() + self.probs.log()

    def entropy(self) -> Tensor:
        return _binary_cross_entropy(self.logits, self.probs) / self.probs

    @property
    def mean(self) -> Tensor:
        return 1.0 / self.probs - 1.0

    @property
    def variance(self) -> Tensor:
        return (1.0 / self.probs - 1.0) / self.probs


class Poisson(Distribution):
    """rate^k exp(-rate) / k!. Raises: ValueError for a negative rate."""

    event_shape = Size(())

    def __init__(self, rate: Any, validate_args: bool | None = None) -> None:
        (self.rate,) = tensors(rate)
        self.batch_shape = self.rate.shape
        if validate_args is not False:
            require(self.rate >= 0, f"Poisson: expected a non-negative rate, got {self.rate}")

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Whole numbers in the dtype of the rate, of shape sample_shape + batch_shape."""
        return sampling.poisson(self.rate, self._shape(sample_shape)).to(self.rate.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        return engine.xlogy(value, self.rate) - self.rate - engine.lgamma(value + 1)

    @property
    def mean(self) -> Tensor:
        return self.rate

    @property
    def variance(self) -> Tensor:
        return self.rate


def _binary_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    from engine.nn.functional import binary_cross_entropy_with_logits

    return binary_cross_entropy_with_logits(logits, target, reduction="none")
