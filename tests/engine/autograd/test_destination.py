"""Gradients written straight into the memory that a leaf was given for them."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import engine
import engine.nn.functional as F
from engine.autograd.graph import listen_to_gradients
from engine.calls import recording
from engine.calls.namespaces import OPERATORS

INPUT = np.arange(6, dtype=np.float32).reshape(3, 2)
GRADIENT = np.array(
    [[6.0, 9.0], [6.0, 9.0], [6.0, 9.0], [6.0, 9.0]], np.float32
)  # column sums of INPUT, a row an output


def weight_with_destination(column_major: bool = False) -> tuple[engine.Tensor, engine.Tensor]:
    weight = engine.ones(2, 4).t() if column_major else engine.ones(4, 2)
    weight = weight.detach().requires_grad_()
    destination = engine.empty_strided(weight.shape, weight.stride()).fill_(np.nan)
    listen_to_gradients(weight, None, destination)
    return weight, destination


def product(weight: engine.Tensor, times: int = 1) -> engine.Tensor:
    return sum((F.linear(engine.from_numpy(INPUT), weight).sum() for _ in range(times)), engine.zeros(()))


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What was offered to derivative rules: None, or the memory of the destination."""
    seen: list[Any] = []
    offered = recording.offered

    def watch(node: Any) -> Any:
        seen.append(offered(node))
        return seen[-1]

    monkeypatch.setattr(recording, "offered", watch)
    OPERATORS["mm"].forget_calls()
    yield seen
    OPERATORS["mm"].forget_calls()


@pytest.mark.parametrize("column_major", [False, True])
def test_the_only_gradient_is_written_there(column_major: bool, copies: list[Any]) -> None:
    weight, destination = weight_with_destination(column_major)
    product(weight).backward()
    assert weight.grad is destination
    assert weight.grad.stride() == weight.stride()
    assert (destination.numpy() == GRADIENT).all()
    assert copies == [destination._array]


@pytest.mark.parametrize("dtype", [engine.float32, engine.float64, engine.float16])
@pytest.mark.parametrize("shape", [(3, 2), (5, 3, 2), (0, 2), (2,)])
def test_a_bias_is_written_there_too(dtype: engine.dtype, shape: tuple[int, ...]) -> None:
    """By the kernel that sums its rows; of a dtype that has none, and of one row, it is copied."""
    weight = engine.ones(4, 2, dtype=dtype)
    bias = engine.zeros(4, dtype=dtype, requires_grad=True)
    destination = engine.empty(4, dtype=dtype).fill_(np.nan)
    listen_to_gradients(bias, None, destination)
    F.linear(engine.ones(shape, dtype=dtype), weight, bias).sum().backward()
    assert bias.grad is destination
    assert (destination.numpy() == np.prod(shape[:-1])).all()


def test_one_of_several_is_not(copies: list[Any]) -> None:
    weight, destination = weight_with_destination()
    product(weight, 3).backward()
    assert copies == [None] * 3
    assert weight.grad is destination
    assert (destination.numpy() == 3 * GRADIENT).all()


def test_nor_one_that_comes_later(copies: list[Any]) -> None:
    weight, destination = weight_with_destination()
    for _ in range(2):
        product(weight).backward()
    assert [each is None for each in copies] == [False, True]
    assert (destination.numpy() == 2 * GRADIENT).all()


def test_nor_where_a_hook_looks_at_it(copies: list[Any]) -> None:
    weight, destination = weight_with_destination()
    kept = []
    weight.register_hook(lambda gradient: kept.append(gradient))
    product(weight).backward()
    destination.zero_()
    assert (kept[0].numpy() == GRADIENT).all()
    assert copies == [None]


def test_one_that_backward_was_asked_for_is_written_there(copies: list[Any]) -> None:
    weight, destination = weight_with_destination()
    product(weight).backward(inputs=weight)
    assert copies == [destination._array]
    assert weight.grad is destination
    assert (destination.numpy() == GRADIENT).all()


def test_one_that_is_only_returned_is_not(copies: list[Any]) -> None:
    weight, destination = weight_with_destination()
    (gradient,) = engine.autograd.grad(product(weight), weight)
    assert copies == [None]
    assert (gradient.numpy() == GRADIENT).all()
    assert np.isnan(destination.numpy()).all()


def test_the_users_own_grad_is_added_to(copies: list[Any]) -> None:
    weight, destination = weight_with_destination()
    weight.grad = engine.ones(4, 2)
    product(weight).backward()
    assert copies == [None]
    assert (weight.grad.numpy() == GRADIENT + 1).all()
    assert np.isnan(destination.numpy()).all()


def test_higher_order_writes_nothing_there(copies: list[Any]) -> None:
    weight, destination = weight_with_destination()
    (gradient,) = engine.autograd.grad(product(weight), weight, create_graph=True)
    assert (gradient.detach().numpy() == GRADIENT).all()
    assert np.isnan(destination.numpy()).all()
    assert copies == []


def test_another_dtype_is_copied() -> None:
    weight, destination = weight_with_destination()
    F.linear(engine.from_numpy(INPUT).double(), weight.double()).sum().backward()
    assert weight.grad is destination
    assert (destination.numpy() == GRADIENT).all()
