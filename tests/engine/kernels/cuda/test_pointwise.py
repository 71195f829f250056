"""The four operations on arrays that lie alike: the bits of CuPy's own ufuncs, at any alignment, in place, and one
launch each.
"""

from typing import Any

import numpy as np
import pytest

import engine
from engine.memory import backend
from engine.ops.pointwise import cuda as pointwise
from tests import cuda_device
from tests.engine.kernels.cuda.arrays import KINDS, drawn, there

OPERATIONS = ("add", "sub", "mul", "div")
TO_DTYPE = {name: getattr(engine, name) for name in KINDS}


def operands(kind: str, *shape: int) -> list[engine.Tensor]:
    cuda = engine.device("cuda")
    arrays = [drawn(seed, shape, kind, offset=0.5) for seed in (1, 2)]
    return [engine.tensor(np.asarray(each, "f")).to(cuda, TO_DTYPE[kind]) for each in arrays]


def same_bits(found: Any, expected: Any) -> None:
    found, expected = (backend.require_cupy().ascontiguousarray(each).get() for each in (found, expected))
    assert found.dtype == expected.dtype
    assert found.tobytes() == expected.tobytes()


def test_every_kernel_is_an_operation():
    assert len(pointwise.SOURCE.kernels) == len(OPERATIONS)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_the_bits_of_cupy(cuda: engine.device, name: str, kind: str):
    cupy = backend.require_cupy()
    ufunc = getattr(cupy, {"sub": "subtract", "mul": "multiply", "div": "true_divide"}.get(name, name))
    for shape in ((1,), (), (37,), (8, 64), (3, 5, 7)):
        x, y = operands(kind, *shape)
        same_bits(getattr(engine, name)(x, y)._array, ufunc(x._array, y._array))
    special = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1e-7, 65504, 3], "f").astype(KINDS[kind][0])
    first, second = np.repeat(special, 8), np.tile(special, 8)
    x, y = (engine.tensor(each.astype("f")).to(cuda, TO_DTYPE[kind]) for each in (first, second))
    found, expected = getattr(engine, name)(x, y)._array.get(), ufunc(x._array, y._array).get()
    np.testing.assert_array_equal(found.astype("d"), expected.astype("d"))


@pytest.mark.parametrize("kind", KINDS)
def test_memory_that_is_not_aligned(cuda: engine.device, kind: str):
    x, y = operands(kind, 259)
    whole = x + y
    for begin in (1, 2, 3):
        with cuda_device.checked(begin):
            same_bits((x[begin:] + y[begin:])._array, whole._array[begin:])
            z = x.clone()
            z[begin:] += y[begin:]
        same_bits(z[begin:]._array, whole._array[begin:])
        same_bits(z[:begin]._array, x._array[:begin])


def test_layouts(cuda: engine.device):
    """Those that lie alike have one kernel; results lie as they do. Others broadcast and convert as ever."""
    x, y = operands("float32", 6, 4)
    same_bits((x.t() + y.t())._array, (x + y).t()._array)
    assert (x.t() + y.t()).stride() == (1, 4)
    same_bits((x[:, :2] + y[:, :2])._array, (x + y)[:, :2]._array)
    same_bits((x + y[0])._array, there(x.cpu().numpy() + y.cpu().numpy()[0]))
    same_bits((x.t().contiguous() + y.t())._array, (x + y).t()._array)
    assert (x + y.double()).dtype is engine.float64
    assert (x[:0] + y[:0]).shape == (0, 4)
    assert (x.int() + y.int()).dtype is engine.int32


def test_one_launch_and_no_copy(cuda: engine.device):
    if not cuda_device.ours():
        pytest.skip("the CPU driver counts launches")
    x, y = operands("float32", 8, 16)
    for calls in (lambda: x + y, lambda: x.add_(y), lambda: engine.mul(x, y, out=x), lambda: x.relu_()):
        calls()
        held = engine.cuda.memory_stats()["allocated_bytes.all.allocated"]
        with cuda_device.counters() as count:
            made = calls()
        assert count.launches == 1
        assert count.synchronizations == 0
        assert engine.cuda.memory_stats()["allocated_bytes.all.allocated"] - held == (0 if made is x else 512)


def test_in_place_writes_count_and_have_a_history(cuda: engine.device):
    x, y = operands("float32", 4, 8)
    leaf = x.clone().requires_grad_()
    out = leaf * 1
    version = out._version
    out += y
    out *= y
    assert out._version == version + 2
    out.sum().backward()
    same_bits(leaf.grad._array, y._array)
    again = (leaf * leaf).add_(y)
    held = again.exp()
    again.mul_(y)  # overwrites what exp's input was, not its result
    held.sum().backward()
    kept = leaf * 1
    power = kept * kept
    kept += y
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        power.sum().backward()


def test_on_the_other_gpu(cuda: engine.device):
    if not cuda_device.ours():
        pytest.skip("the CPU driver has two devices")
    x, y = (each.to("cuda:1") for each in operands("float32", 5, 5))
    total = x + y
    assert total.device == engine.device("cuda:1")
    x += y
    same_bits(x.cpu().to(cuda)._array, total.cpu().to(cuda)._array)
    assert backend.require_cupy().cuda.runtime.getDevice() == 0
