"""Cross-entropy and negative log-likelihood kernels beside the CPU's operators in float64. Without a GPU they run on
the CPU (tests/cuda_driver).
"""

import numpy as np
import pytest

import engine
import engine.nn.functional as F
from engine.ops.loss import cuda as loss
from tests import cuda_device
from tests.engine.kernels.cuda.arrays import KINDS, close, drawn, here, there

SHAPES = [(3, 1, 1), (5, 31, 1), (4, 32, 1), (70, 8, 1), (2, 1025, 1), (2, 1024, 1), (3, 5, 7), (0, 4, 1)]
OPTIONS = [
    ("none", 0.0, False),
    ("mean", 0.0, True),
    ("mean", 0.1, False),
    ("sum", 0.1, True),
    ("none", 0.1, True),
    ("sum", 0.0, False),
]


@pytest.fixture(autouse=True)
def several_parts(monkeypatch: pytest.MonkeyPatch):
    """A few rows are then summed up in several launches."""
    monkeypatch.setattr(loss, "_PART", 16)


def check(kind: str, shape: tuple[int, int, int], reduction: str, smoothing: float, weighted: bool) -> None:
    x = drawn(1, shape, kind, 3)
    target = np.random.default_rng(2).integers(0, shape[1], (shape[0], shape[2]))
    if target.size > 1:
        target.flat[0] = -100
    weight = np.abs(drawn(3, shape[1:2], kind)) + KINDS[kind][0].type(0.5) if weighted else None
    logits = engine.tensor(x.astype("d"), requires_grad=True)
    weights = None if weight is None else engine.tensor(weight.astype("d"))
    classes, flat = engine.tensor(target), there(target.reshape(-1))
    expected = F.cross_entropy(logits, classes, weights, reduction=reduction, label_smoothing=smoothing)
    out, log_sums, total = loss.cross_entropy_forward(there(x), flat, there(weight), -100, reduction, smoothing)
    assert out.dtype == x.dtype
    close(out.reshape(expected.shape), expected.detach().numpy(), kind, 64)
    g = drawn(4, tuple(expected.shape), kind)
    expected.backward(engine.tensor(g.astype("d")))
    slope = there(g).reshape(-1)
    divisor = total if reduction == "mean" else None
    found = loss.cross_entropy_backward(slope, there(x), flat, there(weight), log_sums, divisor, -100, smoothing)
    close(found, logits.grad.numpy(), kind, 64)
    if smoothing:
        return
    logits.grad = None
    expected = F.nll_loss(logits, classes, weights, reduction=reduction)
    out = loss.nll_forward(there(x), flat, there(weight), -100, reduction)
    close(out.reshape(expected.shape), expected.detach().numpy(), kind, 64)
    expected.backward(engine.tensor(g.astype("d")))
    found = loss.nll_backward(slope, there(np.full(shape, np.nan, x.dtype)), flat, there(weight), -100, reduction)
    close(found, logits.grad.numpy(), kind, 64)


@pytest.mark.parametrize("kind", KINDS)
def test_values(cuda: engine.device, kind: str):
    for shape in SHAPES if kind == "float32" else SHAPES[1:3] + SHAPES[6:7]:
        for options in OPTIONS:
            check(kind, shape, *options)


def test_wide_rows(cuda: engine.device):
    check("float32", (1, 20_000, 1), "none", 0.1, True)


@pytest.mark.parametrize("inner", [1, 2])
def test_targets_that_are_no_class(cuda: engine.device, inner: int):
    """NaN in their rows, wherever the target is, and in no other; the sum is then not a number."""
    x, g = drawn(1, (4 // inner, 5, inner), "float32"), there(np.ones(4, "f"))
    for wrong in (5, -1, 1 << 40):
        target = there(np.array([0, wrong, -100, 4]))
        losses, log_sums, _ = loss.cross_entropy_forward(there(x), target, None, -100, "none", 0.0)
        assert np.isnan(here(losses)).tolist() == [False, True, False, False]
        slopes = loss.cross_entropy_backward(g, there(x), target, None, log_sums, None, -100, 0.0)
        rows = here(slopes).transpose(0, 2, 1).reshape(4, 5)
        assert np.isnan(rows).all(1).tolist() == [False, True, False, False]
        assert np.isnan(rows).any(1).tolist() == [False, True, False, False]
        assert not rows[2].any()
        assert np.isnan(here(loss.cross_entropy_forward(there(x), target, None, -100, "mean", 0.0)[0]))
        assert np.isnan(here(loss.nll_forward(there(x), target, None, -100, "sum")))


@pytest.mark.parametrize("seed", [0, 3])
def test_accesses(cuda: engine.device, seed: int):
    with cuda_device.checked(seed):
        for shape in ((20, 8, 1), (3, 5, 3)):
            check("float16", shape, "mean", 0.1, True)
            check("float16", shape, "none", 0.0, False)
