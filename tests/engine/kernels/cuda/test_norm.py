"""Layer norm and RMS norm kernels on their formulas in float64, for all ways of reading rows. Without a GPU the kernels
run on the CPU (tests/cuda_driver).
"""

import numpy as np
import pytest

import engine
from engine.ops.norm.cuda import layer_norm as norm
from tests import cuda_device
from tests.engine.kernels.cuda.arrays import KINDS, close, drawn, here, there

EPS = 1e-5
# a warp a row, a block a row, rows longer than the registers of their threads; aligned and not
SHAPES = [(3, 1), (5, 31), (4, 32), (9, 33), (33, 20), (6, 1000), (5, 1025), (18, 640), (0, 8), (2, 2501), (2, 9000)]


def check(kind: str, shape: tuple[int, int], vectors: str | None) -> None:
    rows, columns = shape
    x, g = drawn(1, shape, kind, 2, 1), drawn(2, shape, kind)
    weight, bias = (None if vectors is None else drawn(seed, (columns,), vectors) for seed in (3, 4))
    wide, slope = x.astype("d"), g.astype("d")
    scaled = slope if weight is None else slope * weight.astype("d")
    for centred in (True, False):
        mean = wide.mean(1) if centred else np.zeros(rows)
        rstd = 1 / np.sqrt(((wide - mean[:, None]) ** 2).mean(1) + EPS)
        normalised = (wide - mean[:, None]) * rstd[:, None]
        expected = normalised if weight is None else normalised * weight.astype("d")
        projected = normalised * (scaled * normalised).mean(1, keepdims=True)
        of_x = (scaled - projected - (scaled.mean(1, keepdims=True) if centred else 0)) * rstd[:, None]
        if centred:
            expected = expected if bias is None else expected + bias.astype("d")
            out, means, rstds = norm.layer_norm_forward(there(x), there(weight), there(bias), EPS)
            close(means, mean, "float64" if kind == "float64" else "float32", 16)
            found = norm.layer_norm_backward(there(g), there(x), means, rstds, there(weight), (True, True, True))
        else:
            out, rstds = norm.rms_norm_forward(there(x), there(weight), EPS)
            found = norm.rms_norm_backward(there(g), there(x), rstds, there(weight), (True, True))
        assert out.dtype == x.dtype
        close(out, expected, kind, 16)
        # Of the sums before the division by the spread of a row, which leaves nothing of a row that is constant.
        close(there(here(found[0]) / rstd[:, None]), of_x / rstd[:, None], kind, 100)
        for vector, sums in zip(found[1:], ((slope * normalised).sum(0), slope.sum(0)), strict=False):
            assert vector.dtype == (x.dtype if weight is None else weight.dtype)
            close(vector, sums, kind, 100)


@pytest.mark.parametrize("kind", KINDS)
def test_values(cuda: engine.device, kind: str):
    for shape in SHAPES if kind == "float32" else SHAPES[1:8]:
        if shape[1] > 1:
            check(kind, shape, None)
        check(kind, shape, kind)


def test_single_precision_weights_of_half_precision_rows(cuda: engine.device):
    for shape in ((9, 33), (5, 64)):
        check("bfloat16", shape, "float32")


def test_only_what_is_needed(cuda: engine.device):
    x, g = there(drawn(1, (40, 8), "float32")), there(drawn(2, (40, 8), "float32"))
    _, mean, rstd = norm.layer_norm_forward(x, None, None, EPS)
    everything = [here(each) for each in norm.layer_norm_backward(g, x, mean, rstd, None, (True, True, True))]
    for needs in ((True, False, False), (False, True, False), (False, False, True), (True, True, False)):
        found = norm.layer_norm_backward(g, x, mean, rstd, None, needs)
        for each, needed, full in zip(found, needs, everything, strict=True):
            assert (each is not None) == needed
            assert each is None or (here(each) == full).all()


def test_constant_and_far_rows(cuda: engine.device):
    """The variance of a row far from 0 is that of its distances from the mean, not a difference of large numbers."""
    x = (np.arange(64) % 2 + 4096.0).astype("f")[None]
    out, _, rstd = norm.layer_norm_forward(there(np.concatenate([x, np.full((1, 64), 7, "f")])), None, None, EPS)
    close(rstd, 1 / np.sqrt(np.array([0.25, 0]) + EPS), "float32")
    close(out[1], np.zeros(64), "float32")


@pytest.mark.parametrize("seed", [0, 3])
def test_accesses(cuda: engine.device, seed: int):
    with cuda_device.checked(seed):
        for shape in ((5, 24), (2, 1100)):
            check("float16", shape, "float16")
        check("float64", (3, 33), "float64")
