"""KL divergences in closed form, and a table to add more to."""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import engine
from engine.distributions.composed import Independent, MultivariateNormal
from engine.distributions.continuous import Exponential, Laplace, Normal
from engine.distributions.discrete import Bernoulli, Categorical, Poisson
from engine.distributions.distribution import Distribution, sum_last
from engine.distributions.positive import Beta, Dirichlet, Gamma
from engine.tensor import Tensor

Formula = TypeVar("Formula", bound=Callable[[Any, Any], Tensor])
_FORMULAS: dict[tuple[type, type], Callable[[Any, Any], Tensor]] = {}


def register_kl(type_p: type, type_q: type) -> Callable[[Formula], Formula]:
    """Decorator: the function computes KL(p || q) for these classes and their subclasses."""

    def put(function: Formula) -> Formula:
        _FORMULAS[type_p, type_q] = function
        return function

    return put


def kl_divergence(p: Distribution, q: Distribution) -> Tensor:
    """KL(p || q) in nats, of shape batch_shape. Raises: NotImplementedError for pairs without a formula."""
    for type_p in type(p).__mro__:
        for type_q in type(q).__mro__:
            if (type_p, type_q) in _FORMULAS:
                return _FORMULAS[type_p, type_q](p, q)
    raise NotImplementedError(
        f"No KL(p || q) is implemented for p type {type(p).__name__} and q type {type(q).__name__}"
    )


@register_kl(Normal, Normal)
def _normal(p: Normal, q: Normal) -> Tensor:
    ratio = (p.scale / q.scale) ** 2
    return 0.5 * (ratio + ((p.loc - q.loc) / q.scale) ** 2 - 1 - ratio.log())


@register_kl(Laplace, Laplace)
def _laplace(p: Laplace, q: Laplace) -> Tensor:
    ratio, distance = p.scale / q.scale, (p.loc - q.loc).abs()
    return -ratio.log() + distance / q.scale + ratio * (-distance / p.scale).exp() - 1


@register_kl(Exponential, Exponential)
def _exponential(p: Exponential, q: Exponential) -> Tensor:
    ratio = q.rate / p.rate
    return -ratio.log() + ratio - 1


@register_kl(Categorical, Categorical)
def _categorical(p: Categorical, q: Categorical) -> Tensor:
    terms = p.probs * (p.logits - q.logits)
    terms = terms.masked_fill((q.probs == 0).expand_as(terms), math.inf)
    return terms.masked_fill((p.probs == 0).expand_as(terms), 0.0).sum(-1)


@register_kl(Bernoulli, Bernoulli)
def _bernoulli(p: Bernoulli, q: Bernoulli) -> Tensor:
    from engine.nn.functional import softplus

    return p.probs * (p.logits - q.logits) + softplus(q.logits) - softplus(p.logits)


@register_kl(Poisson, Poisson)
def _poisson(p: Poisson, q: Poisson) -> Tensor:
    return p.rate * (p.rate.log() - q.rate.log()) - (p.rate - q.rate)


@register_kl(Gamma, Gamma)
def _gamma(p: Gamma, q: Gamma) -> Tensor:
    return (
        q.concentration * (p.rate / q.rate).log()
        + engine.lgamma(q.concentration)
        - engine.lgamma(p.concentration)
        + (p.concentration - q.concentration) * engine.digamma(p.concentration)
        + (q.rate - p.rate) * (p.concentration / p.rate)
    )


@register_kl(Dirichlet, Dirichlet)
def _dirichlet(p: Dirichlet, q: Dirichlet) -> Tensor:
    a, b = p.concentration, q.concentration
    total = a.sum(-1)
    normalisers = engine.lgamma(total) - engine.lgamma(b.sum(-1)) - (engine.lgamma(a) - engine.lgamma(b)).sum(-1)
    return normalisers + ((a - b) * (engine.digamma(a) - engine.digamma(total).unsqueeze(-1))).sum(-1)


@register_kl(Beta, Beta)
def _beta(p: Beta, q: Beta) -> Tensor:
    return _dirichlet(p._dirichlet, q._dirichlet)


@register_kl(MultivariateNormal, MultivariateNormal)
def _multivariate_normal(p: MultivariateNormal, q: MultivariateNormal) -> Tensor:
    lower = q.scale_tril.expand(engine.broadcast_shapes(q.scale_tril.shape, p.scale_tril.shape))
    spread = engine.linalg.solve_triangular(lower, p.scale_tril.expand(lower.shape), upper=False)
    shift = engine.linalg.solve_triangular(lower, (q.loc - p.loc).unsqueeze(-1), upper=False)
    squares = spread.square().sum((-2, -1)) + shift.square().sum((-2, -1))
    return q._half_log_det() - p._half_log_det() + 0.5 * (squares - p.event_shape[0])


@register_kl(Independent, Independent)
def _independent(p: Independent, q: Independent) -> Tensor:
    if p.reinterpreted_batch_ndims != q.reinterpreted_batch_ndims:
        raise NotImplementedError("kl_divergence: expected the same reinterpreted_batch_ndims in both Independent")
    return sum_last(kl_divergence(p.base_dist, q.base_dist), p.reinterpreted_batch_ndims)
