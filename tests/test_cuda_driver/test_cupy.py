"""CuPy's own functions on the CPU driver: the same numbers as NumPy's."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest

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


def test_bfloat16(cupy: ModuleType) -> None:
    host = np.arange(9, dtype=ml_dtypes.bfloat16)
    np.testing.assert_array_equal((cupy.asarray(host) * cupy.asarray(host)).get(), host * host)


def test_memory_that_was_not_written_is_nan(cupy: ModuleType) -> None:
    memory = cupy.cuda.MemoryPointer(cupy.cuda.Memory(64), 0)
    assert np.isnan(cupy.ndarray(16, "f4", memory).get()).all()
