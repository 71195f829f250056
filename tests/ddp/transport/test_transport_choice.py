"""Which transport is chosen, and what happens when it does not work: loudly, and alike on every rank."""

import threading
from typing import Any

import pytest

from ddp.transport import TRANSPORTS, Transport, check_transport, choose_transport, time_messages


@pytest.fixture
def two_nodes(comm, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first half of the ranks passes for one node, the rest for another."""
    from ddp.transport import nodes
    from ddp.transport.hierarchical import HierarchicalTransport

    monkeypatch.setattr(nodes, "count_nodes", lambda comm: 2)
    monkeypatch.setitem(
        TRANSPORTS, "hierarchical", lambda comm: HierarchicalTransport(comm, comm.rank * 2 // comm.size)
    )


def spoil(monkeypatch: pytest.MonkeyPatch, transport: type, rank: int, count: int) -> None:
    """From now on one rank finds its last element too large by 1 when it waits for a buffer of `count` elements."""
    sound_wait = transport.wait

    def wait(self: Any, buffer: Any) -> None:
        sound_wait(self, buffer)
        if self.rank == rank and buffer.array.size == count:
            buffer.array[-1] += 1

    monkeypatch.setattr(transport, "wait", wait)


def choose_warned(comm: Any, match: str) -> Transport:
    """The automatic choice, which rank 0, and nobody else, must be warned of."""
    if comm.rank:
        return choose_transport(comm)  # warnings are errors
    with pytest.warns(RuntimeWarning, match=match):
        return choose_transport(comm)


@pytest.mark.mpi(ranks=[1, 2])
def test_loopback_for_one_rank_and_shared_on_one_node(comm) -> None:
    transport = choose_transport(comm)
    assert transport.name == ("loopback" if comm.size == 1 else "shared")
    assert (transport.rank, transport.size) == (comm.rank, comm.size)
    transport.close()


@pytest.mark.mpi(ranks=[2, 3])
def test_on_two_nodes_hierarchical_unless_each_rank_has_its_own(comm, two_nodes) -> None:
    transport = choose_transport(comm)
    assert transport.name == ("hierarchical" if comm.size == 3 else "mpi")
    transport.close()


@pytest.mark.mpi(ranks=[2, 3])
@pytest.mark.parametrize("name", [name for name in TRANSPORTS if name != "loopback"])
def test_sums_by_messages_are_timed_alike_on_every_rank(comm, name: str) -> None:
    transport = choose_transport(comm, name)
    everyones = comm.allgather(time_messages(transport, comm))
    transport.close()
    assert len(set(everyones)) == 1
    if name == "shared":
        assert everyones[0] is None
    else:
        assert everyones[0].seconds > 0
        assert everyones[0].byte >= 0


@pytest.mark.mpi(ranks=[2, 3])
@pytest.mark.parametrize("name", [name for name in TRANSPORTS if name != "loopback"])
def test_the_choice_can_be_overridden(comm, name: str) -> None:
    transport = choose_transport(comm, name)
    assert transport.name == name
    transport.close()


@pytest.mark.mpi(ranks=[2, 3])
@pytest.mark.parametrize("name", ["mpi", "hierarchical"])
@pytest.mark.parametrize("faster", ["polling", "a thread"])
def test_messages_are_moved_on_by_what_was_faster(
    comm, monkeypatch: pytest.MonkeyPatch, name: str, faster: str
) -> None:
    """With clocks of our own: which way is faster really is not for a test to say."""
    from ddp.transport import background

    def trial(transport: Transport, buffers: Any, comm: Any) -> float:
        assert isinstance(transport, background.BackgroundTransport)
        return 0.002 if background.way(transport.by_thread) == faster else 0.004

    threads = threading.active_count()
    monkeypatch.setattr(background, "_trial", trial)
    transport = choose_transport(comm, name)
    assert transport.name == name
    assert isinstance(transport, background.BackgroundTransport)
    assert transport.by_thread == (faster == "a thread")
    assert transport.progress.startswith(f"{faster} (trial: polling ")
    assert f"{faster} 2.0 ms" in transport.progress
    assert "4.0 ms" in transport.progress
    check_transport(transport, comm)
    transport.close()
    assert threading.active_count() == threads


@pytest.mark.mpi(ranks=[2])
def test_without_thread_support_there_is_no_choice(comm, monkeypatch: pytest.MonkeyPatch) -> None:
    from mpi4py import MPI

    monkeypatch.setattr(MPI, "Query_thread", lambda: MPI.THREAD_SERIALIZED)
    transport = choose_transport(comm, "mpi")
    assert transport.progress.startswith("polling; this MPI gives no thread")
    transport.close()


@pytest.mark.mpi(ranks=[2])
def test_part_of_the_ranks(comm) -> None:
    part = comm.Split(comm.rank)
    transport = choose_transport(part)
    assert transport.name == "loopback"
    transport.close()
    part.Free()


@pytest.mark.mpi(ranks=[2])
def test_loopback_refuses_two_ranks(comm) -> None:
    with pytest.raises(RuntimeError, match="transport loopback: it serves one rank, got 2"):
        choose_transport(comm, "loopback")


@pytest.mark.mpi(ranks=[2])
def test_shared_refuses_two_nodes(comm, monkeypatch: pytest.MonkeyPatch) -> None:
    from ddp.transport import shared

    monkeypatch.setattr(shared, "count_nodes", lambda comm: 2)
    with pytest.raises(RuntimeError, match="must be on one node, got 2 ranks on 2 nodes; use 'hierarchical' or 'mpi'"):
        choose_transport(comm, "shared")


@pytest.mark.mpi(ranks=[2])
def test_one_that_sums_wrongly_is_replaced_loudly_or_refused(comm, monkeypatch: pytest.MonkeyPatch) -> None:
    from ddp.transport.shared import SharedTransport

    spoil(monkeypatch, SharedTransport, rank=1, count=1000)
    what = "rank 1, 1000 float32, round 0: 1 differ, element 999: expected 26.5, got 27.5"
    with pytest.raises(RuntimeError, match=f"transport shared: its sums differ from MPI's own: {what}"):
        choose_transport(comm, "shared")
    transport = choose_warned(comm, f"'shared' does not work here, falling back to 'mpi': .*{what}")
    assert transport.name == "mpi"
    check_transport(transport, comm)
    transport.close()


@pytest.mark.mpi(ranks=[3])
def test_between_nodes_too(comm, two_nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    from ddp.transport.hierarchical import HierarchicalTransport

    spoil(monkeypatch, HierarchicalTransport, rank=2, count=400_003)
    transport = choose_warned(
        comm, "'hierarchical' does not work here, falling back to 'mpi': .*rank 2, 400003 float32"
    )
    assert transport.name == "mpi"
    transport.close()


@pytest.mark.mpi(ranks=[2, 3])
def test_one_that_only_one_rank_cannot_make_is_replaced_on_all(comm, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_on_the_last(comm: Any) -> Transport:
        if comm.rank == comm.size - 1:
            raise RuntimeError("no memory left to share")
        return object()  # type: ignore[return-value]

    monkeypatch.setitem(TRANSPORTS, "shared", fail_on_the_last)
    transport = choose_warned(comm, "falling back to 'mpi': no memory left to share")
    assert transport.name == "mpi"
    transport.close()
    with pytest.raises(RuntimeError, match="no memory left to share"):
        choose_transport(comm, "shared")


@pytest.mark.mpi(ranks=[2])
def test_a_wrong_sum_of_mpi_itself_has_no_replacement(comm, monkeypatch: pytest.MonkeyPatch) -> None:
    from ddp.transport.mpi import MpiTransport

    spoil(monkeypatch, MpiTransport, rank=0, count=1)
    with pytest.raises(RuntimeError, match="transport mpi: its sums differ from MPI's own: rank 0, 1 float32"):
        choose_transport(comm, "mpi")


def test_one_rank_without_mpi() -> None:
    assert choose_transport(None).name == "loopback"


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(
        ValueError, match="unknown transport 'smoke', expected one of loopback, shared, mpi, hierarchical"
    ):
        choose_transport(None, "smoke")


@pytest.mark.parametrize("name", [name for name in TRANSPORTS if name != "loopback"])
def test_transports_between_ranks_need_mpi(name: str) -> None:
    with pytest.raises(RuntimeError, match=f"transport {name}: it needs MPI"):
        choose_transport(None, name)
