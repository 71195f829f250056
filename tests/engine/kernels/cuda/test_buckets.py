"""Sums over ranks, scaling, clipping and 8-bit compression on the device, bit for bit as on the CPU."""

import ml_dtypes
import numpy as np
import pytest

import engine
from ddp.transport.summing import Summation
from engine.memory import backend
from engine.ops.buckets import cuda as buckets
from tests import cuda_device

TYPES = [np.dtype(name) for name in ("float32", "float64", "float16", ml_dtypes.bfloat16, "int32", "int8", "uint8")]
FLOATS = TYPES[:4]
every_type = pytest.mark.parametrize("dtype", TYPES, ids=str)
every_float = pytest.mark.parametrize("dtype", FLOATS, ids=str)


def sample(count: int, dtype: np.dtype, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(count) * 20).astype(dtype)


def on_device(array: np.ndarray):
    return backend.require_cupy().asarray(array)


@every_type
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("shift", [0, 1], ids=["aligned", "unaligned"])
def test_sum_of_slices(cuda: engine.device, dtype: np.dtype, ranks: int, shift: int):
    addends = [sample(1000 + shift, dtype, rank)[shift:] for rank in range(ranks)]
    divisors = [(1.0, None)]
    if dtype in FLOATS:
        divisors += [(float(ranks), None), (7.0, [float(rank % 3) for rank in range(ranks)]), (2.0, [0.0] * ranks)]
    for divisor, weights in divisors:
        mine = [on_device(np.concatenate([each[:shift], each]))[shift:] for each in addends]
        targets = [mine[0], backend.require_cupy().empty(1000, dtype)]
        buckets.prepare_sum(mine, targets)(divisor, weights)
        copies = [each.copy() for each in addends]
        expected = [copies[0], np.empty(1000, dtype)]
        Summation(copies, expected).run(divisor, weights)
        for target, each in zip(targets, expected, strict=True):
            np.testing.assert_array_equal(target.get(), each)


def test_sums_of_complex_numbers(cuda: engine.device):
    addends = [(sample(50, np.dtype("f"), rank) + 1j * sample(50, np.dtype("f"), rank + 9)) for rank in range(3)]
    target = backend.require_cupy().empty(50, np.complex64)
    buckets.prepare_sum([on_device(each) for each in addends], [target])(4.0)
    np.testing.assert_array_equal(target.get(), (addends[0] + addends[1] + addends[2]) / 4)


def test_arrays_that_are_not_alike(cuda: engine.device):
    cupy = backend.require_cupy()
    with pytest.raises(ValueError, match="expected contiguous arrays of float32"):
        buckets.prepare_sum([cupy.zeros(3, np.float32), cupy.zeros(4, np.float32)], [])
    with pytest.raises(ValueError, match="at most 64 ranks"):
        buckets.prepare_sum([cupy.zeros(3, np.float32)] * 65, [])


@every_float
def test_scale_and_found_inf(cuda: engine.device, dtype: np.dtype):
    cupy = backend.require_cupy()
    values = [sample(count, dtype, count) for count in (1, 1000, 0, 77)]
    arrays = [on_device(each) for each in values]
    unaligned = on_device(sample(64, dtype))[3:]
    found = cupy.zeros(1, np.float32)
    buckets.scale([*arrays, unaligned], 0.5, cupy.full(1, 0.25, np.float32), found)
    assert found.get() == 0
    for array, each in zip([*arrays, unaligned], [*values, sample(64, dtype)[3:]], strict=True):
        np.testing.assert_array_equal(array.get(), (each.astype(np.float64) * 0.125).astype(dtype))
    for bad in (np.inf, -np.inf, np.nan):
        found[...] = 0
        arrays[1][999:] = bad
        buckets.scale(arrays, found_inf=found)
        assert found.get() == 1


def test_arrays_of_several_types_and_more_than_a_table_holds(cuda: engine.device):
    values = [sample(5, FLOATS[number % 4], number) for number in range(4 * 130)]
    arrays = [on_device(each) for each in values]
    buckets.clamp(arrays, 8.0)
    for array, each in zip(arrays, values, strict=True):
        np.testing.assert_array_equal(array.get(), np.clip(each, dtype_of(each, -8), dtype_of(each, 8)))
    flat = np.concatenate([array.get().astype(np.float64) for array in arrays])
    np.testing.assert_allclose(buckets.norm(arrays).get(), [np.sqrt((flat**2).sum())], rtol=1e-14)
    np.testing.assert_allclose(buckets.norm(arrays, 1).get(), [np.abs(flat).sum()], rtol=1e-14)
    np.testing.assert_array_equal(buckets.norm(arrays, 0).get(), [8])
    arrays[7][2:3] = np.nan
    assert all(np.isnan(buckets.norm(arrays, power).get()[0]) for power in (0, 1, 2))
    assert buckets.norm([]).get().tolist() == [0]


def dtype_of(array: np.ndarray, value: float):
    return array.dtype.type(value)


@every_float
@pytest.mark.parametrize(("count", "length"), [(1000, 64), (10000, 10000), (5, 512), (8200, 4100)])
def test_eight_bits(cuda: engine.device, dtype: np.dtype, count: int, length: int):
    values = sample(count, dtype)
    values[: min(length, 64)] = 0
    scales, levels = buckets.quantise(on_device(values), length)
    rows = -(-count // length)
    blocks = np.zeros((rows, length), np.float32)
    blocks.reshape(-1)[:count] = values
    expected = np.abs(blocks).max(1) / np.float32(127)
    np.testing.assert_array_equal(scales.get(), expected)
    whole = np.rint(blocks / np.where(expected > 0, expected, 1)[:, None]).astype(np.int8)
    np.testing.assert_array_equal(levels.get(), whole.reshape(-1))
    out = backend.require_cupy().empty(count, dtype)
    buckets.dequantised_mean([scales, scales, scales], [levels, levels, levels], [1.0, 0.0, 3.0], length, out)
    total = whole * expected[:, None] + whole * (expected * np.float32(3))[:, None]
    np.testing.assert_array_equal(out.get(), (total.reshape(-1)[:count] / np.float32(4)).astype(dtype))
    values[0] = np.nan
    scales, levels = buckets.quantise(on_device(values), length)
    buckets.dequantised_mean([scales], [levels], [1.0], length, out)
    assert np.isnan(out.get()[: min(length, count)].astype(np.float32)).all()


@pytest.mark.parametrize("seed", [0, 1])
def test_no_access_is_wrong(cuda: engine.device, seed: int):
    """Bounds, alignment and races, threads and blocks in order and permuted."""
    if not cuda_device.ours():
        pytest.skip("the CPU driver checks accesses")
    cupy = backend.require_cupy()
    with cuda_device.checked(seed):
        arrays = [on_device(sample(count, np.dtype("f"), count)) for count in (300, 37, 1025)]
        found = cupy.zeros(1, np.float32)
        buckets.scale([*arrays, arrays[0][:0]], 2.0, found_inf=found)
        buckets.clamp(arrays, 1.0)
        buckets.norm(arrays)
        buckets.prepare_sum([arrays[0], arrays[2][1:301]], [arrays[0]])(2.0)
        scales, levels = buckets.quantise(arrays[2], 100)
        buckets.dequantised_mean([scales], [levels], [1.0], 100, arrays[2])
