"""Probability distributions for policies and latent variables, and `kl_divergence`.

Log-probabilities, entropies and divergences are differentiable in the parameters; `rsample` is so in the sample, too.
"""

import math
from collections.abc import Sequence
from typing import Any

import engine
from engine.autograd.modes import no_grad
from engine.spec import Size
from engine.tensor import Tensor


def _tensors(*values: Any) -> tuple[Tensor, ...]:
    """Numbers and tensors, broadcast against each other."""
    like = next((value for value in values if isinstance(value, Tensor)), None)
    kind = engine.get_default_dtype() if like is None else like.dtype
    made = [value if isinstance(value, Tensor) else engine.tensor(value, dtype=kind) for value in values]
    return engine.broadcast_tensors(*made)


def _require(condition: Any, message: str) -> None:
    if not bool(condition.all()):
        raise ValueError(message)


class Distribution:
    """What all have: a batch of independent distributions of shape `batch_shape`, and how to draw from them."""

    batch_shape: Size
    event_shape = Size(())

    def _shape(self, sample_shape: Sequence[int]) -> tuple[int, ...]:
        return (*sample_shape, *self.batch_shape)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws of shape sample_shape + batch_shape, without history."""
        with no_grad():
            return self.rsample(sample_shape)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws through which gradients reach the parameters. Raises: NotImplementedError where discrete."""
        raise NotImplementedError(f"{type(self).__name__} is discrete: it has no reparameterized sample; use sample()")

    def log_prob(self, value: Tensor) -> Tensor:
        """Logarithm of the probability (density) of `value`."""
        raise NotImplementedError

    def entropy(self) -> Tensor:
        """Entropy in nats, of shape batch_shape."""
        raise NotImplementedError

    @property
    def mean(self) -> Tensor:
        """Expected value."""
        raise NotImplementedError

    @property
    def variance(self) -> Tensor:
        """Expected squared distance from the mean."""
        raise NotImplementedError

    @property
    def stddev(self) -> Tensor:
        """Square root of the variance."""
        return self.variance.sqrt()


class Normal(Distribution):
    """N(loc, scale²). Raises: ValueError unless scale > 0."""

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        self.loc, self.scale = _tensors(loc, scale)
        self.batch_shape = self.loc.shape
        if validate_args is not False:
            _require(self.scale > 0, "Normal: expected a scale above 0")

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        noise = engine.randn(self._shape(sample_shape), dtype=self.loc.dtype, device=self.loc.device)
        return self.loc + noise * self.scale

    def log_prob(self, value: Tensor) -> Tensor:
        distance = (value - self.loc) ** 2
        return -distance / (2 * self.scale**2) - self.scale.log() - math.log(math.sqrt(2 * math.pi))

    def entropy(self) -> Tensor:
        return 0.5 + 0.5 * math.log(2 * math.pi) + self.scale.log()

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        return self.scale**2


class Uniform(Distribution):
    """Uniform on [low, high). Raises: ValueError unless low < high."""

    def __init__(self, low: Any, high: Any, validate_args: bool | None = None) -> None:
        self.low, self.high = _tensors(low, high)
        self.batch_shape = self.low.shape
        if validate_args is not False:
            _require(self.low < self.high, "Uniform: expected low < high")

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


class _Discrete(Distribution):
    """Given by `probs` or by `logits`, exactly one of them."""

    def __init__(self, probs: Any, logits: Any) -> None:
        if (probs is None) == (logits is None):
            raise ValueError(f"{type(self).__name__}: expected either probs or logits, not both")
        self._given_logits = probs is None
        (self._parameter,) = _tensors(logits if probs is None else probs)

    def _clamped(self) -> Tensor:
        """Given probabilities, kept away from 0 and 1 so that their logarithms are finite."""
        eps = engine.finfo(self._parameter.dtype).eps
        return self._parameter.clamp(eps, 1 - eps)


class Categorical(_Discrete):
    """One of n classes, n the last axis of `probs` (any non-negative weights) or `logits`.

    Raises: ValueError unless exactly one is given, of at least one axis, non-negative weights or no NaN.
    """

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        super().__init__(probs, logits)
        given = self._parameter
        if not given.ndim:
            raise ValueError("Categorical: expected at least one axis, that of the classes")
        self.batch_shape = given.shape[:-1]
        if validate_args is not False:
            _require(given == given, f"Categorical: expected no NaN, got {given}")
            if not self._given_logits:
                _require(given >= 0, f"Categorical: expected non-negative probs, got {given}")
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
            return engine.multinomial(rows, draws, True).t().reshape(self._shape(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        value, logits = engine.broadcast_tensors(value.long().unsqueeze(-1), self.logits)
        return logits.gather(-1, value[..., :1]).squeeze(-1)

    def entropy(self) -> Tensor:
        smallest = engine.finfo(self.logits.dtype).min
        return -(self.logits.clamp(min=smallest) * self.probs).sum(-1)


class Bernoulli(_Discrete):
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
                _require((given >= 0) & (given <= 1), f"Bernoulli: expected probs in [0, 1], got {given}")
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
    def mean(self) -> Tensor:
        return self.probs

    @property
    def variance(self) -> Tensor:
        return self.probs * (1 - self.probs)


def _binary_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    from engine.nn.functional import binary_cross_entropy_with_logits

    return binary_cross_entropy_with_logits(logits, target, reduction="none")


def kl_divergence(p: Distribution, q: Distribution) -> Tensor:
    """KL(p || q) in nats, for two distributions of one class.

    Raises: NotImplementedError for other pairs.
    """
    if isinstance(p, Normal) and isinstance(q, Normal):
        ratio = (p.scale / q.scale) ** 2
        return 0.5 * (ratio + ((p.loc - q.loc) / q.scale) ** 2 - 1 - ratio.log())
    if isinstance(p, Categorical) and isinstance(q, Categorical):
        terms = p.probs * (p.logits - q.logits)
        terms = terms.masked_fill((q.probs == 0).expand_as(terms), math.inf)
        return terms.masked_fill((p.probs == 0).expand_as(terms), 0.0).sum(-1)
    if isinstance(p, Bernoulli) and isinstance(q, Bernoulli):
        positive = p.probs * (p.logits - q.logits)
        return positive + engine.nn.functional.softplus(q.logits) - engine.nn.functional.softplus(p.logits)
    raise NotImplementedError(f"kl_divergence: no formula for {type(p).__name__} and {type(q).__name__}")
