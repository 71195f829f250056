"""Copies between layouts and dtypes on the device are NumPy's."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import engine
from engine.memory import backend
from engine.ops.copy import cuda as copies
from tests import cuda_device

NAMES = ["float32", "float64", "float16", ml_dtypes.bfloat16, "int8", "int16", "int32", "int64", "uint8", "bool"]
TYPES = [np.dtype(name) for name in [*NAMES, "complex64", "complex128"]]


def sample(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    values = np.random.default_rng(0).standard_normal(shape) * 40
    return (values * (1 + 2j) if dtype.kind == "c" else values).astype(dtype)


def laid_out(shape: tuple[int, ...], order: tuple[int, ...], dtype: np.dtype):
    """An empty device array whose axes lie in `order`, slowest first."""
    memory = backend.require_cupy().empty([shape[axis] for axis in order], dtype)
    return memory.transpose([order.index(axis) for axis in range(len(order))])


def check(shape: tuple[int, ...], orders: tuple[tuple[int, ...], ...], dtypes: tuple[np.dtype, np.dtype]) -> None:
    values = sample(shape, dtypes[0])
    source, target = (laid_out(shape, order, dtype) for order, dtype in zip(orders, dtypes, strict=True))
    source.set(np.ascontiguousarray(values)) if source.flags.c_contiguous else source.__setitem__(
        ..., backend.require_cupy().asarray(values)
    )
    copies.copy(target, source)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(target.get(), values.astype(dtypes[1]))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("size", [(3, 40, 33), (2, 5, 7), (1, 64, 16)])
def test_every_dtype(cuda: engine.device, dtype: np.dtype, size: tuple[int, ...]):
    for order in ((0, 1, 2), (0, 2, 1), (2, 1, 0)):
        check(size, ((0, 1, 2), order), (dtype, dtype))
        check(size, (order, (0, 1, 2)), (dtype, dtype))


@pytest.mark.parametrize("pair", copies._CONVERSIONS, ids="-".join)
def test_conversions(cuda: engine.device, pair: tuple[str, str]):
    names = {each.name: each for each in TYPES}
    for order in ((0, 1, 2), (0, 2, 1)):
        for shape in ((3, 40, 33), (2, 4, 64)):
            check(shape, ((0, 1, 2), order), (names[pair[0]], names[pair[1]]))


def test_what_there_is_no_kernel_for(cuda: engine.device):
    for pair in (("int32", "float32"), ("float32", "int64"), ("bool", "float32"), ("float64", "float16")):
        check((3, 40, 33), ((0, 1, 2), (2, 0, 1)), (np.dtype(pair[0]), np.dtype(pair[1])))
    values = sample((2,) * 10, TYPES[0])
    cupy = backend.require_cupy()
    target = cupy.empty((2,) * 10, np.float32)
    axes = (9, 0, 8, 1, 7, 2, 6, 3, 5, 4)
    copies.copy(target, cupy.asarray(values).transpose(axes))
    np.testing.assert_array_equal(target.get(), values.transpose(axes))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_views_of_any_kind(cuda: engine.device, data: st.DataObject):
    """Slices with steps, negative ones too, permuted axes and broadcast ones; what is around the target stays."""
    cupy = backend.require_cupy()
    shape = tuple(data.draw(st.lists(st.integers(1, 20), min_size=1, max_size=4)))
    whole = sample(tuple(2 * each + 1 for each in shape), TYPES[0])
    cuts = tuple(
        data.draw(
            st.sampled_from([slice(0, each), slice(1, each + 1), slice(0, 2 * each, 2), slice(each - 1, None, -1)])
        )
        for each in shape
    )
    axes = data.draw(st.permutations(range(len(shape))))
    source = whole[cuts].transpose(axes)
    around = np.full(tuple(each + 2 for each in source.shape), -1.0, np.float32)
    inside = tuple(slice(1, each + 1) for each in source.shape)
    target = cupy.asarray(around)
    copies.copy(target[inside], cupy.asarray(whole)[cuts].transpose(axes))
    around[inside] = source
    np.testing.assert_array_equal(target.get(), around)
    first = source[:1]
    copies.copy(target[inside], cupy.broadcast_to(cupy.asarray(whole)[cuts].transpose(axes)[:1], source.shape))
    around[inside] = first
    np.testing.assert_array_equal(target.get(), around)


def test_no_access_is_wrong(cuda: engine.device):
    if not cuda_device.ours():
        pytest.skip("the CPU driver checks accesses")
    cupy = backend.require_cupy()
    source = cupy.asarray(sample((3, 40, 33), TYPES[0]))
    for seed in (0, 1):
        with cuda_device.checked(seed):
            copies.copy(cupy.empty((3, 33, 40), np.float32), source.transpose(0, 2, 1))
            copies.copy(cupy.empty((3, 40, 33), np.float16), source)
            copies.copy(cupy.empty((3, 40, 16), np.float32), source[..., 1::2])


@pytest.mark.parametrize("dtype", [engine.float32, engine.bfloat16], ids=str)
def test_tensors_are_laid_out_by_it(cuda: engine.device, dtype: engine.dtype):
    values = engine.randn(2, 20, 5, 6)
    found = values.to(cuda).to(dtype, memory_format=engine.channels_last)
    assert found.is_contiguous(memory_format=engine.channels_last)
    assert (found.cpu() == values.to(dtype)).all()
    assert (found.contiguous().cpu() == values.to(dtype)).all()
