"""CuPy's own functions on the CPU driver: the same numbers as NumPy's."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import engine
from tests import cuda_driver

DTYPES = ["float32", "float64", "float16", "complex64", "int32", "int64", "bool"]


def _both(cupy: ModuleType, dtype: str) -> tuple[Any, np.ndarray]:
    values = np.random.default_rng(0).integers(-4, 5, (7, 33)).astype(dtype)
    return cupy.asarray(values), values


@pytest.mark.parametrize("dtype", DTYPES)
def test_elementwise_reductions_and_conversions(cupy: ModuleType, dtype: str) -> None:
    device, host = _both(cupy, dtype)
    assert cupy.__version__ == "14.2.0"
    np.testing.assert_array_equal((device + device[::-1]).get(), host + host[::-1])
    np.testing.assert_array_equal(device.sum(axis=0).get(), host.sum(axis=0))
    np.testing.assert_array_equal(device.T.sum().get(), host.sum())
    np.testing.assert_array_equal(device.astype("complex128").get(), host.astype("complex128"))


CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "matmul": lambda xp, x: x @ x.T,
    "matrix and vector": lambda xp, x: x @ x[0],
    "batched": lambda xp, x: xp.matmul(x.reshape(1, 7, 33), x.T.reshape(1, 33, 7)),
    "argmax": lambda xp, x: x.argmax(1),
    "cumsum": lambda xp, x: x.cumsum(1),
    "index": lambda xp, x: x[xp.asarray([1, 6, 2])],
    "mask": lambda xp, x: x[x > 0],
    "where": lambda xp, x: xp.where(x > 0, x, -x),
    "nonzero": lambda xp, x: x.nonzero()[1],
    "sort": lambda xp, x: xp.sort(x, 0),
    "argsort": lambda xp, x: xp.argsort(x[:, ::-1], 1, kind="stable"),
    "concatenate": lambda xp, x: xp.concatenate([x, x[::2]]),
    "clip": lambda xp, x: x.clip(-1, 2),
    "maximum": lambda xp, x: x.max(1),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls(cupy: ModuleType, name: str) -> None:
    device, host = _both(cupy, "float32")
    np.testing.assert_array_equal(CALLS[name](cupy, device).get(), CALLS[name](np, host))


def test_mathematics(cupy: ModuleType) -> None:
    device, host = _both(cupy, "float64")
    for name in ("exp", "sin", "tanh", "arctan", "expm1", "cbrt", "floor"):
        np.testing.assert_allclose(getattr(cupy, name)(device).get(), getattr(np, name)(host), rtol=1e-14, atol=1e-14)


SPECIAL = {  # of cupyx.scipy.special, with SciPy's values
    "erfinv": ([-0.5, 0.0, 0.984375], [-0.4769362762044699, 0.0, 1.7094723742995113]),
    "erfcinv": ([1e-100, 0.999, 2.0], [15.065574702592647, 0.000886227157466553, -np.inf]),
    "ndtri": ([1e-10, 0.5, 0.975], [-6.361340902404056, 0.0, 1.9599639845400538]),
    "erfcx": ([-1.0, 0.5, 30.0], [5.00898008076228, 0.6156903441929258, 0.018795888861416751]),
    "i0": ([0.0, -1.0, 10.0], [1.0, 1.2660658777520084, 2815.716628466254]),
    "i1": ([0.0, -1.0, 10.0], [0.0, -0.565159103992485, 2670.988303701255]),
}


@pytest.mark.parametrize("name", SPECIAL)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_functions_that_a_host_does_not_have(cupy: ModuleType, name: str, dtype: str) -> None:
    from cupyx.scipy import special

    values, expected = SPECIAL[name]
    values = np.array(values, dtype)
    if dtype == "float32" and name == "erfcinv":
        values[0], expected = 1e-30, [8.148616223169864, *expected[1:]]
    found = getattr(special, name)(cupy.asarray(values)).get()
    assert found.dtype == dtype
    np.testing.assert_allclose(found, expected, rtol=1e-14 if dtype == "float64" else 1e-4)


def test_sines_of_multiples_of_pi(cupy: ModuleType) -> None:
    """What stands before a quarter turn is exact, and far from 0 nothing is lost."""
    kernel = cupy.ElementwiseKernel("T x", "T s, T c", "s = sinpi(x); c = cospi(x)", "turns")
    for dtype in ("float32", "float64"):
        x = np.array([0, 0.5, 1, -1.5, 2e6 + 0.5, 0.25, -1.25], dtype)
        sine, cosine = (each.get() for each in kernel(cupy.asarray(x)))
        np.testing.assert_array_equal(sine[:5], [0, 1, 0, 1, 1])
        np.testing.assert_array_equal(cosine[:5], [1, 0, -1, 0, 0])
        np.testing.assert_allclose([*sine[5:], *cosine[5:]], np.sqrt([0.5] * 4) * [1, 1, 1, -1], rtol=1e-6)


def test_bfloat16(cupy: ModuleType) -> None:
    host = np.arange(9, dtype=ml_dtypes.bfloat16)
    np.testing.assert_array_equal((cupy.asarray(host) * cupy.asarray(host)).get(), host * host)


def test_only_tests_that_want_a_gpu_find_one(cupy: ModuleType) -> None:
    cuda_driver.hide()
    with pytest.raises(RuntimeError, match="CuPy is installed but finds no usable NVIDIA GPU"):
        engine.zeros(3, device="cuda")
    cuda_driver.load()
    assert engine.zeros(3, device="cuda").tolist() == [0.0] * 3


def test_memory_that_was_not_written_is_nan(cupy: ModuleType) -> None:
    memory = cupy.cuda.MemoryPointer(cupy.cuda.Memory(64), 0)
    assert np.isnan(cupy.ndarray(16, "f4", memory).get()).all()
