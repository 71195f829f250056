"""LARS and LAMB: the formulas of their papers in NumPy, with a norm for each parameter however they are walked."""

from typing import Any

import numpy as np
import pytest

import engine
from engine import optim
from engine.optim.plan import SMALL
from engine.optim.slabs import PIECE
from tests.data.optim_cases import BEYOND_PYTORCH, optimizer_name

SIZES = (3, 7, SMALL + 1, PIECE + 3)


def by_paper(name: str, o: dict[str, Any], p: np.ndarray, gradients: list[np.ndarray]) -> np.ndarray:
    """You et al. 2017, algorithm 1; You et al. 2020, algorithm 2."""
    p, m, v = p.copy(), np.zeros_like(p), np.zeros_like(p)
    norm = np.linalg.norm
    for t, g in enumerate(gradients, 1):
        if name == "LARS":
            decay, trust = o.get("weight_decay", 0), o["trust_coefficient"]
            local = trust * norm(p) / (norm(g) + decay * norm(p)) if trust and norm(p) and norm(g) else 1
            m = o.get("momentum", 0.9) * m + o["lr"] * local * (g + decay * p)
            p = p - m
        else:
            first, second = o.get("betas", (0.9, 0.999))
            m, v = first * m + (1 - first) * g, second * v + (1 - second) * g * g
            r = m / (1 - first**t) / (np.sqrt(v / (1 - second**t)) + 1e-6) + o.get("weight_decay", 0.01) * p
            p = p - o.get("lr", 1e-3) * (norm(p) / norm(r) if norm(p) and norm(r) else 1) * r
    return p


@pytest.mark.parametrize("case", BEYOND_PYTORCH, ids=optimizer_name)
def test_as_in_the_paper(case: tuple[str, dict[str, Any]]) -> None:
    name, options = case
    draw = np.random.default_rng(0).standard_normal
    starts = [np.zeros(2), *(draw(size) for size in SIZES)]
    gradients = [[draw(start.size) for start in starts] for _ in range(3)]
    gradients[1][1][:] = 0
    params = [engine.tensor(start, requires_grad=True) for start in starts]
    optimizer = getattr(optim, name)(params, **options)
    for each in gradients:
        for param, gradient in zip(params, each, strict=True):
            param.grad = engine.tensor(gradient)
        optimizer.step()
    for number, (param, start) in enumerate(zip(params, starts, strict=True)):
        expected = by_paper(name, options, start, [each[number] for each in gradients])
        np.testing.assert_allclose(param.detach().numpy(), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("kind", [engine.float32, engine.bfloat16])
@pytest.mark.parametrize("name", ["LARS", "LAMB"])
def test_a_parameter_keeps_its_dtype_and_a_state_is_loaded(name: str, kind: engine.dtype) -> None:
    def trained(steps: int, state: Any = None) -> Any:
        weight = engine.arange(12, dtype=kind).reshape(3, 4).requires_grad_()
        optimizer = getattr(optim, name)([weight])
        if state is not None:
            weight.data.copy_(state[0])
            optimizer.load_state_dict(state[1])
        for _ in range(steps):
            weight.grad = weight.detach() * 2 + 1
            optimizer.step()
        return weight.detach().clone(), optimizer.state_dict()

    whole, _ = trained(4)
    assert whole.dtype is kind
    assert engine.equal(trained(2, trained(2))[0], whole)


@pytest.mark.parametrize("name", ["LARS", "LAMB"])
def test_options_out_of_range(name: str) -> None:
    with pytest.raises(ValueError, match="weight_decay"):
        getattr(optim, name)([engine.zeros(1, requires_grad=True)], weight_decay=-1)
