"""Attention of short sequences, beside attention in blocks."""

from typing import Any

import numpy as np
import pytest

import engine
from engine.ops.attention import blocks, short
from engine.sharing import threads

# (..., queries, width), (..., keys, width), (..., keys, width of the values)
SHORT = [
    ((2, 3, 128, 32), (2, 3, 128, 32), (2, 3, 128, 32)),
    ((1, 2, 65, 16), (1, 2, 65, 16), (1, 2, 65, 48)),
    ((3, 40, 24), (3, 70, 24), (3, 70, 16)),
    ((3, 70, 16), (3, 40, 16), (3, 40, 16)),
    ((2, 4, 33, 16), (1, 1, 256, 16), (1, 4, 256, 16)),
    ((22, 23), (22, 23), (22, 23)),
]


class FullOfNaN:
    """NumPy, but for its new memory. Not in NumPy itself: Numba, imported meanwhile, would never know its `empty`."""

    def empty(self, shape: int | tuple[int, ...], dtype: Any = float) -> np.ndarray:
        return np.full(shape, np.nan, dtype)

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


@pytest.mark.parametrize("kind", ["float32", "float64"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shapes", SHORT, ids=str)
def test_short_sequences_give_what_blocks_give(
    shapes: list[tuple[int, ...]], causal: bool, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where memory that they write is full of NaN, operands lie with gaps, and probabilities are not kept."""
    for module in (short, blocks):
        monkeypatch.setattr(module, "np", FullOfNaN())
    random = np.random.RandomState(0)
    q, k, v = (random.standard_normal((*shape[:-1], shape[-1] + 3)).astype(kind)[..., : shape[-1]] for shape in shapes)
    assert short.serves(q, k, v)
    out, log_sums, kept = short.attention(q, k, v, causal, 0.3)
    expected, expected_sums, probabilities = blocks.attention_by_blocks(q, k, v, None, None, causal, 0.3, 1.0)
    g = random.standard_normal(out.shape).astype(kind)
    slopes = short.slopes(g, q, k, v, causal, 0.3, log_sums, kept)
    of_blocks = blocks.slopes_by_blocks(g, q, k, v, None, None, causal, 0.3, 1.0, expected_sums, probabilities)
    tolerance = {"float32": 2e-5, "float64": 1e-13}[kind]
    pairs = [(out, expected), (log_sums, expected_sums), *zip(slopes[:3], of_blocks[:3], strict=True)]
    for found, other in pairs:
        np.testing.assert_allclose(found, other, rtol=tolerance, atol=tolerance)
    for found, again in zip(slopes[:3], short.slopes(g, q, k, v, causal, 0.3, log_sums, None)[:3], strict=True):
        np.testing.assert_allclose(again, found, rtol=tolerance, atol=tolerance)
    with engine.no_grad():
        of_nothing = short.attention(q, k, v, causal, 0.3)
    np.testing.assert_array_equal(of_nothing[0], out)
    assert of_nothing[2] is None


def test_short_sequences_on_threads_are_the_same_bits() -> None:
    q = np.random.RandomState(0).standard_normal((16, 8, 64, 32)).astype(np.float32)
    found, before = [], threads.get_num_threads()
    try:
        for number in (1, 2, 3):
            threads.set_num_threads(number)
            out, log_sums, kept = short.attention(q, q, q, True, 0.2)
            found.append([out, *short.slopes(out, q, q, q, True, 0.2, log_sums, kept)[:3]])
    finally:
        threads.set_num_threads(before)
    for others in found[1:]:
        for other, one in zip(others, found[0], strict=True):
            np.testing.assert_array_equal(other, one)


def test_what_is_served() -> None:
    fits = np.zeros((2, 40, 32), np.float32)
    assert short.serves(fits, fits, fits)
    for other in (fits[:, :, ::2], fits[:, :3], fits[:0], fits.astype(np.float16), np.zeros((300, 32), np.float32)):
        assert not short.serves(fits, other, fits)


@pytest.mark.parametrize("first", ["lines", "columns"])
def test_operands_that_come_back_from_hooks_lying_otherwise(first: str) -> None:
    """Forward by one kind of kernels, backward by the other."""
    values = np.random.RandomState(0).standard_normal((2, 3, 40, 32))
    turned = np.ascontiguousarray(values.swapaxes(-1, -2)).swapaxes(-1, -2)
    of_forward, of_backward = (values, turned) if first == "lines" else (turned, values)

    def slope(unpack: bool) -> np.ndarray:
        q = engine.from_numpy(of_forward).requires_grad_()
        hooks = engine.autograd.graph.saved_tensors_hooks(
            lambda saved: saved, lambda saved: engine.from_numpy(of_backward) if unpack else saved
        )
        with hooks:
            out = engine.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
        (found,) = engine.autograd.grad((out**2).sum(), q)
        assert found is not None
        return found.numpy()

    np.testing.assert_allclose(slope(True), slope(False), rtol=1e-10)
