"""Every transport of device memory keeps the rules of `ddp/transport/base.py`, at 1 to 4 ranks, bit for bit."""

import time
import zlib
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import engine
from ddp.transport import Transport, check_transport, choose_transport
from ddp.transport.cuda import CUDA_TRANSPORTS
from tests import cuda_device
from tests.cuda_driver import control
from tests.ddp.sums import DTYPES, check_misuse, integers


@pytest.fixture
def transports(comm, ranks: int, cuda: engine.device, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Transport]]:
    """One of each kind that can serve these ranks here; on the CPU driver all of them."""
    for module in ("staged", "gpu_mpi"):
        monkeypatch.setattr(f"ddp.transport.cuda.{module}.CHUNK_BYTES", 1 << 15)  # several a buffer
    if ranks == 1:
        made: list[Transport] = [CUDA_TRANSPORTS["loopback"](comm, cuda, None)]
    else:
        from ddp.transport.cuda.gpu_mpi import GpuMpiTransport

        made = [CUDA_TRANSPORTS["cuda_ipc"](comm, cuda, None)]
        made += [CUDA_TRANSPORTS["staged"](comm, cuda, inner) for inner in ("shared", "mpi")]
        if cuda_device.ours():
            made.append(GpuMpiTransport(comm, cuda, choose_transport(comm, "shared")))
            made.append(make_nccl(comm, monkeypatch))
    yield made
    for transport in made:
        transport.close()


def make_nccl(comm: Any, monkeypatch: pytest.MonkeyPatch) -> Transport:
    """NCCL's stand-in, with a device for each rank."""
    cuda_device.several(monkeypatch, comm.size)
    return CUDA_TRANSPORTS["nccl"](comm, engine.device("cuda", comm.rank), None)


def reduce_once(transport: Transport, buffer: Any, addend: np.ndarray, divisor: float | None = 1.0) -> np.ndarray:
    with transport._on_device:
        buffer.array.set(addend)
        transport.start(buffer, divisor)
        transport.wait(buffer)
        return buffer.array.get()


@pytest.mark.mpi(ranks=[1, 2, 3])
def test_sums_are_exact_in_every_dtype(transports, comm) -> None:
    for transport in transports:
        for dtype in DTYPES.values():
            for count in (0, 17, 1001):
                expected = sum(integers(rank, count, np.int64) for rank in range(comm.size))
                buffer = transport.allocate(count, dtype)
                assert buffer.array.dtype == dtype
                assert buffer.array.shape == (count,)
                result = reduce_once(transport, buffer, integers(comm.rank, count, dtype))
                assert np.array_equal(result.astype(np.complex128), expected + 0j * np.zeros(count)), transport.name


@pytest.mark.mpi(ranks=[1, 3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.float16, ml_dtypes.bfloat16])
def test_bits_are_those_of_rank_order_and_one_division(transports, comm, dtype: Any) -> None:
    count = 9_003
    addends = [np.random.default_rng(rank).standard_normal(count).astype(dtype) for rank in range(comm.size)]
    wide = np.dtype(np.float32) if np.dtype(dtype).itemsize == 2 else np.dtype(dtype)
    total = addends[0].astype(wide)
    for addend in addends[1:]:
        total = total + addend.astype(wide)
    for divisor in (1.0, 3.0, 0.7):
        real = wide.type(0).real.dtype
        expected = (total.view(real) / real.type(divisor)).view(wide).astype(dtype)
        for transport in transports:
            result = reduce_once(transport, transport.allocate(count, dtype), addends[comm.rank], divisor)
            assert result.tobytes() == expected.tobytes(), transport.name


@pytest.mark.mpi(ranks=[1, 2])
def test_the_callers_stream_stays_current(transports, comm) -> None:
    for transport in transports:
        with transport._on_device:
            buffer = transport.allocate(1001, np.float32)
            side = engine.cuda.Stream()
            side.wait_stream(engine.cuda.current_stream())
            engine.cuda.set_stream(side)
            buffer.array.set(np.full(1001, 2.0, np.float32))
            transport.start(buffer, 2.0)
            assert engine.cuda.current_stream() == side, transport.name
            transport.wait(buffer)
            assert engine.cuda.current_stream() == side, transport.name
            assert buffer.array.get().tolist() == [comm.size * 1.0] * 1001
            engine.cuda.set_stream(engine.cuda.default_stream())


