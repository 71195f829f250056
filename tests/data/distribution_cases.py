"""Cases that run alike on `engine.distributions` and `torch.distributions`: parameters and values, made by NumPy."""

from typing import Any

import numpy as np


def positive(*shape: int, seed: int = 0) -> np.ndarray:
    """Between 0.2 and 2."""
    return np.random.default_rng([seed, *shape]).uniform(0.2, 2.0, shape)


def real(*shape: int, seed: int = 0) -> np.ndarray:
    """Between -1 and 1."""
    return np.random.default_rng([seed, *shape]).uniform(-1.0, 1.0, shape)


def covariance(seed: int) -> np.ndarray:
    """Positive definite, 3 by 3."""
    square = real(3, 3, seed=seed)
    return square @ square.T + np.eye(3)


_LOC, _SCALE, _OTHER = real(2, 3), positive(2, 3), (real(2, 3, seed=1), positive(2, 3, seed=1))
_WEIGHTS = positive(2, 3, seed=2)
_PROBS = _WEIGHTS / _WEIGHTS.sum(-1, keepdims=True)
_COUNTS = np.array([[0.0, 2.0, 1.0], [4.0, 1.0, 0.0]])

# name: (parameters, those of another one for the divergence, values)
CASES: dict[str, tuple[dict[str, Any], dict[str, Any] | None, np.ndarray]] = {
    "Normal": ({"loc": _LOC, "scale": _SCALE}, {"loc": _OTHER[0], "scale": _OTHER[1]}, _LOC + 0.3),
    "Laplace": ({"loc": _LOC, "scale": _SCALE}, {"loc": _OTHER[0], "scale": _OTHER[1]}, _LOC + 0.3),
    "Cauchy": ({"loc": _LOC, "scale": _SCALE}, None, _LOC + 0.3),
    "Gumbel": ({"loc": _LOC, "scale": _SCALE}, None, _LOC + 0.3),
    "LogNormal": ({"loc": _LOC, "scale": _SCALE}, None, _WEIGHTS),
    "Uniform": ({"low": _LOC, "high": _LOC + _SCALE}, None, _LOC + 0.3 * _SCALE),
    "Exponential": ({"rate": _SCALE}, {"rate": _OTHER[1]}, _WEIGHTS),
    "HalfNormal": ({"scale": _SCALE}, None, _WEIGHTS),
    "Gamma": (
        {"concentration": _WEIGHTS, "rate": _SCALE},
        {"concentration": _OTHER[1], "rate": _WEIGHTS},
        positive(2, 3, seed=3),
    ),
    "Beta": (
        {"concentration1": _WEIGHTS, "concentration0": _SCALE},
        {"concentration1": _OTHER[1], "concentration0": _WEIGHTS},
        _PROBS,
    ),
    "Dirichlet": ({"concentration": _WEIGHTS}, {"concentration": _OTHER[1]}, _PROBS),
    "Categorical": ({"probs": _WEIGHTS}, {"probs": _SCALE}, np.array([2, 0])),
    "Categorical logits": ({"logits": _LOC}, {"logits": _OTHER[0]}, np.array([1, 2])),
    "OneHotCategorical": ({"logits": _LOC}, {"logits": _OTHER[0]}, np.eye(3)[[2, 0]]),
    "Bernoulli": ({"probs": _PROBS}, {"probs": _PROBS[::-1].copy()}, (_COUNTS > 0) * 1.0),
    "Bernoulli logits": ({"logits": _LOC}, {"logits": _OTHER[0]}, (_COUNTS > 0) * 1.0),
    "Geometric": ({"probs": _PROBS}, None, _COUNTS),
    "Poisson": ({"rate": _SCALE}, {"rate": _OTHER[1]}, _COUNTS),
    "MultivariateNormal": (
        {"loc": _LOC, "covariance_matrix": covariance(4)},
        {"loc": _OTHER[0], "covariance_matrix": covariance(5)},
        real(2, 3, seed=6),
    ),
    "MultivariateNormal precision": (
        {"loc": _LOC, "precision_matrix": covariance(4)},
        {"loc": _LOC, "scale_tril": np.linalg.cholesky(covariance(5))},
        real(2, 3, seed=6),
    ),
}


def run(name: str, package: Any, distributions: Any) -> dict[str, list[float]]:
    """Everything that is a number: log-probabilities, moments, entropy, divergence, and the gradients of their sum."""
    parameters, others, values = CASES[name]
    kind = getattr(distributions, name.split(" ")[0])
    leaves = {key: package.tensor(value, requires_grad=True) for key, value in parameters.items()}
    made = kind(**leaves)
    found = {"log_prob": made.log_prob(package.tensor(values))}
    for moment in ("mean", "variance", "stddev"):
        if "ategorical" not in name or "OneHot" in name:
            found[moment] = getattr(made, moment)
    if name != "Poisson":
        found["entropy"] = made.entropy()
    if others is not None:
        other = kind(**{key: package.tensor(value) for key, value in others.items()})
        found["divergence"] = distributions.kl_divergence(made, other)
    if name != "Cauchy":
        sum(each.sum() for each in found.values()).backward()
        found |= {f"gradient of {key}": leaf.grad for key, leaf in leaves.items()}
    return {key: [float(f"{each:.9g}") for each in value.detach().reshape(-1).tolist()] for key, value in found.items()}
