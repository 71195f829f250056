"""What a replay calls without the functions around it, of any network: the bits are the eager step's."""

import copy
from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest

import engine
from engine import nn, optim
from engine.calls.straight import chooser_of

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


def called_with_lines(run: Any) -> list[str]:
    """The functions that the replays of a step call although lines may stand for them."""
    programs = [each for entry in run._entries.values() for each in entry.programs]
    assert programs
    called = [each for program in programs for each in program.replay.__globals__.values()]
    return [each.__name__ for each in called if isinstance(each, FunctionType) and chooser_of(each) is not None]


class Softmax(nn.Module):
    def forward(self, x: Any) -> Any:
        return F.log_softmax(F.softmax(x, -1), -1)


@pytest.mark.parametrize("dtype", [engine.float32, engine.float64])
@pytest.mark.parametrize("shape", [(5, 8), (2, 3, 8)])
@pytest.mark.parametrize(
    "layer",
    [
        lambda: nn.LayerNorm(8),
        lambda: nn.LayerNorm(8, elementwise_affine=False),
        lambda: nn.BatchNorm1d(8),
        lambda: nn.BatchNorm1d(8, affine=False),
        lambda: nn.BatchNorm1d(8, track_running_stats=False),
        Softmax,
    ],
    ids=["layer_norm", "plain_layer_norm", "batch_norm", "plain_batch_norm", "batch_norm_of_batch", "softmax"],
)
def test_norms_and_softmax_are_their_kernels(
    layer: Callable[[], nn.Module], shape: tuple[int, ...], dtype: Any
) -> None:
    """Beside the first layer, which has no gradient of its input to give."""

    def made() -> nn.Module:
        engine.manual_seed(0)
        parts = [nn.Linear(8, 8), layer(), nn.Linear(8, 8), layer()]
        return nn.Sequential(*parts).to(dtype)

    if len(shape) == 3 and isinstance(layer(), nn.BatchNorm1d):
        shape = (2, 8, 8)  # (N, C, L)
    eager, captured = made(), made()
    optimizers = [optim.SGD(model.parameters(), lr=0.1) for model in (eager, captured)]

    def step(x: Any, model: nn.Module, optimizer: Any) -> Any:
        optimizer.zero_grad()
        value = model(x).pow(2).mean()
        value.backward()
        optimizer.step()
        return value

    run = engine.compile(lambda x: step(x, captured, optimizers[1]))
    inputs = [engine.randn(*shape, dtype=dtype) for _ in range(5)]
    expected = [step(x, eager, optimizers[0]).item() for x in inputs]
    assert [run(x).item() for x in inputs] == expected
    for name, tensor in eager.state_dict().items():
        assert engine.equal(tensor, captured.state_dict()[name]), name
    assert called_with_lines(run) == []


def test_large_arrays_and_other_layouts_are_left_to_the_functions() -> None:
    """Which share them among threads, or lay them out anew."""
    for model, x, name in [
        (nn.LayerNorm(8), engine.randn(8, 5).t(), "_layer_norm"),
        (nn.BatchNorm2d(3), engine.randn(2, 3, 4, 4).to(memory_format=engine.channels_last), "_batch_norm"),
        (nn.LayerNorm(1024), engine.randn(1024, 1024), "_layer_norm"),
    ]:
        twin = copy.deepcopy(model)
        with engine.no_grad():
            run = engine.compile(lambda x, twin=twin: twin(x).sum())
            assert [run(x).item() for _ in range(3)] == [model(x).sum().item() for _ in range(3)]
        assert called_with_lines(run) == [name]
