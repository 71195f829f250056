"""What a replay calls without the functions around it, of any network: the bits are the eager step's."""

from collections.abc import Callable
from typing import Any

import pytest

import engine
from engine import nn, optim

F = nn.functional


def products(x: Any, first: Any, second: Any) -> Any:
    return ((x @ first).relu() @ second).pow(2).mean()


def layers(x: Any, first: Any, second: Any) -> Any:
    return F.linear(F.linear(x, first, second[0]), second).pow(2).mean()


def sums(x: Any, first: Any, second: Any) -> Any:
    return (engine.addmm(second, x[:1], first).tanh() * 2).sum()


@pytest.mark.parametrize(
    ("loss", "shapes"),
    [(products, ((6, 8), (8, 3))), (layers, ((8, 6), (3, 8))), (sums, ((6, 8), (8,)))],
)
@pytest.mark.parametrize("dtype", [engine.float32, engine.float64])
def test_products_of_matrices_are_those_of_blas(
    loss: Callable[..., Any], shapes: tuple[tuple[int, ...], ...], dtype: Any
) -> None:
    found: list[list[Any]] = []
    sources = []
    for captured in (False, True):
        engine.manual_seed(0)
        first, second = (nn.Parameter(engine.randn(*shape, dtype=dtype)) for shape in shapes)
        optimizer = optim.SGD([first, second], lr=0.1)

        def step(x: Any, first: Any = first, second: Any = second, optimizer: Any = optimizer, loss: Any = loss) -> Any:
            optimizer.zero_grad()
            value = loss(x, first, second)
            value.backward()
            optimizer.step()
            return value

        run = engine.compile(step) if captured else step
        x = engine.randn(5, 6, dtype=dtype)
        found.append([run(x).item() for _ in range(6)])
        if captured:
            sources = [each.replay.source for entry in run._entries.values() for each in entry.programs]
    assert found[0] == found[1]
    assert sources
    assert all(".dot(" in each for each in sources)
