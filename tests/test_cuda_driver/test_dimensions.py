"""CuPy's kernels for arrays of few dimensions, which are compiled once for all of them."""

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.cuda_driver import dimensions

HEADERS = "#include <cupy/complex.cuh>\n#include <cupy/carray.cuh>\n"
ADD = HEADERS + (
    'extern "C" __global__ void add(const CArray<complex<float>, {n}, {c}, 1> _raw_in0, int in1, '
    "CArray<complex<float>, {n}, {c}, 1> _raw_out0, CIndexer<{n}, 1> _ind) {{ body; }}"
)


def test_texts_that_differ_in_dimensions_are_one():
    flat, said = dimensions.widened(ADD.format(n=1, c=1))
    assert said == "1 -1 1 1"
    for n in (0, 2, 3, 4):
        assert dimensions.widened(ADD.format(n=n, c=0)) == (flat, f"{n} -1 {n} {n}")
    assert flat == ADD.format(n=4, c=0)


@pytest.mark.parametrize(
    "source",
    [
        ADD.format(n=5, c=0),
        ADD.format(n=2, c=0).replace("body", "int last = _ind.get()[_ind.ndim - 1]"),
        ADD.format(n=2, c=0).replace("body", "int rows = _raw_in0.shape()[0]"),
        ADD.format(n=2, c=0).replace("body", "CArray<float, 1, 1, 1> other"),
        ADD.format(n=2, c=0) + ADD.format(n=2, c=0).replace("add", "subtract"),
        ADD.format(n=2, c=0).replace("CIndexer<2, 1> _ind", "int size"),
    ],
    ids=["too many", "index", "shape", "elsewhere", "two kernels", "no indexer"],
)
def test_what_depends_on_dimensions_otherwise_is_left_as_it_is(source: str):
    assert dimensions.widened(source) == (source, "")


def arrays(xp: Any, shape: tuple[int, ...]) -> list[Any]:
    """In one piece, turned around, with holes, backwards, with elements that are one."""
    x = xp.arange(1, 1 + np.prod(shape, dtype=int), dtype=np.float64).reshape(shape)
    found = [x, x.T]
    if shape:
        found += [xp.concatenate([x, x], -1)[..., ::2], x[::-1], xp.broadcast_to(x[:1], shape)]
    return found


@pytest.mark.parametrize("shape", [(), (7,), (1,), (0, 3), (3, 5), (4, 1, 6), (3, 2, 5, 4), (2, 3, 2, 3, 2), (2,) * 7])
def test_the_numbers_of_numpy(cupy: ModuleType, shape: tuple[int, ...]):
    for on_device, on_host in zip(arrays(cupy, shape), arrays(np, shape), strict=True):
        np.testing.assert_array_equal((on_device * 3 - on_device.T.T).get(), on_host * 3 - on_host)
        np.testing.assert_array_equal(on_device.sum().get(), on_host.sum())
        for axis in range(len(shape)):
            np.testing.assert_array_equal(on_device.sum(axis).get(), on_host.sum(axis))
            first = (slice(None),) * axis + (slice(1),)
            np.testing.assert_array_equal((on_device * on_device[first]).get(), on_host * on_host[first])
        written = cupy.zeros_like(on_device)
        written[...] = on_device
        written[written > 4] = -1
        np.testing.assert_array_equal(written.get(), np.where(on_host > 4, -1, on_host))
        if len(shape) > 1:
            np.testing.assert_array_equal(cupy.tril(on_device).get(), np.tril(on_host))
        if 0 not in shape:
            where = np.arange(max(shape, default=1)) % (shape[0] if shape else 1)
            flat = on_device.ravel().take(cupy.asarray(where))
            np.testing.assert_array_equal(flat.get(), on_host.ravel().take(where))


def test_raw_arrays_are_indexed_as_they_lie(cupy: ModuleType):
    kernel = cupy.ElementwiseKernel("raw T x, int64 n", "T y", "y = x[n - 1 - i]", "backwards")
    x = cupy.arange(24.0).reshape(4, 6)
    for each in (x, x.T, x[:, ::2], cupy.arange(24.0)):
        found = kernel(each, each.size, size=each.size)
        np.testing.assert_array_equal(found.get(), each.get().ravel()[::-1])
