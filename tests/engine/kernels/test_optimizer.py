"""Optimizer steps and sums of squares against plain NumPy, and their independence of alignment, splitting and CPU."""

import math
import os
import subprocess
import sys

import numpy as np
import pytest

from engine.ops.buckets import kernels as buckets
from engine.optim import kernels as optimizer
from tests.engine.kernels.samples import DTYPES, close, normal, shifted

SIZES = (0, 1, 3, 16, 63, 1000, 1031)


def sgd_reference(p, g, b, lr, momentum, dampening, weight_decay, nesterov, maximize, first_step, gradient_scale):
    g = (-g if maximize else g) * gradient_scale + weight_decay * p
    if momentum:
        b = g if first_step else momentum * b + (1 - dampening) * g
        g = g + momentum * b if nesterov else b
    return p - lr * g, b


SGD = {
    "plain": {},
    "decay": {"weight_decay": 0.1},
    "maximize": {"maximize": True, "weight_decay": 0.1},
    "momentum": {"momentum": 0.9},
    "dampening": {"momentum": 0.9, "dampening": 0.4, "weight_decay": 0.01},
    "nesterov": {"momentum": 0.8, "nesterov": True},
    "scaled": {"momentum": 0.9, "gradient_scale": 0.37},
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("options", SGD.values(), ids=SGD)
def test_sgd_steps(options, size, dtype):
    defaults = {"momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False, "maximize": False}
    options = defaults | {"gradient_scale": 1.0} | options
    p = normal(size, dtype)
    expected_p, expected_b = p.astype("float64"), None
    # What the first step must not read.
    buffer = np.full(size, np.nan, dtype) if options["momentum"] else None
    for step in range(4):
        g = normal(size, dtype, seed=step + 1)
        untouched = g.copy()
        optimizer.sgd(p, g, buffer, lr=0.1, first_step=step == 0, **options)
        expected_p, expected_b = sgd_reference(
            expected_p, g.astype("float64"), expected_b, 0.1, first_step=step == 0, **options
        )
        np.testing.assert_array_equal(g, untouched)
    close(p, expected_p, dtype)
    if buffer is not None:
        close(buffer, expected_b, dtype)


def adam_reference(p, g, m, v, largest, step, lr, beta1, beta2, eps, weight_decay, decoupled, maximize, gradient_scale):
    g = (-g if maximize else g) * gradient_scale
    if decoupled:
        p = p * (1 - lr * weight_decay)
    else:
        g = g + weight_decay * p
    m = m + (1 - beta1) * (g - m)
    v = beta2 * v + (1 - beta2) * g * g
    largest = None if largest is None else np.maximum(largest, v)
    denominator = np.sqrt(v if largest is None else largest) / math.sqrt(1 - beta2**step) + eps
    return p - lr / (1 - beta1**step) * m / denominator, m, v, largest


ADAM = {
    "adam": {},
    "adamw": {"decoupled": True, "weight_decay": 0.1},
    "coupled": {"weight_decay": 0.1},
    "maximize": {"maximize": True, "decoupled": True, "weight_decay": 0.1},
    "scaled": {"gradient_scale": 0.37},
    "far lerp": {"beta1": 0.2, "beta2": 0.3, "eps": 1e-3},
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("amsgrad", [False, True], ids=["", "amsgrad"])
@pytest.mark.parametrize("options", ADAM.values(), ids=ADAM)
def test_adam_steps(options, amsgrad, size, dtype):
    defaults = {"lr": 0.01, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0, "decoupled": False}
    options = defaults | {"maximize": False, "gradient_scale": 1.0} | options
    p, m, v = normal(size, dtype), np.zeros(size, dtype), np.zeros(size, dtype)
    largest = np.zeros(size, dtype) if amsgrad else None
    expected = [None if array is None else array.astype("float64") for array in (p, m, v, largest)]
    for step in range(1, 6):
        # Shrinking gradients, so that AMSGrad's maximum is not always the newest.
        g = normal(size, dtype, seed=step, scale=3.0 / step**2)
        optimizer.adam(p, g, m, v, step=step, maximum=largest, **options)
        expected = adam_reference(expected[0], g.astype("float64"), *expected[1:], step, **options)
    for actual, wanted in zip((p, m, v, largest), expected, strict=True):
        if actual is not None:
            close(actual, wanted, dtype, factor=2)


def test_adam_passes_nan_and_infinity_on():
    p, m, v = np.ones(3, "float32"), np.zeros(3, "float32"), np.zeros(3, "float32")
    g = np.array([np.nan, np.inf, 1.0], "float32")
    for decoupled in (False, True):
        optimizer.adam(
            p, g, m, v, step=1, lr=0.1, beta1=0.9, beta2=0.99, eps=1e-8, weight_decay=0.0, decoupled=decoupled
        )
    assert np.isnan(p[:2]).all()
    assert np.isnan(v[0])
    assert v[1] == np.inf
    assert np.isfinite(p[2])


def test_amsgrad_keeps_nan_like_maximum():
    arrays = [np.ones(2, "float32") for _ in range(4)]
    largest = np.array([np.nan, 7.0], "float32")
    options = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "weight_decay": 0.0, "decoupled": True}
    optimizer.adam(*arrays, step=1, maximum=largest, **options)
    assert np.isnan(largest[0])
    assert largest[1] == 7.0


@pytest.mark.parametrize("dtype", DTYPES)
def test_steps_do_not_depend_on_alignment_or_on_how_memory_is_split(dtype):
    size = 517
    start = [normal(size, dtype, seed=seed) for seed in range(2)] + [abs(normal(size, dtype, seed=7)) for _ in range(3)]

    def run(arrays, pieces):
        p, g, m, v, largest = arrays
        for begin, end in pieces:
            part = slice(begin, end)
            options = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "weight_decay": 0.1, "decoupled": True}
            optimizer.adam(p[part], g[part], m[part], v[part], step=3, **options)
            optimizer.adam(p[part], g[part], m[part], v[part], step=3, maximum=largest[part], **options)
            optimizer.sgd(p[part], g[part], m[part], lr=0.1, momentum=0.9, weight_decay=0.1)
            optimizer.sgd(p[part], g[part], None, lr=0.1, weight_decay=0.1)
        return p

    whole = run([array.copy() for array in start], [(0, size)])
    for shift in (1, 3, 7):
        arrays = [shifted(array, (shift + place) % 8) for place, array in enumerate(start)]
        np.testing.assert_array_equal(run(arrays, [(0, size)]), whole)
        arrays = [shifted(array, (shift + place) % 8) for place, array in enumerate(start)]
        np.testing.assert_array_equal(run(arrays, [(0, 1), (1, 18), (18, 300), (300, size)]), whole)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [0, 1, 511, 512, 513, 5000, 100_003])
