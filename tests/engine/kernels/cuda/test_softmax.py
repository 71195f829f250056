"""softmax and log_softmax kernels on their formulas in float64. Without a GPU they run on the CPU
(tests/cuda_driver).
"""

import numpy as np
import pytest

import engine
from engine.ops.softmax import cuda as softmax
from tests import cuda_device
from tests.engine.kernels.cuda.arrays import KINDS, close, drawn, here, there

# along the last axis: a warp a row, a block, more than the registers hold; across neighbours
SHAPES = [((3, 1), 1), ((5, 31), 1), ((9, 32), 1), ((7, 33), 1), ((6, 1000), 1), ((2, 1025), 1), ((0, 8), 1)]
MORE_SHAPES = [((1, 17_001), 1), ((1, 20_000), -1), ((2, 5, 7), 1), ((5, 33), 0), ((), 0)]


def check(kind: str, x: np.ndarray, dim: int) -> None:
    g = drawn(2, x.shape, kind)
    wide, slope = (each.astype("d").reshape(x.shape or (1,)) for each in (x, g))
    with np.errstate(invalid="ignore", divide="ignore"):
        shifted = wide - wide.max(dim, keepdims=True) if x.size else wide
        sums = np.exp(shifted).sum(dim, keepdims=True)
        expected = {"softmax": np.exp(shifted) / sums, "log_softmax": shifted - np.log(sums)}
    for name, values in expected.items():
        out = softmax.forward(name, there(x).reshape(x.shape), dim)
        assert out.dtype == x.dtype
        close(out, values.reshape(x.shape), kind, 16)
        result = here(out).reshape(wide.shape)
        with np.errstate(invalid="ignore"):
            of_x = (
                result * (slope - (slope * result).sum(dim, keepdims=True))
                if name == "softmax"
                else slope - np.exp(result) * slope.sum(dim, keepdims=True)
            )
        found = softmax.backward(name, there(g).reshape(x.shape), out, dim)
        close(found, of_x.reshape(x.shape), kind, 300)


@pytest.mark.parametrize("kind", KINDS)
def test_values(cuda: engine.device, kind: str):
    for shape, dim in SHAPES + MORE_SHAPES if kind == "float32" else SHAPES[1:5] + MORE_SHAPES[2:4]:
        check(kind, drawn(1, shape, kind, 5), dim)


@pytest.mark.parametrize("columns", [32, 33, 700])
def test_infinities_and_nan(cuda: engine.device, columns: int):
    x = drawn(1, (5, columns), "float32")
    x[0], x[1, : columns - 1], x[2, 3], x[3, 0], x[4] = -np.inf, -np.inf, np.nan, np.inf, 1e38
    check("float32", x, 1)
    check("float32", np.ascontiguousarray(x.T), 0)


@pytest.mark.parametrize("seed", [0, 3])
def test_accesses(cuda: engine.device, seed: int):
    with cuda_device.checked(seed):
        for shape, dim in (((5, 24), 1), ((2, 1100), 1), ((2, 5, 3), 1)):
            check("float16", drawn(1, shape, "float16"), dim)