@pytest.mark.mpi(ranks=[2, 4])
def test_bits_are_those_of_the_shared_transport(transports, comm) -> None:
    host = choose_transport(comm, "shared")
    for count in (1000, 20_001):
        addend = np.random.default_rng(comm.rank).standard_normal(count, np.float32)
        buffer = host.allocate(count, np.float32, header=1)
        buffer.array[:] = addend
        buffer.header[0] = weight = 1.5 + comm.rank
        host.start(buffer, None)
        host.wait(buffer)
        for transport in transports:
            there = transport.allocate(count, np.float32, header=1)
            there.header[0] = weight
            assert reduce_once(transport, there, addend, None).tobytes() == buffer.array.tobytes(), transport.name
    host.close()


@pytest.mark.mpi(ranks=[1, 3])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32])
def test_a_buffer_is_used_again(transports, comm, dtype: Any) -> None:
    count = 10_001
    for transport in transports:
        buffer = transport.allocate(count, dtype, header=1)
        for seed in range(3):
            buffer.header[0] = 1
            result = reduce_once(transport, buffer, integers(comm.rank, count, dtype, seed))
            expected = sum(integers(rank, count, np.int64, seed) for rank in range(comm.size))
            assert np.array_equal(result, expected), transport.name
            assert buffer.header[0] == comm.size


@pytest.mark.mpi(ranks=[1, 3, 4])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_weights_travel_in_the_header(transports, comm, dtype: Any) -> None:
    count = 9_003
    addends = [integers(rank, count, np.float64) for rank in range(comm.size)]
    for transport in transports:
        buffer = transport.allocate(count, dtype, header=2)
        plain = reduce_once(transport, transport.allocate(count, dtype), addends[comm.rank].astype(dtype), comm.size)
        for weight in (1.0, 0.3, 512.0):
            buffer.header[:] = weight, 1
            result = reduce_once(transport, buffer, addends[comm.rank].astype(dtype), None)
            assert result.tobytes() == plain.tobytes(), transport.name
            assert buffer.header[1] == comm.size
        weights = [2.0, 0.0, 1.0, 5.0][: comm.size]
        buffer.header[:] = weights[comm.rank], 0
        addend = addends[comm.rank] if weights[comm.rank] else np.full(count, np.nan)  # not looked at
        result = reduce_once(transport, buffer, addend.astype(dtype), None)
        expected = sum(weight * addend for weight, addend in zip(weights, addends, strict=True)) / sum(weights)
        assert np.allclose(result.astype(np.float64), expected, rtol=0.01), transport.name
        assert buffer.header[0] == sum(weights)


@pytest.mark.mpi(ranks=[1, 2])
def test_header_without_elements(transports, comm) -> None:
    for transport in transports:
        buffer = transport.allocate(0, np.float32, header=3)
        for round_ in range(3):
            buffer.header[:] = [1, comm.rank, round_]
            transport.start(buffer)
            transport.wait(buffer)
            assert buffer.header.tolist() == [comm.size, comm.size * (comm.size - 1) / 2, comm.size * round_]


@pytest.mark.mpi(ranks=[1, 2])
def test_polling_gets_there_and_says_so(transports, comm) -> None:
    for transport in transports:
        buffer = transport.allocate(1000, np.float32, header=1)
        for round_ in range(3):
            with transport._on_device:
                buffer.array.fill(12 * comm.rank + round_)
                transport.start(buffer, divisor=comm.size)
                end = time.monotonic() + 30
                while not transport.is_done(buffer):
                    assert time.monotonic() < end, transport.name
                    transport.poll()
                transport.wait(buffer)
                assert set(buffer.array.get().tolist()) == {6.0 * (comm.size - 1) + round_}, transport.name


