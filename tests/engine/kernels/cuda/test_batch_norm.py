"""Batch norm and group norm kernels on their formulas in float64, for planes and for channels-last rows. Without a GPU
they run on the CPU (tests/cuda_driver).
"""

import numpy as np
import pytest

import engine
from engine.ops.norm.cuda import batch_norm
from tests import cuda_device
from tests.engine.kernels.cuda.arrays import KINDS, Array, close, drawn, there

EPS = 1e-5
SHAPES = [(4, 3, 1), (3, 8, 33), (5, 4, 32), (2, 6, 1000), (1, 6, 1025), (70, 24, 4), (30, 20, 1), (3, 72, 8)]
both_layouts = pytest.mark.parametrize("rows", [False, True], ids=["planes", "rows"])


def laid(array: np.ndarray, rows: bool) -> Array:
    """(N, C, L) on the device, or (N L, C)."""
    return there(array.transpose(0, 2, 1).reshape(-1, array.shape[1])) if rows else there(array)


def back(array: Array, shape: tuple[int, ...], rows: bool) -> Array:
    return array.reshape(shape[0], shape[2], shape[1]).transpose(0, 2, 1) if rows else array


def check(kind: str, shape: tuple[int, int, int], rows: bool, with_vectors: bool, groups: int = 0) -> None:
    """groups: 0 for batch norm."""
    x, g = drawn(1, shape, kind, 2, 3), drawn(2, shape, kind)
    samples, channels, _ = shape
    sums = "float64" if kind == "float64" else "float32"
    weight, bias = (drawn(seed, (channels,), sums) if with_vectors else None for seed in (3, 4))
    wide, slope = x.astype("d"), g.astype("d")
    together = wide.reshape(samples, groups, -1) if groups else wide
    axes = (2,) if groups else (0, 2)
    mean, variance = together.mean(axes, keepdims=True), together.var(axes, keepdims=True)
    rstd = 1 / np.sqrt(variance + EPS)
    normalised = ((together - mean) * rstd).reshape(shape)
    column = np.ones((channels, 1)) if weight is None else weight.astype("d")[:, None]
    expected = normalised * column + (0 if bias is None else bias.astype("d")[:, None])
    scaled, centred = (slope * column).reshape(together.shape), normalised.reshape(together.shape)
    of_x = scaled - scaled.mean(axes, keepdims=True) - centred * (scaled * centred).mean(axes, keepdims=True)
    image, gradient = laid(x, rows), laid(g, rows)
    if groups:
        out, means, rstds = batch_norm.group_norm_forward(image, samples, there(weight), there(bias), groups, EPS)
        needs = (True, True, True)
        found = batch_norm.group_norm_backward(gradient, image, means, rstds, there(weight), needs)
    else:
        count = wide.size // channels
        running = there(np.zeros(channels, means_dtype(sums))), there(np.ones(channels, means_dtype(sums)))
        out, means, rstds = batch_norm.batch_norm_forward(image, there(weight), there(bias), *running, 0.1, EPS)
        close(running[0], 0.1 * mean.reshape(-1), sums, 32)
        close(running[1], 0.9 + 0.1 * variance.reshape(-1) * count / max(count - 1, 1), sums, 64)
        found = batch_norm.batch_norm_backward(gradient, image, means, rstds, there(weight), True)
    assert out.dtype == x.dtype
    close(means, mean.reshape(means.shape), sums, 32)
    close(rstds, rstd.reshape(rstds.shape), sums, 64)
    close(back(out, shape, rows), expected, kind, 64)
    close(back(found[0], shape, rows), (of_x * rstd).reshape(shape), kind, 200)
    close(found[1], (slope * normalised).sum((0, 2)), sums, 800)
    close(found[2], slope.sum((0, 2)), sums, 800)


def means_dtype(sums: str) -> np.dtype:
    return KINDS[sums][0]


@both_layouts
@pytest.mark.parametrize("kind", KINDS)
def test_batch_norm(cuda: engine.device, kind: str, rows: bool):
    for shape in SHAPES if kind == "float32" else SHAPES[1:3]:
        check(kind, shape, rows, True)
        check(kind, shape, rows, False)


@both_layouts
@pytest.mark.parametrize("kind", KINDS)
def test_group_norm(cuda: engine.device, kind: str, rows: bool):
    for shape in SHAPES if kind == "float32" else SHAPES[1:3]:
        for groups in {1, 2, shape[1]}:
            if not shape[1] % groups and shape[1] // groups * shape[2] > 1:
                check(kind, shape, rows, groups != 2, groups)


@both_layouts
def test_far_from_zero(cuda: engine.device, rows: bool):
    """The variance is that of distances from the mean, not a difference of large numbers."""
    x = (np.arange(1024) % 2 + 4096.0).astype("f").reshape(4, 1, 256).repeat(4, 1)
    _, mean, rstd = batch_norm.batch_norm_forward(laid(x, rows), None, None, None, None, 0.1, EPS)
    close(mean, np.full(4, 4096.5), "float32")
    close(rstd, np.full(4, 1 / np.sqrt(0.25 + EPS)), "float32")


@both_layouts
def test_equal_calls_give_equal_bits(cuda: engine.device, rows: bool):
    """Whatever the order of blocks and threads."""
    x, g = (laid(drawn(seed, (6, 40, 50), "float32"), rows) for seed in (1, 2))
    found = []
    for seed in (0, 5):
        with cuda_device.order(seed):
            out, mean, rstd = batch_norm.batch_norm_forward(x, None, None, None, None, 0.1, EPS)
            slopes = batch_norm.batch_norm_backward(g, x, mean, rstd, None, True)
            found.append([each.get().tobytes() for each in (out, mean, rstd, *slopes)])
    assert found[0] == found[1]


@both_layouts
def test_accesses(cuda: engine.device, rows: bool):
    with cuda_device.checked(3):
        check("float16", (5, 16, 24), rows, True)
        check("float16", (3, 16, 8), rows, True, 4)
        check("float32", (2, 6, 5), rows, True, 2)
