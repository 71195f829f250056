"""Attention: PyTorch's values, layouts and derivatives; second derivatives; blocks; dropout; errors."""

import math
from collections.abc import Callable

import numpy as np
import pytest

import engine
import engine.nn.functional as F
from engine.ops.attention import blocks as attention_blocks
from engine.ops.attention import cpu
from tests.data.operators.attention import CASES
from tests.engine.ops.checking import check_against_pytorch, check_second_order


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", CASES)
def test_values_and_first_derivatives(name: str, dtype: str) -> None:
    check_against_pytorch("attention", name, CASES[name], dtype)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.twice])
def test_second_derivatives(name: str) -> None:
    check_second_order(CASES[name])


def _slopes(
    q: engine.Tensor, k: engine.Tensor, v: engine.Tensor, mask: engine.Tensor | None, causal: bool
) -> list[np.ndarray]:
    out = F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal)
    weights = engine.from_numpy(np.random.RandomState(0).standard_normal(tuple(out.shape)))
    return [out.detach().numpy(), *(slope.numpy() for slope in engine.autograd.grad((out * weights).sum(), (q, k, v)))]


@pytest.mark.parametrize("kind", ["plain", "causal", "bool", "float"])
@pytest.mark.parametrize("block_bytes", [400, 6000])
def test_blocks_and_recomputation_change_nothing(kind: str, block_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = (engine.randn(2, 3, length, 4, dtype=engine.float64).requires_grad_() for length in (11, 13, 13))
    mask = {"bool": engine.rand(11, 13) < 0.7, "float": engine.randn(3, 11, 13, dtype=engine.float64)}.get(kind)
    whole = _slopes(q, k, v, mask, kind == "causal")
    monkeypatch.setattr(attention_blocks, "_BLOCK_BYTES", block_bytes)
    monkeypatch.setattr(attention_blocks, "_QUERIES", 3)
    in_blocks = _slopes(q, k, v, mask, kind == "causal")
    monkeypatch.setattr(cpu, "KEPT_BYTES", 0)
    computed_again = _slopes(q, k, v, mask, kind == "causal")
    for one, other, third in zip(whole, in_blocks, computed_again, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(third, one, rtol=1e-12, atol=1e-13)


def test_without_recording_nothing_is_kept() -> None:
    q = engine.randn(1, 2, 5, 4)
    with engine.no_grad():
        out, _, blocks = attention_blocks.attention_by_blocks(*(q._array,) * 3, None, None, False, 0.5, 1.0)
    assert blocks is None
    assert out.shape == (1, 2, 5, 4)


def test_dropout_scales_what_it_keeps_and_its_gradient_uses_the_same_draw() -> None:
    q, k = engine.randn(1, 2, 40, 8), engine.randn(1, 2, 30, 8)
    v = engine.ones(1, 2, 30, 4, requires_grad=True)
    engine.manual_seed(3)
    out = F.scaled_dot_product_attention(q, k, v, dropout_p=0.25)
    assert abs(out.mean().item() - 1) < 0.1
    (slope,) = engine.autograd.grad(out.sum(), v)
    engine.manual_seed(3)
    again = F.scaled_dot_product_attention(q, k, v * 2, dropout_p=0.25)
    np.testing.assert_allclose(again.detach().numpy(), 2 * out.detach().numpy(), rtol=1e-6)
    np.testing.assert_allclose(slope.sum().item(), out.sum().item(), rtol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_second_derivatives_with_dropout(causal: bool) -> None:
    q, k, v = (engine.randn(1, 1, 4, 3, dtype=engine.float64).requires_grad_() for _ in range(3))

    def first(create_graph: bool) -> tuple[engine.Tensor, ...]:
        engine.manual_seed(1)
        out = F.scaled_dot_product_attention(q, k, v, dropout_p=0.4, is_causal=causal)
        return engine.autograd.grad((out**2).sum(), (q, k, v), create_graph=create_graph)

    for recorded, plain in zip(first(True), first(False), strict=True):
        np.testing.assert_allclose(recorded.detach().numpy(), plain.numpy(), rtol=1e-10)


def test_half_precision_is_computed_in_single() -> None:
    q, k, v = (engine.randn(2, 2, 5, 4).to(engine.bfloat16) for _ in range(3))
    expected = F.scaled_dot_product_attention(q.float(), k.float(), v.float(), is_causal=True).to(engine.bfloat16)
    assert engine.equal(F.scaled_dot_product_attention(q, k, v, is_causal=True), expected)


def test_a_row_that_attends_nothing_is_zero() -> None:
    mask = engine.zeros(3, 4, dtype=engine.bool)
    mask[1] = True
    q, k, v = engine.randn(1, 1, 3, 2, requires_grad=True), engine.randn(1, 1, 4, 2), engine.randn(1, 1, 4, 2)
    for given in (mask, engine.where(mask, 0.0, -math.inf)):
        out = F.scaled_dot_product_attention(q, k, v, given)
        (slope,) = engine.autograd.grad(out.sum(), q)
        assert not out[0, 0, ::2].any()
        assert out[0, 0, 1].all()
        assert not slope[0, 0, ::2].any()


def test_empty() -> None:
    for queries, keys in ((0, 3), (3, 0)):
        q, k = engine.zeros(1, 2, queries, 4, requires_grad=True), engine.zeros(1, 2, keys, 4)
        out = F.scaled_dot_product_attention(q, k, k)
        assert out.shape == (1, 2, queries, 4)
        out.sum().backward()
        assert not out.any()
        assert not q.grad.any()


A, B = engine.zeros(2, 4, 5, 8), engine.zeros(2, 4, 9, 8)
ATTEND = F.scaled_dot_product_attention


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: ATTEND(A, engine.zeros(2, 4, 9, 7), B),
            r"the last size of query and key must agree, got query \[2, 4, 5, 8\]",
        ),
        (lambda: ATTEND(A, B, engine.zeros(2, 4, 8, 8)), "same number of positions"),
        (lambda: ATTEND(engine.zeros(2, 3, 5, 8), B, B), "must match the size of tensor b"),
        (lambda: ATTEND(engine.zeros(5), B, B), "at least 2 dimensional"),
        (lambda: ATTEND(A, B.double(), B), "to have the same dtype"),
        (lambda: ATTEND(A, B, B, engine.zeros(5, 9).int()), "Expected attn_mask dtype to be bool"),
        (lambda: ATTEND(A, B, B, engine.zeros(4, 9)), "must match|does not broadcast"),
        (
            lambda: ATTEND(A, B, B, engine.zeros(5, 9), is_causal=True),
            "attn_mask should not be set when is_causal=True",
        ),
        (lambda: ATTEND(A, B[:, :3], B[:, :3], enable_gqa=True), "with enable_gqa the heads"),
        (lambda: ATTEND(A, B, B, dropout_p=1.5), "dropout probability has to be between 0 and 1"),
    ],
)
def test_errors(call: Callable[[], object], message: str) -> None:
    with pytest.raises((RuntimeError, ValueError), match=message):
        call()
