"""Raw kernels on the simulated GPU take part in its order."""

from typing import Any

import numpy as np
import pytest

import engine
from engine.memory import backend
from engine.ops.buckets.cuda import prepare_sum
from tests import cuda_simulator as simulator
from tests.cuda_simulator import races

CODE = """
extern "C" __global__ void add_one(float* values, long long count) {
    long long step = gridDim.x * (long long)blockDim.x;
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < count; i += step) values[i] += 1.0f;
}
"""


def test_raw_kernels_run_and_take_part_in_the_order(xp: Any) -> None:
    array = xp.zeros(100, np.float32)
    kernel = xp.RawModule(code=CODE, options=("--std=c++17",)).get_function("add_one")
    with simulator.counters() as count:
        kernel((2,), (32,), (array, np.int64(100)))
    assert count.launches == 1
    assert count.names == ["add_one"]
    assert array.get().tolist() == [1.0] * 100
    array += 1
    with xp.cuda.Stream(non_blocking=True), pytest.raises(simulator.RaceError):
        kernel((2,), (32,), (array, np.int64(100)))
    with pytest.raises(RuntimeError, match="INVALID_VALUE"):
        kernel((1,), (2048,), (array, np.int64(100)))
    with pytest.raises(TypeError, match="device array"):
        kernel((1,), (32,), (np.zeros(100, np.float32), np.int64(100)))


def test_kernels_may_read_the_same_memory_at_once(xp: Any, two_streams: Any) -> None:
    code = CODE.replace("float* values", "const float* addends, float* values").replace("+= 1.0f", "+= addends[i]")
    kernel = xp.RawKernel(code, "add_one", ("--std=c++17",))
    addends, sums = xp.ones(32, np.float32), [xp.zeros(32, np.float32) for _ in range(2)]
    xp.cuda.Device().synchronize()
    for stream, values in zip(two_streams, sums, strict=True):
        with stream:
            kernel((1,), (32,), (addends, values, np.int64(32)))
    with xp.cuda.Stream(non_blocking=True), pytest.raises(simulator.RaceError):
        kernel((1,), (32,), (addends, sums[0], np.int64(32)))


@pytest.mark.parametrize("late", ["addend", "target"])
def test_memory_that_kernels_reach_through_tables_is_known(cuda: engine.device, late: str) -> None:
    xp = backend.require_cupy()
    if not simulator.installed():
        pytest.skip("a GPU does not report races")
    arrays = [xp.ones(64, np.float32) for _ in range(3)]
    xp.cuda.Device().synchronize()
    run = prepare_sum(arrays[:2], arrays[2:])
    run()
    assert arrays[2].get().tolist() == [2.0] * 64
    with xp.cuda.Stream(non_blocking=True):
        arrays[0 if late == "addend" else 2] += 1
    with pytest.raises(simulator.RaceError):
        run()
    races.found.clear()


def test_a_table_of_addresses_that_nobody_declared_is_refused(xp: Any) -> None:
    table = np.zeros((), [("addresses", np.uint64, 2)])
    kernel = xp.RawKernel("", "unheard_of")
    table["addresses"][1] = xp.zeros(4).data.ptr
    with pytest.raises(NotImplementedError, match="unheard_of takes device addresses"):
        kernel((1,), (1,), (table,))
