"""Activation kernels, and the pass of dropout, beside the CPU's operators in float64. Without a GPU they run on the CPU
(tests/cuda_driver).
"""

import numpy as np
import pytest

import engine
import engine.nn.functional as F
from engine.ops.activation import cuda as activation
from engine.ops.random.cuda import dropout
from tests import cuda_device
from tests.engine.kernels.cuda.arrays import KINDS, close, drawn, here, there

CALLS = {
    "gelu": ((), F.gelu),
    "gelu_tanh": ((), lambda x: F.gelu(x, approximate="tanh")),
    "silu": ((), F.silu),
    "leaky_relu": ((0.1,), lambda x: F.leaky_relu(x, 0.1)),
    "elu": ((0.7, 1.3, 0.9), lambda x: engine.ops.activation.operator.elu(x, 0.7, 1.3, 0.9)),
    "hardtanh": ((-0.5, 0.75), lambda x: F.hardtanh(x, -0.5, 0.75)),
    "hardsigmoid": ((), F.hardsigmoid),
    "hardswish": ((), F.hardswish),
    "threshold": ((0.25, -3.0), lambda x: F.threshold(x, 0.25, -3.0)),
    "hardshrink": ((0.5,), lambda x: F.hardshrink(x, 0.5)),
    "softshrink": ((0.5,), lambda x: F.softshrink(x, 0.5)),
    "softplus": ((2.0, 3.0), lambda x: F.softplus(x, 2.0, 3.0)),
    "mish": ((), F.mish),
    "logsigmoid": ((), F.logsigmoid),
    "relu": ((), F.relu),
    "sigmoid": ((), engine.sigmoid),
    "tanh": ((), engine.tanh),
}
OF_RESULT = ("relu", "sigmoid", "tanh")


def check(name: str, kind: str, x: np.ndarray, begin: int = 0) -> None:
    """begin: elements before those that the kernels see, which leaves them unaligned."""
    numbers, function = CALLS[name]
    g = drawn(2, x.shape, kind)
    own = x[begin:]
    leaf = engine.tensor(own.astype("d"), requires_grad=True)
    expected = function(leaf)
    expected.backward(engine.tensor(g[begin:].astype("d")))
    out = activation.forward(name, there(x)[begin:], *numbers)
    assert out.dtype == x.dtype
    close(out, expected.detach().numpy(), kind)
    at = out if name in OF_RESULT else there(own)
    slopes = activation.backward(name, there(g)[begin:], at, *numbers)
    # the slope as a function of a rounded result is as far off as that is
    close(slopes, leaf.grad.numpy(), kind, 64 if name in OF_RESULT else 16)


def test_every_activation_is_called():
    assert tuple(CALLS) == activation.NAMES


@pytest.mark.parametrize("kind", KINDS)
def test_values(cuda: engine.device, kind: str):
    for name in CALLS:
        for size in (0, 1, 31, 33, 1000) if name in ("gelu", "relu") else (300,):
            check(name, kind, drawn(1, (size,), kind, 3))
        check(name, kind, drawn(1, (77,), kind, 3), begin=1)


def test_nan_infinities_and_ties(cuda: engine.device):
    edges = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 0.25, -0.5, 0.5, 0.75, 3.0, -3.0, 100.0, -100.0], "f")
    for name, (numbers, function) in CALLS.items():
        if name in ("gelu", "gelu_tanh", "silu", "hardswish", "mish"):  # which are 0 * inf somewhere
            continue
        leaf = engine.tensor(edges.astype("d"), requires_grad=True)
        expected = function(leaf)
        expected.backward(engine.ones(len(edges), dtype=engine.float64))
        out = activation.forward(name, there(edges), *numbers)
        close(out, expected.detach().numpy(), "float32")
        at = out if name in OF_RESULT else there(edges)
        close(activation.backward(name, there(np.ones_like(edges)), at, *numbers), leaf.grad.numpy(), "float32")


@pytest.mark.parametrize("kind", KINDS)
def test_masked_scale(cuda: engine.device, kind: str):
    for size in (0, 1, 33, 1000):
        x, mask = drawn(1, (size,), kind), np.random.default_rng(2).random(size) < 0.5
        for begin in (0, 1):
            out = dropout.masked_scale(there(x)[begin:], there(mask)[begin:], 1.25)
            assert (here(out) == (x[begin:].astype("d") * mask[begin:] * 1.25).astype(x.dtype)).all()


def test_accesses(cuda: engine.device):
    with cuda_device.checked(3):
        for begin in (0, 1):
            check("gelu", "float16", drawn(1, (53,), "float16"), begin)
            check("softplus", "float16", drawn(1, (53,), "float16"), begin)
        dropout.masked_scale(there(drawn(1, (53,), "float32")), there(np.ones(53, bool)), 2.0)
