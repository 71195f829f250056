"""Distributions against PyTorch's numbers, their samples against their moments."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

import engine
from engine import distributions
from engine.distributions import (
    AffineTransform,
    Bernoulli,
    Categorical,
    Independent,
    MultivariateNormal,
    Normal,
    RelaxedOneHotCategorical,
    SigmoidTransform,
    TanhTransform,
    TransformedDistribution,
    Uniform,
    kl_divergence,
    register_kl,
)
from tests.data import distribution_cases as cases

REFERENCE = json.loads((Path(cases.__file__).parent / "distribution_reference.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", cases.CASES)
def test_numbers(name: str) -> None:
    ours, theirs = cases.run(name, engine, distributions), REFERENCE[name]
    assert ours.keys() == theirs.keys()
    for key, values in theirs.items():
        np.testing.assert_allclose(ours[key], values, rtol=1e-6, atol=1e-9, err_msg=key)


@pytest.mark.parametrize("name", cases.CASES)
def test_samples_have_the_mean_and_the_spread(name: str) -> None:
    engine.manual_seed(0)
    made = getattr(distributions, name.split(" ")[0])(
        **{key: engine.tensor(value, requires_grad=True) for key, value in cases.CASES[name][0].items()}
    )
    draws = made.sample((4000,))
    assert draws.shape == (4000, *made.batch_shape, *made.event_shape)
    assert not draws.requires_grad
    if type(made) is Categorical:
        frequency = engine.nn.functional.one_hot(draws, 3).double().mean(0)
        np.testing.assert_allclose(frequency, made.probs.detach(), atol=0.05)
    elif name == "Cauchy":
        np.testing.assert_allclose(draws.median(0).values, made.loc.detach(), atol=0.2)
    else:
        error = 6 * made.stddev.detach() / math.sqrt(4000)
        assert ((draws.mean(0) - made.mean.detach()).abs() < error).all()
    if made.has_rsample:
        assert made.rsample((2,)).requires_grad
    else:
        with pytest.raises(NotImplementedError, match=r"no reparameterized sample here; use sample\(\)"):
            made.rsample()


def test_every_public_distribution_has_a_case() -> None:
    composed = {"Distribution", "Independent", "RelaxedOneHotCategorical", "Transform", "TransformedDistribution"}
    public = {
        name
        for name in distributions.__all__
        if isinstance(getattr(distributions, name), type) and not name.endswith("Transform")
    }
    assert public - composed == {name.split(" ")[0] for name in cases.CASES}


def test_reparameterized_samples_carry_gradients() -> None:
    loc, scale = engine.zeros(1000, requires_grad=True), engine.ones(1000, requires_grad=True)
    draws = Normal(loc, scale).rsample()
    draws.sum().backward()
    assert engine.equal(loc.grad, engine.ones(1000))
    assert engine.allclose(scale.grad, draws.detach())


def test_transforms_change_values_and_densities() -> None:
    base = Normal(engine.tensor([0.3]), engine.tensor([0.8]))
    for transform in (TanhTransform(), SigmoidTransform(), AffineTransform(2.0, -3.0)):
        x = engine.linspace(-1, 1, 7)
        y = transform(x)
        np.testing.assert_allclose(transform.inv(y), x, atol=1e-5)
        step = 1e-3
        slope = (transform(x + step) - transform(x - step)) / (2 * step)
        np.testing.assert_allclose(transform.log_abs_det_jacobian(x, y), slope.abs().log(), atol=1e-3)
        np.testing.assert_allclose(
            TransformedDistribution(base, transform).log_prob(y), base.log_prob(x) - slope.abs().log(), atol=1e-3
        )


def test_a_cached_transform_gives_back_the_very_value() -> None:
    transform = TanhTransform(cache_size=1)
    x = engine.tensor([30.0])  # tanh of it is 1, whose inverse is infinite
    assert transform.inv(transform(x)) is x
    assert math.isinf(transform.inv(engine.ones(1)).item())


def test_independent_sums_over_what_it_takes_in() -> None:
    base = Normal(engine.zeros(4, 3), engine.ones(4, 3))
    both = Independent(base, 1)
    assert (both.batch_shape, both.event_shape) == ((4,), (3,))
    x = engine.randn(4, 3)
    assert engine.allclose(both.log_prob(x), base.log_prob(x).sum(-1))
    assert engine.allclose(kl_divergence(both, Independent(Normal(x, 1.0), 1)), x.square().sum(-1) / 2)
    with pytest.raises(ValueError, match=r"Expected reinterpreted_batch_ndims <= len\(base_distribution.batch_shape\)"):
        Independent(base, 3)


def test_relaxed_draws_are_on_the_simplex_and_sharpen() -> None:
    engine.manual_seed(1)
    logits = engine.tensor([1.0, 0.0, -1.0], requires_grad=True)
    draws = RelaxedOneHotCategorical(0.05, logits=logits).rsample((2000,))
    assert engine.allclose(draws.sum(-1), engine.ones(2000))
    np.testing.assert_allclose(draws.mean(0).detach(), logits.softmax(-1).detach(), atol=0.05)
    draws[:, 0].sum().backward()
    assert logits.grad is not None


def test_register_kl_adds_a_formula() -> None:
    with pytest.raises(NotImplementedError, match="p type Normal and q type Uniform"):
        kl_divergence(Normal(0.0, 1.0), Uniform(0.0, 1.0))

    @register_kl(Uniform, Uniform)
    def formula(p: Uniform, q: Uniform) -> engine.Tensor:
        return ((q.high - q.low) / (p.high - p.low)).log()

    np.testing.assert_allclose(kl_divergence(Uniform(0.0, 1.0), Uniform(-1.0, 1.0)), math.log(2), rtol=1e-6)


def test_wrong_parameters() -> None:
    cases = [
        (lambda: Normal(0.0, -1.0), "Normal: expected a scale above 0"),
        (lambda: Uniform(1.0, 0.0), "Uniform: expected low < high"),
        (lambda: Categorical(), "Either `probs` or `logits` must be specified, but not both."),
        (lambda: Categorical(engine.ones(2), engine.ones(2)), "Either `probs` or `logits` must be specified"),
        (lambda: Categorical(engine.tensor(1.0)), "`probs` parameter must be at least one-dimensional"),
        (lambda: Categorical(engine.tensor([1.0, -1.0])), "expected non-negative probs"),
        (lambda: Categorical(logits=engine.tensor([math.nan, 0.0])), "expected no NaN"),
        (lambda: Bernoulli(1.5), r"Bernoulli: expected probs in \[0, 1\]"),
        (lambda: MultivariateNormal(engine.zeros(2)), "Exactly one of covariance_matrix or precision_matrix or"),
    ]
    for make, message in cases:
        with pytest.raises(ValueError, match=message):
            make()
    assert Normal(0.0, -1.0, validate_args=False).scale == -1
