"""Every transport of the registry keeps the rules of `ddp/transport/base.py`, at 1 to 4 ranks, bit for bit."""

import os
import time
import zlib
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ddp.transport import TRANSPORTS, Transport
from ddp.transport.counting import CountingTransport
from ddp.transport.order import carried, rank_order
from tests.ddp.sums import DTYPES, check_misuse, integers

QUICK = ("float32", "bfloat16", "int64")  # the other dtypes go through the same code
FLOATING = [
    *(np.float32, ml_dtypes.bfloat16),
    *(pytest.param(dtype, marks=pytest.mark.full) for dtype in (np.float64, np.complex64, np.float16)),
]


def names_for(ranks: int) -> list[str]:
    """The transports that serve so many ranks."""
    return [name for name in TRANSPORTS if name != "loopback" or ranks == 1]


@pytest.fixture
def transports(comm, ranks: int):
    """One of each kind, and also among ranks that pass for two nodes, of unlike size with 3, and for one node each; and
    of several groups that exchange messages, with 3 ranks of unlike size.
    """
    made = [TRANSPORTS[name](comm) for name in names_for(ranks)]
    if ranks > 1:
        from ddp.transport.background import BackgroundTransport
        from ddp.transport.hierarchical import HierarchicalTransport
        from ddp.transport.mpi import MpiTransport

        made += [HierarchicalTransport(comm, node) for node in (comm.rank * 2 // ranks, comm.rank)]
        made += [BackgroundTransport(TRANSPORTS["mpi"](comm))]
        made += [MpiTransport(comm, groups) for groups in range(2, ranks + 1)]
    yield made
    for transport in made:
        transport.close()


def reduce_once(transport: Transport, buffer: Any, addend: np.ndarray, divisor: float = 1.0) -> np.ndarray:
    buffer.array[:] = addend
    transport.start(buffer, divisor)
    transport.wait(buffer)
    return buffer.array


@pytest.mark.mpi(ranks=[1, 2, 3, 4])
@pytest.mark.parametrize(
    "dtype",
    [pytest.param(dtype, id=name, marks=() if name in QUICK else pytest.mark.full) for name, dtype in DTYPES.items()],
)
def test_sums_are_exact_in_every_dtype(transports, comm, dtype: np.dtype) -> None:
    for count in (0, 1, 3, 16, 17, 1000, 40_001):
        expected = sum(integers(rank, count, np.int64) for rank in range(comm.size))
        for transport in transports:
            buffer = transport.allocate(count, dtype)
            assert buffer.array.dtype == dtype
            assert buffer.array.shape == (count,)
            assert not buffer.array.astype(np.float64 if dtype.kind != "c" else dtype).any()
            result = reduce_once(transport, buffer, integers(comm.rank, count, dtype))
            exact = expected + 0j * np.zeros(count)
            assert np.array_equal(result.astype(np.complex128), exact), (transport.name, count)


@pytest.mark.mpi(ranks=[1, 2, 3, 4])
@pytest.mark.parametrize("dtype", FLOATING)
def test_bits_are_those_of_rank_order_and_one_division(transports, comm, dtype: Any) -> None:
    count = 600_003  # several blocks, several chunks of a message, slices of unequal length
    addends = [np.random.default_rng(rank).standard_normal(count).astype(dtype) for rank in range(comm.size)]
    wide = np.dtype(np.float32) if np.dtype(dtype).itemsize == 2 else np.dtype(dtype)
    total = addends[0].astype(wide)
    for addend in addends[1:]:
        total = total + addend.astype(wide)
    real = wide.type(0).real.dtype
    for divisor in (1.0, 2.0, 3.0, 4.0, 0.7):
        expected = (total.view(real) / real.type(divisor)).view(wide).astype(dtype)
        for transport in transports:
            result = reduce_once(transport, transport.allocate(count, dtype), addends[comm.rank], divisor)
            assert result.tobytes() == expected.tobytes(), (transport.name, divisor)


@pytest.mark.mpi(ranks=[1, 2, 3, 4])
@pytest.mark.parametrize(
    "dtype", [np.float32, *(pytest.param(one, marks=pytest.mark.full) for one in (np.float16, np.int32))]
)
def test_a_buffer_is_used_again(transports, comm, dtype: Any) -> None:
    count = 300_001
    for transport in transports:
        buffer = transport.allocate(count, dtype, header=1)
        for seed in range(3):
            buffer.header[0] = 1
            buffer.array[:] = integers(comm.rank, count, dtype, seed)
            transport.start(buffer)
            transport.wait(buffer)
            expected = sum(integers(rank, count, np.int64, seed) for rank in range(comm.size))
            assert np.array_equal(buffer.array, expected), transport.name
            assert buffer.header[0] == comm.size


@pytest.mark.mpi(ranks=[3, 4])
@pytest.mark.parametrize("nodes", [[0, 1, 0, 1], [1, 0, 0, 0], [0, 1, 1, 0]])
def test_nodes_whose_ranks_are_not_consecutive(comm, nodes: list[int]) -> None:
    """All ranks agree on the bits, node by node, and weights and headers find their ranks."""
    from ddp.transport.hierarchical import HierarchicalTransport

    transport = HierarchicalTransport(comm, nodes[comm.rank])
    buffer = transport.allocate(200_003, np.float32, header=2)
    buffer.array[:] = np.random.default_rng(comm.rank).standard_normal(200_003)
    buffer.header[:] = comm.rank, 10.0**comm.rank
    transport.start(buffer, divisor=None)
    transport.wait(buffer)
    ranks = range(comm.size)
    expected = sum(rank * np.random.default_rng(rank).standard_normal(200_003) for rank in ranks) / sum(ranks)
    assert np.allclose(buffer.array, expected, atol=1e-5)
    assert buffer.header.tolist() == [sum(ranks), sum(10.0**rank for rank in ranks)]
    assert len(set(comm.allgather(zlib.crc32(buffer.array.tobytes())))) == 1
    transport.close()


@pytest.mark.mpi(ranks=[1, 2, 3, 4])
def test_header_is_summed_and_not_divided(transports, comm) -> None:
    for transport in transports:
        buffer = transport.allocate(5, np.float32, header=3)
        for round_ in range(3):
            buffer.header[:] = [1, comm.rank, 2.0**52 if comm.rank == 0 else round_]
            reduce_once(transport, buffer, np.full(5, 6, np.float32), divisor=3)
            ranks = comm.size
            assert buffer.header.tolist() == [ranks, ranks * (ranks - 1) / 2, 2.0**52 + (ranks - 1) * round_]
            assert (buffer.array == 2 * ranks).all()


@pytest.mark.mpi(ranks=[1, 2, 3, 4])
@pytest.mark.parametrize("dtype", FLOATING)
def test_weights_travel_in_the_header(transports, comm, dtype: Any) -> None:
    """A weighted mean: rank r's array counts header[0] times; equal weights are a plain mean to the last bit."""
    count = 40_003
    addends = [integers(rank, count, np.float64) for rank in range(comm.size)]
    for transport in transports:
        buffer = transport.allocate(count, dtype, header=2)
        plain = reduce_once(transport, transport.allocate(count, dtype), addends[comm.rank], comm.size).copy()
        for weight in (1.0, 0.3, 512.0):
            buffer.header[:] = weight, 1
            buffer.array[:] = addends[comm.rank]
            transport.start(buffer, divisor=None)
            transport.wait(buffer)
            assert buffer.array.tobytes() == plain.tobytes(), transport.name
            assert buffer.header[1] == comm.size
        weights = [2.0, 0.0, 1.0, 5.0][: comm.size]
        buffer.header[:] = weights[comm.rank], 0
        buffer.array[:] = addends[comm.rank] if weights[comm.rank] else np.nan  # not looked at
        transport.start(buffer, divisor=None)
        transport.wait(buffer)
        expected = sum(weight * addend for weight, addend in zip(weights, addends, strict=True)) / sum(weights)
        assert np.allclose(buffer.array.astype(np.complex128), expected, rtol=0.01)
        if np.dtype(dtype).itemsize == 8:
            assert np.allclose(buffer.array, expected, rtol=1e-6), transport.name
        assert buffer.header[0] == sum(weights)


@pytest.mark.mpi(ranks=[1, 2, 3, 4])
def test_polling_gets_there_and_says_so(transports, comm) -> None:
    """Without waiting: all ranks poll until `is_done`."""
    for transport in transports:
        buffer = transport.allocate(1000, np.float32, header=1)
        for round_ in range(3):
            buffer.array[:] = 12 * comm.rank + round_
            transport.start(buffer, divisor=comm.size)
            end = time.monotonic() + 30
            while not transport.is_done(buffer):
                assert time.monotonic() < end, transport.name
                transport.poll()
            transport.wait(buffer)
            assert set(buffer.array.tolist()) == {6.0 * (comm.size - 1) + round_}, transport.name


@pytest.mark.mpi(ranks=[2, 3])
def test_independent_transports_need_no_common_order(transports, comm) -> None:
    for transport in transports:
        other = transport.independent()
        first, second = transport.allocate(100_000, np.float32), other.allocate(100_000, np.float32)
        first.array[:], second.array[:] = comm.rank, 1
        pairs = [(transport, first), (other, second)]
        for user, buffer in pairs if comm.rank else reversed(pairs):
            user.start(buffer)
        for user, buffer in pairs:
            user.wait(buffer)
        assert set(first.array.tolist()) == {comm.size * (comm.size - 1) / 2}
        assert set(second.array.tolist()) == {comm.size}
        if other is not transport:
            other.close()


@pytest.mark.mpi(ranks=[1, 2, 3, 4])
def test_header_without_elements(transports, comm) -> None:
    for transport in transports:
        buffer = transport.allocate(0, np.float32, header=1)
        buffer.header[0] = 1
        reduce_once(transport, buffer, np.empty(0, np.float32))
        assert buffer.header[0] == comm.size


@pytest.mark.mpi(ranks=[1, 2, 3, 4])
def test_many_in_flight_waited_for_in_different_orders(transports, comm) -> None:
    counts = [7, 100_000, 1, 5000, 200_001]
    for transport in transports:
        buffers = [transport.allocate(count, np.float32, header=1) for count in counts]
        for seed in range(4):
            for buffer in buffers:
                buffer.array[:] = integers(comm.rank, buffer.array.size, np.float32, seed)
                buffer.header[:] = seed
                transport.start(buffer)
                transport.poll()
            order = np.random.default_rng([seed, comm.rank]).permutation(len(buffers))
            for index in order:
                transport.wait(buffers[index])
                expected = sum(integers(rank, counts[index], np.float32, seed) for rank in range(comm.size))
                assert np.array_equal(buffers[index].array, expected)
                assert buffers[index].header[0] == seed * comm.size


@pytest.mark.full
@pytest.mark.mpi(ranks=[2, 3, 4], timeout=120)
def test_thousands_of_rounds_with_stragglers(transports, comm) -> None:
    """A fast rank refills a buffer while a slow one is still leaving the round before: nothing may be lost or torn."""
    rounds, count = 3000, 257  # a slice is a few cache lines, so that most of the time goes into the flags
    pattern = np.arange(count) % 7
    for transport in transports:
        delays = np.random.default_rng(comm.rank)
        buffers = [transport.allocate(count, np.float64, header=2) for _ in range(2)]
        wrong = 0
        for round_ in range(rounds if transport.name == "shared" else rounds // 10):
            for buffer in buffers:
                buffer.array[:] = pattern * (comm.rank + 1) + round_
                buffer.header[:] = comm.rank, round_
                transport.start(buffer)
                kind = delays.integers(40)
                if kind == 0:
                    time.sleep(delays.random() * 1e-3)
                elif kind < 8:
                    os.sched_yield()
                elif kind < 16:
                    transport.poll()
            for buffer in buffers:
                transport.wait(buffer)
                expected = pattern * (comm.size * (comm.size + 1) // 2) + comm.size * round_
                wrong += int((buffer.array != expected).sum())
                wrong += buffer.header.tolist() != [comm.size * (comm.size - 1) / 2, comm.size * round_]
        assert wrong == 0, transport.name


@pytest.mark.mpi(ranks=[2, 3, 4])
def test_ranks_hold_the_same_bits(transports, comm) -> None:
    for transport in transports:
        addend = np.random.default_rng(comm.rank).standard_normal(70_000, np.float32)
        result = reduce_once(transport, transport.allocate(70_000, np.float32), addend, comm.size)
        assert len(set(comm.allgather(zlib.crc32(result.tobytes())))) == 1


@pytest.mark.mpi(ranks=[2])
def test_special_values_travel(transports, comm) -> None:
    addend = np.array([np.inf, np.nan, -0.0, 3e38, 1e-45], np.float32)
    for transport in transports:
        result = reduce_once(transport, transport.allocate(5, np.float32), addend)
        assert result[0] == np.inf
        assert np.isnan(result[1])
        assert np.signbit(result[2])
        assert result[3] == np.inf
        assert result[4] == np.float32(1e-45) * 2


@pytest.mark.mpi(ranks=[1])
def test_chunks_of_more_elements_than_an_mpi_count_holds(comm) -> None:
    """No message counts beyond 2**31 - 1, and every byte is in one slice of one chunk. Nothing is touched."""
    from ddp.transport.chunks import Group, MpiBuffer

    for count, dtype in ((2**31 + 100, np.uint8), (2**29 + 7, np.float64)):
        buffer = MpiBuffer(count, np.dtype(dtype), 0, rank_order(4), Group(0, 4, 4, 3))
        array = buffer.array
        at = 0
        for chunk in buffer.chunks:
            (counts, places), (received, rooms) = chunk.slices, chunk.receive
            assert chunk.sums.ctypes.data - array.ctypes.data == at
            assert places == [0, *np.cumsum(counts)[:-1]]
            assert received == [counts[3]] * 4
            assert rooms == [counts[3] * rank for rank in range(4)]
            assert sum(counts) == chunk.sums.size < 2**31
            at += chunk.sums.size
        assert at == array.nbytes


@pytest.mark.mpi(ranks=[1, 2])
def test_arrays_outlive_their_transport(comm, ranks: int) -> None:
    for name in names_for(ranks):
        transport = TRANSPORTS[name](comm)
        array = reduce_once(transport, transport.allocate(100_000, np.float32), np.ones(100_000, np.float32))
        transport.close()
        comm.Barrier()
        array += 1
        assert (array == comm.size + 1).all()


@pytest.mark.mpi(ranks=[1, 2])
def test_a_closed_transport_starts_nothing(comm, ranks: int) -> None:
    for name in names_for(ranks):
        transport = TRANSPORTS[name](comm)
        buffer = transport.allocate(1, np.float32)
        transport.close()
        with pytest.raises(RuntimeError, match=f"transport {name}: it was closed with its process group"):
            transport.start(buffer)


@pytest.mark.mpi(ranks=[2])
@pytest.mark.parametrize("name", ["shared", "hierarchical", "mpi"])
def test_after_an_exception_in_the_midst_of_a_sum_nothing_goes_on(comm, monkeypatch, name: str) -> None:
    """Else the other ranks would take what comes next for what is missing."""
    transport: Any = TRANSPORTS[name](comm)
    first, second = (transport.allocate(count, np.float32) for count in (10_000, 10))

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(transport, "_post_scatter" if name == "mpi" else "_sum", interrupt)
        with pytest.raises(KeyboardInterrupt):
            reduce_once(transport, first, np.ones(10_000, np.float32))
    for call in (transport.start, transport.wait):
        with pytest.raises(RuntimeError, match=f"transport {name}: KeyboardInterrupt ended it in the midst of a sum"):
            call(second)
    transport.close()


@pytest.mark.mpi(ranks=[1, 2])
def test_arrays_start_on_a_cache_line(transports) -> None:
    for transport in transports:
        for header in (0, 1, 9):
            assert transport.allocate(3, np.float32, header).array.ctypes.data % 64 == 0


@pytest.mark.mpi(ranks=[1, 2])
def test_misuse_is_refused(transports, comm) -> None:
    for transport in transports:
        check_misuse(transport)


@pytest.mark.mpi(ranks=[2])
def test_buffers_of_different_sizes_are_refused_on_every_rank(comm) -> None:
    transport = TRANSPORTS["shared"](comm)
    with pytest.raises(RuntimeError, match=r"different sizes, \["):
        transport.allocate(1000 * (comm.rank + 1), np.float32)
    transport.close()


def test_loopback_needs_no_mpi() -> None:
    transport = TRANSPORTS["loopback"](None)
    buffer = transport.allocate(3, np.float32, header=1)
    buffer.header[0] = 5
    assert reduce_once(transport, buffer, np.array([3, 6, 9], np.float32), divisor=3).tolist() == [1, 2, 3]
    assert buffer.header[0] == 5


def test_counting_counts() -> None:
    transport = CountingTransport(TRANSPORTS["loopback"](None))
    buffer = transport.allocate(10, np.float64)
    reduce_once(transport, buffer, np.ones(10))
    transport.poll()
    assert (transport.allocated, transport.started, transport.polls, transport.waits) == ([80], [80], 1, 1)


@pytest.mark.mpi(ranks=[1, 2, 3, 4])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("shards", [5, 12])
@pytest.mark.parametrize("count", [1, 130_001])
def test_shards_are_summed_to_the_same_bits_everywhere(transports, comm, dtype: Any, shards: int, count: int) -> None:
    rng = np.random.default_rng(shards)
    leaves = rng.standard_normal((shards, count)) * 10.0 ** rng.integers(-4, 5, (shards, 1))
    weights = [1.0 + shard % 3 for shard in range(shards)]
    alone = TRANSPORTS["loopback"](None)
    bits = [reduce_shards(alone, leaves.astype(dtype), weights, range(shards)) for _ in range(2)]
    for transport in transports:
        own = carried(shards, transport.rank, transport.size)
        bits += [reduce_shards(transport, leaves.astype(dtype), weights, own)]
    assert len(set(bits)) == 1, [transport.name for transport in transports]


def reduce_shards(transport: Transport, leaves: np.ndarray, weights: list[float], own: range) -> bytes:
    """The mean of all leaves, twice in the same buffer: what was left of the first time must not matter."""
    buffer: Any = transport.allocate(leaves.shape[1], leaves.dtype, header=1, shards=len(leaves))
    for _ in range(2):
        for shard in own:
            buffer.array[:] = leaves[shard]
            buffer.shards.add(weights[shard])
        buffer.header[0] = sum(weights[shard] for shard in own)
        transport.start(buffer, None)
        transport.wait(buffer)
        assert buffer.header[0] == sum(weights)
    return buffer.array.tobytes()
