"""Cross-entropy against NumPy in float64: class weights, ignored targets, smoothing, errors."""

import numpy as np
import pytest

from engine.ops.loss import kernels as loss
from tests.engine.kernels.samples import DTYPES, close, normal, shifted
from tests.engine.kernels.test_softmax import log_softmax_reference


def reference(logits, target, weight, ignore_index, smoothing, g):
    rows, classes = logits.shape
    weight = np.ones(classes) if weight is None else weight.astype("float64")
    hits = np.zeros((rows, classes))
    counted = np.flatnonzero(target != ignore_index)
    hits[counted, target[counted]] = weight[target[counted]]
    spread = (target != ignore_index)[:, None] * weight / max(classes, 1)
    wanted = (1 - smoothing) * hits + smoothing * spread
    log_probability = log_softmax_reference(logits)
    losses = -(wanted * log_probability).sum(axis=1)
    gradient = g.astype("float64")[:, None] * (np.exp(log_probability) * wanted.sum(axis=1, keepdims=True) - wanted)
    return losses, hits.sum(), gradient


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(0, 4), (1, 1), (5, 10), (33, 64), (7, 1000)])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weighted", [False, True])
def test_forward_and_backward(shape, smoothing, weighted, dtype):
    rows, classes = shape
    logits, g = normal(shape, dtype, scale=5), normal(rows, dtype, seed=1)
    target = np.random.default_rng(2).integers(0, classes, rows)
    target[1::4] = -1
    weight = abs(normal(classes, dtype, seed=3)) if weighted else None
    options = {"ignore_index": -1, "label_smoothing": smoothing}
    losses, log_sums, total = loss.cross_entropy_forward(logits, target, weight, **options)
    expected_losses, expected_total, expected_gradient = reference(logits, target, weight, -1, smoothing, g)
    close(losses, expected_losses, dtype)
    assert total == pytest.approx(expected_total, rel=1e-6)
    gradient = loss.cross_entropy_backward(g, logits, target, log_sums, weight, **options)
    close(gradient, expected_gradient, dtype, factor=4)
    copy = logits.copy()
    assert loss.cross_entropy_backward(g, copy, target, log_sums, weight, out=copy, **options) is copy
    close(copy, gradient, dtype)


def test_ignored_rows_may_hold_anything():
    logits = np.array([[np.nan, np.inf], [1.0, 2.0]], "float32")
    target = np.array([-100, 1])
    losses, log_sums, total = loss.cross_entropy_forward(logits, target)
    assert losses[0] == 0
    assert total == 1
    gradient = loss.cross_entropy_backward(np.ones(2, "float32"), logits, target, log_sums)
    assert (gradient[0] == 0).all()
    assert gradient[1].sum() == pytest.approx(0, abs=1e-7)


@pytest.mark.parametrize("bad", [-1, 3, 2**40])
def test_target_out_of_range(bad):
    with pytest.raises(IndexError, match=rf"Target {bad} is out of bounds: element 1 of target, expected 0..2"):
        loss.cross_entropy_forward(np.zeros((2, 3), "float32"), np.array([0, bad]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_depends_on_itself_only(dtype):
    logits, target = normal((6, 131), dtype), np.arange(6)
    losses, log_sums, _ = loss.cross_entropy_forward(logits, target)
    g = np.ones(6, dtype)
    gradient = loss.cross_entropy_backward(g, logits, target, log_sums)
    for row in range(6):
        alone, part = shifted(logits[row : row + 1], row + 1), slice(row, row + 1)
        loss_alone, log_sum_alone, _ = loss.cross_entropy_forward(alone, target[part])
        np.testing.assert_array_equal(loss_alone, losses[part])
        np.testing.assert_array_equal(
            loss.cross_entropy_backward(g[part], alone, target[part], log_sum_alone), gradient[part]
        )


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums(dtype):
    """`cross_entropy_sums` adds the sum of the losses, in float64, to what the forward function gives."""
    logits, target = normal((50, 7), dtype), np.arange(50) % 7
    losses, log_sums, weight, total = loss.cross_entropy_sums(logits, target, None, 3, 0.1)
    again = loss.cross_entropy_forward(logits, target, ignore_index=3, label_smoothing=0.1)
    for actual, expected in zip((losses, log_sums, weight), again, strict=True):
        np.testing.assert_array_equal(actual, expected)
    assert weight == (target != 3).sum()
    assert total == pytest.approx(losses.astype("float64").sum(), rel=1e-12)
