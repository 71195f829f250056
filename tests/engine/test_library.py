"""Operators of a user's own: values, derivatives of first and second order, autocast, capture, trace."""

from typing import Any

import numpy as np
import pytest

import engine
from engine import Tensor
from engine.autograd.gradcheck import gradcheck, gradgradcheck
from engine.calls.namespaces import OPERATORS


@pytest.fixture
def softclip() -> Any:
    @engine.library.custom_op("tests::softclip")
    def softclip(x: Tensor, limit: float = 2.0) -> Tensor:
        return engine.from_numpy(np.tanh(x.numpy() / limit) * np.asarray(limit, x.numpy().dtype))

    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.limit = inputs[1]
        ctx.save_for_backward(output)

    def backward(ctx: Any, g: Tensor) -> Any:
        (out,) = ctx.saved_tensors
        return g * (1 - (out / ctx.limit) ** 2), None

    softclip.register_autograd(backward, setup_context=setup_context)
    yield softclip
    del OPERATORS["tests::softclip"]


X = np.linspace(-3, 3, 12).reshape(3, 4)


def test_values_and_derivatives_of_both_orders(softclip: Any) -> None:
    x = engine.from_numpy(X).requires_grad_()
    assert np.allclose(softclip(x).detach().numpy(), 2 * np.tanh(X / 2))
    assert gradcheck(lambda x: softclip(x, limit=1.5), (x,))
    assert gradgradcheck(softclip, (x,))
    assert type(softclip(x).grad_fn).__name__ == "SoftclipBackward0"
    assert not softclip(x.detach()).requires_grad


def test_results_lie_as_the_fake_says(softclip: Any) -> None:
    @softclip.register_fake
    def _(x: Tensor, limit: float) -> Tensor:
        return engine.empty(x.shape[::-1], dtype=x.dtype, device=x.device).t()

    assert softclip(engine.from_numpy(X)).stride() == (1, 3)
    assert softclip(engine.empty(3, 4, device="meta")).stride() == (1, 3)


def test_a_kernel_for_a_device_takes_the_place_of_the_function(softclip: Any) -> None:
    @softclip.register_kernel("cpu")
    def _(x: Tensor, limit: float) -> Tensor:
        return x.clamp(-limit, limit)

    assert softclip(engine.tensor([3.0, 1.0])).tolist() == [2.0, 1.0]


def test_several_tensors_and_results() -> None:
    @engine.library.custom_op("tests::sums")
    def sums(a: Tensor, scale: float, b: Tensor) -> tuple[Tensor, Tensor]:
        return a + b * scale, a - b

    sums.register_autograd(lambda ctx, g, h: (g + h, None, g * 2.0 - h if ctx.needs_input_grad[2] else None))
    try:
        a, b = engine.ones(2, requires_grad=True), engine.ones(2, requires_grad=True)
        first, second = sums(a, 2.0, b)
        assert (first.output_nr, second.output_nr) == (0, 1)
        assert first.grad_fn is second.grad_fn
        first.sum().backward()
        assert (a.grad.tolist(), b.grad.tolist()) == ([1.0, 1.0], [2.0, 2.0])
    finally:
        del OPERATORS["tests::sums"]


def test_autocast_casts_where_it_was_told_to(softclip: Any) -> None:
    softclip.register_autocast("cpu", engine.bfloat16)

    @softclip.register_kernel("cpu")
    def _(x: Tensor, limit: float) -> Tensor:
        return x.clamp(-limit, limit)

    assert softclip(engine.ones(2)).dtype is engine.float32
    with engine.autocast("cpu"):
        assert softclip(engine.ones(2)).dtype is engine.bfloat16


def test_it_is_traced_and_captured(softclip: Any) -> None:
    weight = engine.ones(4, requires_grad=True)

    def step(x: Tensor) -> Tensor:
        weight.grad = None
        loss = softclip(x * weight).sum()
        loss.backward()
        return loss

    with engine.trace() as calls:
        step(engine.ones(3, 4))
    assert "  [call] op=[tests::softclip], key=[CPU]" in calls.listing().splitlines()
    compiled = engine.compile(step, fullgraph=True)
    for seed in range(6):
        x = engine.from_numpy(X.astype(np.float32) + seed)
        expected = step(x).item(), weight.grad.tolist()
        assert (compiled(x).item(), weight.grad.tolist()) == expected


@pytest.mark.parametrize("name", ["softclip", "a::b::c", "::b", "mine::soft clip"])
def test_a_name_needs_a_namespace(name: str) -> None:
    with pytest.raises(ValueError, match="mine::softclip"):
        engine.library.custom_op(name, lambda x: x)


def test_mistakes_are_told(softclip: Any) -> None:
    with pytest.raises(ValueError, match="already defined"):
        engine.library.custom_op("tests::softclip", softclip._function)
    with pytest.raises(ValueError, match="annotations"):
        engine.library.custom_op("tests::untyped", lambda x: x)
    with pytest.raises(TypeError, match="argument 'x' must be Tensor, not float"):
        softclip(1.0)
    softclip.register_autograd(lambda ctx, g: g)
    with pytest.raises(RuntimeError, match="each of 2 arguments"):
        softclip(engine.ones(2, requires_grad=True)).sum().backward()
