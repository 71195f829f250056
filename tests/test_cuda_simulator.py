"""The simulated GPU behaves like CuPy and CUDA, and finds what it is there to find."""

import gc
import json
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import engine
from engine import backend
from engine.kernels.cuda.buckets import prepare_sum
from tests import cuda_simulator as simulator
from tests.cuda_simulator import api, races
from tests.data import cupy_api

ROOT = Path(__file__).parent.parent


@pytest.fixture
def xp() -> Iterator[Any]:
    """The stand-in for CuPy, on two devices of 64 MiB."""
    simulator.install(devices=2, memory=64 << 20)
    try:
        yield backend.require_cupy()
    finally:
        races.found.clear()
        simulator.uninstall()


def test_without_it_there_is_no_gpu() -> None:
    simulator.install()
    assert backend.require_cupy().__name__ == "cupy"
    simulator.uninstall()
    assert "cupy" not in sys.modules or not isinstance(sys.modules["cupy"], simulator._module._Module)


# Arrays.


def test_arrays_do_not_become_numpys(xp: Any) -> None:
    array = xp.arange(3.0)
    assert not isinstance(array, np.ndarray)
    with pytest.raises(TypeError, match="Implicit conversion"):
        np.asarray(array)
    with pytest.raises(TypeError, match="Unsupported type"):
        array + np.ones(3)
    with pytest.raises(TypeError):
        np.ones(3) + array
    with pytest.raises(TypeError, match="Unsupported type"):
        xp.concatenate([array, np.ones(3)])
    with pytest.raises(TypeError, match="Unsupported type"):
        xp.add(array, [1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="non-scalar"):
        array[:] = np.ones(3)


def test_numpy_functions_give_device_arrays(xp: Any) -> None:
    array = xp.arange(3.0)
    for found in (np.exp(array), np.sum(array), np.float32(2) * array, np.concatenate([array, array])):
        assert isinstance(found, xp.ndarray)


def test_reductions_are_device_arrays_without_axes(xp: Any) -> None:
    total = xp.arange(4.0).sum()
    assert isinstance(total, xp.ndarray)
    assert total.shape == ()
    assert total.item() == 6.0


def test_names_and_parameters_are_cupys(xp: Any) -> None:
    for name in ("errstate", "bfloat16", "unstack", "nope"):
        with pytest.raises(AttributeError):
            getattr(xp, name)
    with pytest.raises(TypeError, match="Wrong arguments"):
        xp.add(xp.ones(2), 1, where=True)
    with pytest.raises(TypeError, match="mode"):
        xp.take(xp.ones(2), xp.zeros(1, int), mode="clip")
    with pytest.raises(TypeError, match="initial"):
        xp.sum(xp.ones(2), initial=1)
    with pytest.raises(NotImplementedError, match="ElementwiseKernel"):
        _ = xp.ElementwiseKernel


KINDS = ["float32", "float16", ml_dtypes.bfloat16, "int8", "int32", "int64", "bool", "complex64"]


@pytest.mark.parametrize("kind", KINDS)
def test_types_of_results_are_numpys(xp: Any, kind: Any) -> None:
    host = np.array([1, 2, 3]).astype(kind)
    array = xp.asarray(host)
    assert (array + array).dtype == (host + host).dtype
    assert (array + 1).dtype == (host + 1).dtype
    assert (array * np.float32(2)).dtype == np.result_type(host.dtype, np.float32)
    np.testing.assert_array_equal((array * 2).get(), host * 2)
    assert array.astype("complex128").get().tolist() == host.astype("complex128").tolist()


def test_half_precision_is_added_up_in_single(xp: Any) -> None:
    for kind in (np.float16, ml_dtypes.bfloat16):
        ones = xp.ones(3000, kind)
        assert float(ones.sum()) == np.float32(3000).astype(kind)
        assert ones.sum().dtype == kind


def test_elementwise_results_are_in_rows(xp: Any) -> None:
    columns = xp.asfortranarray(xp.ones((3, 4)))
    assert (columns + 1).flags.c_contiguous
    assert columns.copy(order="K").flags.f_contiguous
    assert columns.astype("f4").flags.f_contiguous


def test_indices_wrap_around_and_duplicates_are_undefined(xp: Any) -> None:
    array = xp.arange(4.0)
    assert xp.take(array, xp.asarray([5, -1])).get().tolist() == [1.0, 3.0]
    assert array[xp.asarray([4])].get().tolist() == [0.0]
    array[xp.asarray([1, 1])] = xp.asarray([8.0, 9.0])
    assert array.get().tolist() == [0.0, 8.0, 2.0, 3.0]  # NumPy keeps 9
    xp.add.at(array, xp.asarray([0, 0]), 1.0)
    assert array.get().tolist()[0] == 2.0
    with pytest.raises(TypeError, match="atomic"):
        xp.add.at(xp.zeros(2, np.int8), xp.asarray([0]), 1)


def test_division_of_integers_by_zero(xp: Any) -> None:
    assert (xp.asarray([4, 5]) // 0).get().tolist() == [0, 0]


def test_views_share_memory(xp: Any) -> None:
    array = xp.zeros((3, 4), np.float32)
    row = array[1]
    row[2:] = 5
    assert array.T[3, 1].item() == 5
    assert row.base is array
    assert row.data.ptr == array.data.ptr + 16
    assert array.reshape(4, 3).base is array
    assert array[:, :2].reshape(-1).base is None
    built = xp.ndarray((2, 2), np.float32, array.data + 4, (16, 4))
    assert built.base is None
    built[...] = 7
    assert array.get()[:2, 1:3].tolist() == [[7, 7], [7, 7]]
    assert built.__cuda_array_interface__["strides"] == (16, 4)


def test_failures_of_linalg_are_nan_unless_asked_for(xp: Any) -> None:
    import cupyx

    singular = xp.zeros((2, 2))
    assert np.isnan(xp.linalg.inv(singular).get()).all()
    with cupyx.errstate(linalg="raise"), pytest.raises(np.linalg.LinAlgError):
        xp.linalg.inv(singular)


def test_what_cupy_does_with_bfloat16(xp: Any) -> None:
    half = xp.ones((3, 3), ml_dtypes.bfloat16)
    for kept in (half + 1, half * np.float32(2).astype(half.dtype), half.sum(), half.mean(), half.max(), xp.exp(half)):
        assert kept.dtype == half.dtype
    for single in (xp.where(half > 0, half, 0), xp.clip(half, 0, 1), xp.round(half)):  # they have no loop for it
        assert single.dtype == np.float32
    assert half.var().dtype == np.float64
    with pytest.raises(NotImplementedError, match="bfloat16"):
        xp.sort(half)
    with pytest.raises(TypeError, match="bfloat16"):
        half @ half


def test_strides_of_axes_of_length_one_are_cupys(xp: Any) -> None:
    array = xp.zeros((2, 3, 4), np.float32)
    assert xp.expand_dims(array.transpose(2, 0, 1), 1).strides == (4, 4, 48, 16)
    assert array.reshape(2, 1, 12).strides == (48, 48, 4)
    assert xp.broadcast_to(array[:1], (2, 1, 3, 4)).strides == (0, 48, 16, 4)
    assert array[None].strides == (0, 48, 16, 4)


# Transfers and synchronisation.


def test_synchronisations_and_transfers_are_counted(xp: Any) -> None:
    with simulator.counters() as count:
        array = xp.asarray(np.ones(4, np.float32))
        array = xp.exp(array) + 1
        array[array.astype(int)] = 0
        array.sum(out=xp.empty((), np.float32))
    assert (count.synchronizations, count.pageable, count.pinned) == (0, 1, 0)
    assert count.bytes == {"pageable": 16}
    for wait in (
        lambda: array.get(),
        lambda: float(array[0]),
        lambda: bool(array[0]),
        lambda: array[0].item(),
        lambda: xp.nonzero(array),
        lambda: xp.unique(array),
        lambda: array[array > 1],
        lambda: array.__setitem__(array > 1, 0),
        lambda: xp.cuda.Device().synchronize(),
        lambda: xp.cuda.get_current_stream().synchronize(),
    ):
        with simulator.counters() as count:
            wait()
        assert count.synchronizations == 1, count.waits
        assert "test_cuda_simulator.py" in count.waits[0]


def test_pinned_memory_is_there_when_the_host_has_waited(xp: Any) -> None:
    array = xp.arange(4, dtype=np.float32)
    memory = xp.cuda.alloc_pinned_memory(16)
    host = np.frombuffer(memory, np.float32, 4)
    host[:] = -1
    stream = xp.cuda.Stream(non_blocking=True)
    xp.cuda.Stream.null.synchronize()
    with simulator.counters() as count:
        array.get(stream, out=host, blocking=False)
        event = stream.record()
        assert host.tolist() == [-1] * 4
        assert not event.done
    assert (count.synchronizations, count.pinned) == (0, 1)
    event.synchronize()
    assert host.tolist() == [0, 1, 2, 3]


def test_a_buffer_that_is_overwritten_under_way_is_a_race(xp: Any) -> None:
    host = np.frombuffer(xp.cuda.alloc_pinned_memory(16), np.float32, 4)
    host[:] = 1
    array = xp.empty(4, np.float32)
    array.set(host)
    host[:] = 2
    with pytest.raises(simulator.RaceError, match="host wrote"):
        xp.cuda.Device().synchronize()


# Streams.


def two_streams(xp: Any) -> tuple[Any, Any]:
    return xp.cuda.Stream(non_blocking=True), xp.cuda.Stream(non_blocking=True)


@pytest.mark.parametrize("order", ["write then read", "read then write", "write then write"])
def test_accesses_that_nothing_orders_are_races(xp: Any, order: str) -> None:
    array = xp.zeros(1000)
    xp.cuda.Device().synchronize()
    first, second = two_streams(xp)

    def access(write: bool) -> None:
        if write:
            array[...] = 1
        else:
            array + 1

    with first:
        access(order.startswith("write"))
    with second, pytest.raises(simulator.RaceError, match="no event orders"):
        access(order.endswith("write"))


@pytest.mark.parametrize("how", ["event", "synchronize", "event of the host", "null stream"])
def test_accesses_that_something_orders_are_none(xp: Any, how: str) -> None:
    array = xp.zeros(1000)
    xp.cuda.Device().synchronize()
    first, second = two_streams(xp)
    if how == "null stream":
        first, second = xp.cuda.Stream(), xp.cuda.Stream()
    with first:
        array += 1
    if how == "event":
        second.wait_event(first.record())
    elif how == "synchronize":
        first.synchronize()
    elif how == "event of the host":
        first.record().synchronize()
    else:
        xp.zeros(1)
    with second:
        array += 1
    second.synchronize()
    assert array[0].item() == 2


def test_different_parts_of_an_array_may_be_used_at_once(xp: Any) -> None:
    array = xp.zeros(1000)
    xp.cuda.Device().synchronize()
    first, second = two_streams(xp)
    with first:
        array[:500] += 1
    with second:
        array[500:] += 1


def test_an_event_orders_what_was_queued_before_it_only(xp: Any) -> None:
    array = xp.zeros(10)
    xp.cuda.Device().synchronize()
    first, second = two_streams(xp)
    event = first.record()
    with first:
        array += 1
    second.wait_event(event)
    with second, pytest.raises(simulator.RaceError):
        array += 1


def test_freed_memory_is_reused_by_its_own_stream_only(xp: Any) -> None:
    first, second = two_streams(xp)
    with first:
        array = xp.zeros(1000)
        pointer = array.data.ptr
    second.wait_event(first.record())
    with second:
        array + 1
    del array
    with second:
        assert xp.empty(1000).data.ptr != pointer
    with first:
        again = xp.empty(1000)
        assert again.data.ptr == pointer
        with pytest.raises(simulator.RaceError):  # the other stream still reads it
            again.fill(0)


def test_a_race_that_somebody_swallows_fails_the_test(xp: Any) -> None:
    array = xp.zeros(10)
    with xp.cuda.Stream(non_blocking=True), pytest.raises(simulator.RaceError):
        array += 1
    with pytest.raises(simulator.RaceError, match="no event orders"):
        simulator.uninstall()


def test_streams_belong_to_threads_and_devices(xp: Any) -> None:
    stream = xp.cuda.Stream()
    stream.use()
    assert xp.cuda.get_current_stream() == stream
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(xp.cuda.get_current_stream()))
    thread.start()
    thread.join()
    assert found == [xp.cuda.Stream.null]
    with xp.cuda.Device(1):
        assert xp.cuda.get_current_stream() == xp.cuda.Stream.null
        assert xp.zeros(3).device.id == 1
        with pytest.raises(RuntimeError, match="not created on the current device"), stream:
            pass
    xp.cuda.Stream.null.use()
    with pytest.raises(xp.cuda.runtime.CUDARuntimeError, match="invalid device ordinal"):
        xp.cuda.Device(2).use()


def test_arrays_of_another_device_are_refused_but_copied(xp: Any) -> None:
    with xp.cuda.Device(1):
        there = xp.arange(3.0)
        there.device.synchronize()
    with pytest.raises(ValueError, match="current device"):
        there + 1
    with simulator.counters() as count:
        here = xp.asarray(there)
    assert here.device.id == 0
    assert count.peer == 1
    assert here.get().tolist() == [0, 1, 2]


# Memory.


def test_the_pool_counts_and_has_a_limit(xp: Any) -> None:
    gc.collect()
    pool = xp.cuda.MemoryPool()
    with xp.cuda.using_allocator(pool.malloc):
        array = xp.empty(1000, np.uint8)
        assert (pool.used_bytes(), pool.total_bytes(), pool.n_free_blocks()) == (1024, 1024, 0)
        assert np.isnan(xp.empty(3).get()).all()
        del array
        assert (pool.used_bytes(), pool.total_bytes(), pool.n_free_blocks()) == (0, 1536, 2)
        pool.free_all_blocks()
        assert pool.total_bytes() == 0
        pool.set_limit(size=2048)
        with pytest.raises(xp.cuda.memory.OutOfMemoryError, match="limit set to: 2,048"):
            xp.empty(4096, np.uint8)
        pool.set_limit(size=0)
        with pytest.raises(xp.cuda.memory.OutOfMemoryError):
            xp.empty(65 << 20, np.uint8)


def test_writes_past_the_end_are_found(xp: Any) -> None:
    memory = xp.cuda.Memory(100)
    from tests.cuda_simulator import execution

    execution.host_bytes(memory.ptr + 100, 1)[:] = 0
    with pytest.raises(simulator.RaceError, match="past their end"):
        simulator._memory.free(memory.block)


def test_memory_by_pointers(xp: Any) -> None:
    runtime = xp.cuda.runtime
    pointer = runtime.malloc(64)
    owner = object()
    memory = xp.cuda.UnownedMemory(pointer, 64, owner)
    array = xp.ndarray((8,), np.float64, xp.cuda.MemoryPointer(memory, 0))
    array[...] = 3
    host = np.zeros(8)
    runtime.memcpy(host.ctypes.data, pointer, 64, runtime.memcpyDeviceToHost)
    assert host.tolist() == [3.0] * 8
    runtime.memsetAsync(pointer, 0, 8, 0)
    assert array[0].item() == 0
    with pytest.raises(runtime.CUDARuntimeError, match="invalid argument"):
        runtime.memcpy(host.ctypes.data, pointer, 64, runtime.memcpyHostToDevice)
    with pytest.raises(runtime.CUDARuntimeError, match="invalid argument"):
        runtime.memcpy(host.ctypes.data, pointer, 128, runtime.memcpyDeviceToHost)
    runtime.free(pointer)
    with pytest.raises(runtime.CUDARuntimeError, match="illegal memory access"):
        array += 1
    with pytest.raises(runtime.CUDARuntimeError, match="illegal memory access"):
        runtime.free(pointer)


def test_mpi_gets_no_memory_that_a_stream_still_writes(xp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Buffer:
        """mpi4py's, as far as needed: importing that would start MPI here."""

        @staticmethod
        def fromaddress(address: int, nbytes: int, readonly: bool = False) -> tuple[int, int]:
            return address, nbytes

    module = types.SimpleNamespace(buffer=Buffer)
    simulator._mpi.take_away()
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", module)  # type: ignore[arg-type]
    simulator._mpi.put_in_place()
    try:
        array = xp.zeros(4)
        with pytest.raises(simulator.RaceError, match="may still be writing"):
            module.buffer.fromaddress(array.data.ptr, array.nbytes)
        xp.cuda.Device().synchronize()
        assert module.buffer.fromaddress(array.data.ptr, array.nbytes) == (array.data.ptr, 32)
    finally:
        simulator._mpi.take_away()
    assert module.buffer is Buffer


# Graphs.


def test_captured_work_runs_at_launch(xp: Any) -> None:
    x = xp.arange(4.0)
    out = xp.zeros(4)
    stream = xp.cuda.Stream(non_blocking=True)
    xp.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        assert stream.is_capturing()
        y = x * 2
        out += y
        out[xp.zeros(1, int)] = 9
        graph = stream.end_capture()
    stream.synchronize()
    assert np.isnan(y.get(stream)).all()
    assert out.get(stream).tolist() == [0, 0, 0, 0]
    graph.launch(stream)
    assert out.get(stream).tolist() == [9, 2, 4, 6]
    x.set(np.ones(4), stream)
    graph.launch(stream)
    assert out.get(stream).tolist() == [9, 4, 6, 8]


def test_what_cannot_be_captured(xp: Any) -> None:
    error = xp.cuda.runtime.CUDARuntimeError
    array = xp.ones(4)
    stream = xp.cuda.Stream(non_blocking=True)
    xp.cuda.Device().synchronize()
    for call in (
        lambda: array.get(),
        lambda: bool(array[0]),
        lambda: array[array > 0],
        lambda: stream.synchronize(),
        lambda: xp.asarray(np.ones(3)),
        lambda: xp.cuda.runtime.memcpy(array.data.ptr, array.data.ptr, 8, 3),
    ):
        with stream:
            stream.begin_capture()
            with pytest.raises(error, match="not permitted when stream is capturing"):
                call()
            with pytest.raises(error, match="previous error during capture"):
                stream.end_capture()
    with stream:
        stream.begin_capture(xp.cuda.runtime.streamCaptureModeGlobal)
        with pytest.raises(error, match="not permitted"):
            xp.cuda.runtime.malloc(8)
        with pytest.raises(error):
            stream.end_capture()
    blocking = xp.cuda.Stream()
    blocking.begin_capture()
    with pytest.raises(error, match="legacy stream"):
        array + 1
    blocking.end_capture()
    with pytest.raises(RuntimeError, match="legacy"):
        xp.cuda.Stream.null.begin_capture()


def test_streams_of_a_capture_are_joined(xp: Any) -> None:
    array = xp.zeros(4)
    xp.cuda.Device().synchronize()
    first, second = two_streams(xp)

    def capture(join: bool) -> Any:
        first.begin_capture()
        second.wait_event(first.record())
        with second:
            array.__iadd__(1)
        if join:
            first.wait_event(second.record())
        return first.end_capture()

    with pytest.raises(xp.cuda.runtime.CUDARuntimeError, match="unjoined"):
        capture(join=False)
    graph = capture(join=True)
    graph.launch(first)
    assert array.get(first).tolist() == [1] * 4


def test_events_do_not_cross_the_border_of_a_capture(xp: Any) -> None:
    error = xp.cuda.runtime.CUDARuntimeError
    first, second = two_streams(xp)
    outside = second.record()
    first.begin_capture()
    inside = first.record()
    with pytest.raises(error, match="last recorded in a capturing stream"):
        inside.synchronize()
    with pytest.raises(error, match="uncaptured work"):
        first.wait_event(outside)
    with pytest.raises(error, match="previous error"):
        first.end_capture()
    for use in (lambda: second.wait_event(inside), lambda: inside.done):
        with pytest.raises(error, match="last recorded in a capturing stream"):
            use()
    inside.record(first)
    second.wait_event(inside)


def test_races_inside_a_capture_are_found(xp: Any) -> None:
    array = xp.zeros(4)
    xp.cuda.Device().synchronize()
    first, second = two_streams(xp)
    first.begin_capture()
    second.wait_event(first.record())
    with second:
        array += 1
    with first, pytest.raises(simulator.RaceError):
        array += 1


def test_a_graph_does_not_keep_memory(xp: Any) -> None:
    stream = xp.cuda.Stream(non_blocking=True)
    xp.cuda.Device().synchronize()
    with stream:
        source = xp.ones(100)
        stream.begin_capture()
        result = source + 1
        graph = stream.end_capture()
        graph.launch()
        del source, result
        graph.launch()  # nobody else has the memory yet
        other = xp.zeros(100)
        with pytest.raises(simulator.RaceError, match="handed out again"):
            graph.launch()
        del other


def test_a_launch_is_ordered_like_other_work(xp: Any) -> None:
    array = xp.zeros(4)
    xp.cuda.Device().synchronize()
    first, second = two_streams(xp)
    with first:
        first.begin_capture()
        array += 1
        graph = first.end_capture()
    with second:
        array += 1
    with pytest.raises(simulator.RaceError):
        graph.launch(first)


# Kernels.


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


def test_kernels_may_read_the_same_memory_at_once(xp: Any) -> None:
    code = CODE.replace("float* values", "const float* addends, float* values").replace("+= 1.0f", "+= addends[i]")
    kernel = xp.RawKernel(code, "add_one", ("--std=c++17",))
    addends, sums = xp.ones(32, np.float32), [xp.zeros(32, np.float32) for _ in range(2)]
    xp.cuda.Device().synchronize()
    for stream, values in zip(two_streams(xp), sums, strict=True):
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


# Other processes.

CHILD = """
import sys
import numpy as np
import tests.cuda_simulator as simulator
simulator.install()
import cupy
runtime = cupy.cuda.runtime
handle = bytes.fromhex(sys.stdin.readline())
event = runtime.ipcOpenEventHandle(bytes.fromhex(sys.stdin.readline()))
pointer = runtime.ipcOpenMemHandle(handle)
assert runtime.ipcOpenMemHandle(handle) == pointer
array = cupy.ndarray((8,), np.float64, cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(pointer, 64, None), 0))
for line in sys.stdin:
    try:
        eval(line, globals())
    except (RuntimeError, AssertionError) as error:
        print(error, flush=True)
    else:
        print(array.get().tolist() if array is not None else "closed", flush=True)
simulator.races.found.clear()
"""


@contextmanager
def child(xp: Any, handle: bytes, event: bytes) -> Iterator[Any]:
    """`ask(expression)` of another process that has opened an array's memory, and an event, gives the values."""
    with subprocess.Popen(
        [sys.executable, "-c", CHILD], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{handle.hex()}\n{event.hex()}\n")

        def ask(expression: str) -> str:
            process.stdin.write(expression + "\n")
            process.stdin.flush()
            return process.stdout.readline().strip()

        yield ask
        process.stdin.close()
        assert process.wait(30) == 0


def test_memory_in_another_process(xp: Any) -> None:
    runtime = xp.cuda.runtime
    memory = xp.cuda.Memory(64)
    array = xp.ndarray((8,), np.float64, xp.cuda.MemoryPointer(memory, 0))
    array[...] = 1
    handle = runtime.ipcGetMemHandle(memory.ptr)
    assert len(handle) == 64
    assert runtime.ipcGetMemHandle(memory.ptr + 8) == handle
    with pytest.raises(runtime.CUDARuntimeError, match="invalid device context"):
        runtime.ipcOpenMemHandle(handle)
    event = xp.cuda.Event(disable_timing=True, interprocess=True)
    with pytest.raises(runtime.CUDARuntimeError, match="invalid resource handle"):
        runtime.ipcGetEventHandle(xp.cuda.Event(disable_timing=True).ptr)
    null = "cupy.cuda.Stream.null"
    with child(xp, handle, runtime.ipcGetEventHandle(event.ptr)) as ask:
        assert "no event orders them" in ask("array.__iadd__(1)")
        event.record()
        assert "no event orders them" in ask("array.__iadd__(1)")
        assert ask("runtime.streamWaitEvent(0, event)") == str([1.0] * 8)
        assert ask("array.__iadd__(1)") == str([2.0] * 8)  # whose host has waited for it, reading the answer
        array += 1
        xp.cuda.Device().synchronize()
        assert ask(f"[array.__iadd__(1), runtime.eventRecord(event, 0), {null}.synchronize()]") == str([4.0] * 8)
        assert array.get().tolist() == [4.0] * 8
        for _ in range(2):
            ask("runtime.ipcCloseMemHandle(pointer)")
        assert "illegal memory access" in ask("array.__iadd__(1)")
        del array, memory
        assert "cudaErrorMapBufferObjectFailed" in ask("runtime.ipcOpenMemHandle(handle)")


# The engine, and the real CuPy.


def test_a_backward_runs_without_waiting(cuda: Any) -> None:
    x = engine.tensor([[1.0, 2.0], [3.0, 4.0]], device=cuda, requires_grad=True)
    (x * x).sum().backward()
    with simulator.counters() as count:
        (x * x).sum().backward()
    assert count.synchronizations == 0, count.waits
    assert x.grad is not None
    assert x.grad.cpu().tolist() == [[4.0, 8.0], [12.0, 16.0]]


def test_the_snapshot_is_that_of_the_installed_cupy() -> None:
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed here")
    if cupy.__version__.split(".")[:2] != api.snapshot()["version"].split(".")[:2]:
        pytest.skip(f"the snapshot is of CuPy {api.snapshot()['version']}, installed is {cupy.__version__}")
    assert json.loads(json.dumps(cupy_api.snapshot())) == api.snapshot()


VIEWS: dict[str, Callable[[Any, Any], Any]] = {
    "T": lambda xp, x: x.T,
    "ravel": lambda xp, x: x.ravel(),
    "ravel by columns": lambda xp, x: x.ravel("F"),
    "reshape": lambda xp, x: x.reshape(-1),
    "reshape rows": lambda xp, x: x.reshape(x.shape[0], -1),
    "reshape by columns": lambda xp, x: x.reshape(-1, order="F"),
    "squeeze": lambda xp, x: x.squeeze(),
    "expand_dims": lambda xp, x: xp.expand_dims(x, 1),
    "swapaxes": lambda xp, x: x.swapaxes(0, -1),
    "moveaxis": lambda xp, x: xp.moveaxis(x, 0, -1),
    "last": lambda xp, x: x[..., 0],
    "newaxis": lambda xp, x: x[None, ..., None],
    "backwards": lambda xp, x: x[-1:0:-1],
    "diagonal": lambda xp, x: xp.diagonal(x),
    "broadcast_to": lambda xp, x: xp.broadcast_to(x, (2, *x.shape)),
    "view": lambda xp, x: x.view("i4"),
    "flip": lambda xp, x: xp.flip(x),
    "rot90": lambda xp, x: xp.rot90(x),
    "split": lambda xp, x: xp.split(x, [1])[0],
    "ascontiguousarray": lambda xp, x: xp.ascontiguousarray(x),
    "empty_like": lambda xp, x: xp.empty_like(x),
    "empty_like by columns": lambda xp, x: xp.empty_like(x, order="F"),
    "astype": lambda xp, x: x.astype("f4", copy=False),
    "asarray": lambda xp, x: xp.asarray(x),
}


def layouts(xp: Any, memory: Any) -> dict[str, Any]:
    """Shape, strides, offset and flags of views of an array of every kind; nothing runs on a device."""
    base = xp.ndarray((2, 3, 4), "f4", memory)
    arrays = {
        "rows": base,
        "turned": base.transpose(2, 0, 1),
        "sliced": base[:, ::2, 1:],
        "one": base[:1],
        "backwards": base[::-1, :, ::-1],
        "spread": xp.broadcast_to(base[:1], (5, 3, 4)),
        "matrix": base[0],
    }
    found: dict[str, Any] = {}
    for name, array in arrays.items():
        for what, view in VIEWS.items():
            try:
                seen = view(xp, array)
            except (
                RuntimeError,
                ValueError,
            ) as error:  # the copy that a device would have to make; a view that is none
                found[f"{what} of {name}"] = type(error).__name__
                continue
            shared = seen.data.mem is base.data.mem and seen.size
            offset = seen.data.ptr - base.data.ptr if shared else None
            flags = seen.flags.c_contiguous, seen.flags.f_contiguous
            found[f"{what} of {name}"] = (
                seen.shape,
                seen.strides if seen.size else None,
                offset,
                str(seen.dtype),
                flags,
            )
    return found


def test_views_are_those_of_the_installed_cupy() -> None:
    real = pytest.importorskip("cupy", reason="CuPy is not installed here")
    before = real.cuda.get_allocator()
    made_up = real.cuda.UnownedMemory(1 << 40, 1 << 20, None, 0)  # no view looks at it
    real.cuda.set_allocator(lambda size: real.cuda.MemoryPointer(real.cuda.UnownedMemory(1 << 42, size, None, 0), 0))
    try:
        try:
            real.cuda.runtime.getDeviceCount()
        except real.cuda.runtime.CUDARuntimeError:
            theirs = layouts(real, real.cuda.MemoryPointer(made_up, 0))
        else:
            pytest.skip("with a GPU, copies would be made of memory that is not there")
        simulator.install()
        xp = backend.require_cupy()
        mine = layouts(xp, xp.cuda.alloc(1 << 20))
    finally:
        simulator.uninstall()
        real.cuda.set_allocator(before)
    for name, found in theirs.items():
        assert found == mine[name] or found == "CUDARuntimeError", name