def test_sum_of_squares(size, dtype):
    array = normal(size, dtype)
    exact = math.fsum(float(value) ** 2 for value in array)
    sums = {buckets.sum_of_squares(shifted(array, shift)) for shift in range(8)}
    assert len(sums) == 1
    assert sums.pop() == pytest.approx(exact, rel=1e-14)


def test_sum_of_squares_of_large_float32_does_not_overflow_and_nan_comes_through():
    assert buckets.sum_of_squares(np.full(1000, 1e30, "float32")) == pytest.approx(1e63)
    array = np.ones(1000, "float32")
    array[700] = np.nan
    assert math.isnan(buckets.sum_of_squares(array))


BITS = """
import hashlib
import numpy as np
from engine.ops.buckets import kernels as buckets
from engine.optim import kernels as optimizer
from engine.ops.reduce.kernels import slices as reduce
rng = np.random.default_rng(5)
digest = hashlib.sha256()
for dtype in ("float32", "float64"):
    p, g, m, v, largest = (rng.standard_normal(1031).astype(dtype) for _ in range(5))
    v, largest = abs(v), abs(largest)
    options = dict(step=3, lr=0.1, beta1=0.9, beta2=0.99, eps=1e-8, weight_decay=0.1)
    optimizer.adam(p, g, m, v, decoupled=True, **options)
    optimizer.adam(p, g, m, v, decoupled=False, maximum=largest, gradient_scale=0.3, **options)
    optimizer.sgd(p, g, m, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1)
    digest.update(repr(buckets.sum_of_squares(g)).encode())
    table = reduce.addresses([p, m, g])
    reduce.sum_slices(table, table, p.dtype.char, 3, 1000, 3.0)
    digest.update(b"".join(array.tobytes() for array in (p, g, m, v, largest)))
print(digest.hexdigest())
"""


@pytest.mark.full
def test_steps_norms_and_sums_have_the_same_bits_on_every_cpu():
    """Ranks on unlike machines stay bit-identical: here against a machine without vector and fused instructions."""

    def run(**settings):
        command = [sys.executable, "-W", "error", "-c", BITS]
        return subprocess.run(command, env=os.environ | settings, check=True, capture_output=True, timeout=120).stdout

    assert run(NUMBA_CPU_NAME="generic", NUMBA_CPU_FEATURES="") == run()
