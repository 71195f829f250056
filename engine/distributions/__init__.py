"""Probability distributions for policies and latent variables, their KL divergences, and transforms of them.

Read in this order: distribution, continuous, discrete, composed, kl.
"""

import sys as _sys

from engine.distributions import composed, continuous, discrete, positive
from engine.distributions.composed import Independent, LogNormal, MultivariateNormal, TransformedDistribution
from engine.distributions.continuous import Cauchy, Exponential, Gumbel, HalfNormal, Laplace, Normal, Uniform
from engine.distributions.discrete import (
    Bernoulli,
    Categorical,
    Geometric,
    OneHotCategorical,
    Poisson,
    RelaxedOneHotCategorical,
)
from engine.distributions.distribution import Distribution
from engine.distributions.kl import kl_divergence, register_kl
from engine.distributions.positive import Beta, Dirichlet, Gamma
from engine.distributions.transforms import AffineTransform, ExpTransform, SigmoidTransform, TanhTransform, Transform

__all__ = [
    "AffineTransform",
    "Bernoulli",
    "Beta",
    "Categorical",
    "Cauchy",
    "Dirichlet",
    "Distribution",
    "ExpTransform",
    "Exponential",
    "Gamma",
    "Geometric",
    "Gumbel",
    "HalfNormal",
    "Independent",
    "Laplace",
    "LogNormal",
    "MultivariateNormal",
    "Normal",
    "OneHotCategorical",
    "Poisson",
    "RelaxedOneHotCategorical",
    "SigmoidTransform",
    "TanhTransform",
    "Transform",
    "TransformedDistribution",
    "Uniform",
    "kl_divergence",
    "register_kl",
]

# PyTorch's paths: `from distributions.categorical import Categorical`. A distribution has a file of its own there.
_PATHS = {
    composed: "independent log_normal multivariate_normal transformed_distribution",
    continuous: "cauchy exponential gumbel half_normal laplace normal uniform",
    discrete: "bernoulli categorical geometric one_hot_categorical poisson relaxed_categorical",
    positive: "beta dirichlet gamma",
}
for _file, _names in _PATHS.items():
    for _name in _names.split():
        globals()[_name] = _sys.modules[f"{__name__}.{_name}"] = _file