@pytest.mark.mpi(ranks=[2, 3])
def test_independent_transports_need_no_common_order(transports, comm) -> None:
    for transport in transports:
        if transport.name == "nccl":
            continue  # its stand-in waits for the others in a call, where NCCL lets the device wait
        other = transport.independent()
        first, second = transport.allocate(10_000, np.float32), other.allocate(10_000, np.float32)
        first.array.fill(comm.rank)
        second.array.fill(1)
        pairs = [(transport, first), (other, second)]
        for user, buffer in pairs if comm.rank else reversed(pairs):
            user.start(buffer)
        for user, buffer in pairs:
            user.wait(buffer)
        assert set(first.array.get().tolist()) == {comm.size * (comm.size - 1) / 2}
        assert set(second.array.get().tolist()) == {comm.size}


@pytest.mark.mpi(ranks=[1, 3, 4])
def test_many_in_flight_waited_for_in_different_orders(transports, comm) -> None:
    counts = [7, 3000, 1, 5000, 40_001]
    for transport in transports:
        buffers = [transport.allocate(count, np.float32, header=1) for count in counts]
        for seed in range(3):
            with transport._on_device:
                for buffer in buffers:
                    buffer.array.set(integers(comm.rank, buffer.array.size, np.float32, seed))
                    buffer.header[:] = seed
                    transport.start(buffer)
                    transport.poll()
                order = np.random.default_rng([seed, comm.rank]).permutation(len(buffers))
                for index in order:
                    transport.wait(buffers[index])
                    expected = sum(integers(rank, counts[index], np.float32, seed) for rank in range(comm.size))
                    assert np.array_equal(buffers[index].array.get(), expected), transport.name
                    assert buffers[index].header[0] == seed * comm.size


@pytest.mark.mpi(ranks=[3])
def test_hundreds_of_rounds_with_stragglers(transports, comm) -> None:
    """A fast rank refills a buffer while a slow one is still leaving the round before: nothing may be lost or torn."""
    count = 257
    pattern = np.arange(count) % 7
    for transport in transports:
        delays = np.random.default_rng(comm.rank)
        buffers = [transport.allocate(count, np.float64, header=2) for _ in range(2)]
        wrong = 0
        with transport._on_device:
            for round_ in range(20):
                for buffer in buffers:
                    buffer.array.set(pattern * (comm.rank + 1) + float(round_))
                    buffer.header[:] = comm.rank, round_
                    transport.start(buffer)
                    kind = delays.integers(20)
                    if kind == 0:
                        time.sleep(delays.random() * 1e-3)
                    elif kind < 8:
                        transport.poll()
                for buffer in buffers:
                    transport.wait(buffer)
                    expected = pattern * (comm.size * (comm.size + 1) // 2) + comm.size * round_
                    wrong += int((buffer.array.get() != expected).sum())
                    wrong += buffer.header.tolist() != [comm.size * (comm.size - 1) / 2, comm.size * round_]
        assert wrong == 0, transport.name


@pytest.mark.mpi(ranks=[1, 2])
def test_what_other_streams_wrote_is_waited_for(transports, comm) -> None:
    """The array is written on two streams, the result read on a third: only events order them (races are errors)."""
    from engine.memory.backend import require_cupy

    cupy = require_cupy()
    for transport in transports:
        with transport._on_device:
            buffer = transport.allocate(2000, np.float32)
            writers = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
            cupy.cuda.get_current_stream().synchronize()
            for _ in range(2):
                for half, stream in enumerate(writers):
                    with stream:
                        buffer.array[half * 1000 : half * 1000 + 1000] = comm.rank + half
                    buffer.streams[stream.ptr] = stream
                transport.start(buffer)
                with cupy.cuda.Stream(non_blocking=True):
                    transport.wait(buffer)
                    result = buffer.array.get()
                total = comm.size * (comm.size - 1) / 2
                assert set(result[:1000].tolist()) == {total}, transport.name
                assert set(result[1000:].tolist()) == {total + comm.size}, transport.name
                cupy.cuda.Device().synchronize()


@pytest.mark.mpi(ranks=[1, 2])
def test_no_host_waits_for_its_device(transports, comm, cuda: engine.device) -> None:
    if not cuda_device.ours():
        pytest.skip("only the CPU driver counts synchronisations")
    for transport in transports:
        with transport._on_device:
            buffer = transport.allocate(7_000, np.float32, header=1)
            buffer.array.fill(1)
            with cuda_device.counters() as count:
                for _ in range(2):
                    buffer.header[0] = 1
                    transport.start(buffer, None)
                    transport.poll()
                    transport.wait(buffer)
        assert (count.synchronizations, count.pageable) == (0, 0), transport.name
        assert count.pinned == (4 if transport.name == "staged" else 0), transport.name
        assert count.raw_allocations == 0


@pytest.mark.mpi(ranks=[3])
def test_ranks_hold_the_same_bits(transports, comm) -> None:
    for transport in transports:
        addend = np.random.default_rng(comm.rank).standard_normal(7_000, np.float32)
        result = reduce_once(transport, transport.allocate(7_000, np.float32), addend, comm.size)
        assert len(set(comm.allgather(zlib.crc32(result.tobytes())))) == 1


@pytest.mark.mpi(ranks=[1, 2])
def test_misuse_is_told(transports, comm) -> None:
    for transport in transports:
        check_misuse(transport)


@pytest.mark.mpi(ranks=[1, 2])
def test_arrays_outlive_their_transport(comm, cuda: engine.device, ranks: int) -> None:
    for name in ("loopback",) if ranks == 1 else ("cuda_ipc", "staged"):
        transport = CUDA_TRANSPORTS[name](comm, cuda, None)
        check_transport(transport, comm)
        buffer = transport.allocate(1000, np.float32)
        reduce_once(transport, buffer, np.full(1000, comm.rank + 1, np.float32))
        array = buffer.array
        transport.close()
        with pytest.raises(RuntimeError, match="closed with its process group"):
            transport.start(buffer)
        del buffer, transport
        assert set(array.get().tolist()) == {comm.size * (comm.size + 1) / 2}
        array += 1
        assert float(array[0]) == comm.size * (comm.size + 1) / 2 + 1


@pytest.mark.mpi(ranks=[2])
def test_mapped_memory_that_nobody_looks_at_is_given_back(comm, cuda: engine.device) -> None:
    transport = CUDA_TRANSPORTS["cuda_ipc"](comm, cuda, None)
    kept = transport.allocate(1000, np.float32)
    for _ in range(5):
        buffer = transport.allocate(1000, np.float32)
        reduce_once(transport, buffer, np.ones(1000, np.float32))
        del buffer
    assert len(transport._blocks._blocks) == 2  # the last one is found dead at the next occasion
    transport._blocks.collect()
    assert len(transport._blocks._blocks) == 1
    assert set(reduce_once(transport, kept, np.ones(1000, np.float32)).tolist()) == {2}
    transport.close()


@pytest.mark.mpi(ranks=[2])
def test_buffers_of_different_sizes_are_refused_on_every_rank(comm, cuda: engine.device) -> None:
    transport = CUDA_TRANSPORTS["cuda_ipc"](comm, cuda, None)
    with pytest.raises(RuntimeError, match=r"different sizes, \["):
        transport.allocate(1000 * (comm.rank + 1), np.float32)
    transport.close()


@pytest.mark.mpi(ranks=[3])
def test_devices_wait_for_one_anothers_events(comm, cuda: engine.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """What no test of numbers shows where work runs at once: each rank's stream waits for the events of all ranks, all
    arrays full before its sum, all sums made before its result; and it waits only for events recorded before."""
    if not cuda_device.ours():
        pytest.skip("calls are counted on the CPU driver")
    from engine.memory.backend import require_cupy

    transport: Any = CUDA_TRANSPORTS["cuda_ipc"](comm, cuda, None)
    buffer = transport.allocate(3000, np.float32)
    runtime = require_cupy().cuda.runtime
    wait, waited = runtime.streamWaitEvent, []

    def note(stream: int, event: int, flags: int = 0) -> None:
        waited.append((stream, event))
        wait(stream, event, flags)

    monkeypatch.setattr(runtime, "streamWaitEvent", note)
    run, summed_after = buffer.work.sums.run, []

    def sum_slices(*arguments: Any) -> None:
        summed_after.append(len(waited))
        run(*arguments)

    monkeypatch.setattr(buffer.work.sums, "run", sum_slices)
    for _ in range(2):
        waited.clear()
        summed_after.clear()
        transport.start(buffer)
        transport.wait(buffer)
        filled, summed = zip(*buffer.work.block.events, strict=True)
        before, after = waited[: summed_after[0]], waited[summed_after[0] :]
        assert set(before) == {(transport._stream.ptr, event) for event in filled}
        assert set(after) == {(transport._results.ptr, event) for event in summed}
        assert len(set(filled) | set(summed)) == 2 * comm.size
    transport.close()


@pytest.mark.mpi(ranks=[2])
def test_a_gpu_that_fails_ends_the_sum(transports, comm, monkeypatch: pytest.MonkeyPatch) -> None:
    """An event of a GPU that has failed is never done: nobody must wait for that."""
    if not cuda_device.ours():
        pytest.skip("a real GPU is not to fail")
    from engine.memory.backend import require_cupy

    runtime = require_cupy().cuda.runtime
    for transport in transports:
        if transport.name not in ("staged", "gpu_mpi"):
            continue
        buffer = transport.allocate(10, np.float32)
        with monkeypatch.context() as patch:
            patch.setattr(runtime, "eventQuery", lambda event: 700)
            with pytest.raises(runtime.CUDARuntimeError, match="illegal memory access"):
                reduce_once(transport, buffer, np.ones(10, np.float32))
        transport.wait(buffer)
        comm.Barrier()


@pytest.mark.mpi(ranks=[2])
def test_events_live_as_long_as_others_may_wait_for_them(comm, cuda: engine.device) -> None:
    if not cuda_device.ours():
        pytest.skip("a real GPU does not tell of an event that was destroyed")
    from engine.memory.backend import require_cupy

    transport: Any = CUDA_TRANSPORTS["cuda_ipc"](comm, cuda, None)
    buffer = transport.allocate(1000, np.float32)
    reduce_once(transport, buffer, np.ones(1000, np.float32))
    events = buffer.work.block.events[comm.rank]
    del buffer
    runtime = require_cupy().cuda.runtime
    for event in events:  # the other rank may not yet have told its stream to wait for it
        assert runtime.eventQuery(event) in (0, 600)
    transport._blocks.collect()
    for event in events:
        assert runtime.eventQuery(event) == 400  # cudaErrorInvalidResourceHandle
    transport.close()


@pytest.mark.mpi(ranks=[2])
def test_mapped_memory_may_come_from_what_the_pool_does_not_use(comm, cuda: engine.device) -> None:
    if not cuda_device.ours():
        pytest.skip("a real GPU is not to be full")
    transport: Any = CUDA_TRANSPORTS["cuda_ipc"](comm, cuda, None)
    unused = engine.empty(1 << 20, device=cuda)
    engine.cuda.empty_cache()  # of other tests
    with control.full():
        with pytest.raises(RuntimeError, match=r"rank 0 cannot share device memory: .*out of memory"):
            transport.allocate(1000, np.float32)
        del unused
        buffer = transport.allocate(1000, np.float32)
    assert set(reduce_once(transport, buffer, np.ones(1000, np.float32)).tolist()) == {2}
    transport.close()


@pytest.mark.mpi(ranks=[2])
@pytest.mark.parametrize("inner", ["shared", "mpi"])
def test_host_memory_stays_until_it_was_copied_back(comm, cuda: engine.device, inner: str) -> None:
    if not cuda_device.ours():
        pytest.skip("a real copy may be through already")
    transport: Any = CUDA_TRANSPORTS["staged"](comm, cuda, inner)
    buffer = transport.allocate(1000, np.float32)
    transport.start(buffer)
    transport.wait(buffer)
    copied = [chunk.copied for chunk in buffer.work]
    del buffer
    assert all(event.done for event in copied)
    transport.close()
