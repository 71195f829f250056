"""Groups of some of the ranks, messages between two of them, and objects."""

import datetime

import numpy as np
import pytest

import ddp
import engine
from ddp import GroupMember
from ddp.execution import leaving
from engine.kernels import waiting
from tests.ddp.world.test_bootstrap import run_alone

EVERYWHERE = pytest.mark.mpi(ranks=[1, 2, 3, 4])
SEVERAL = pytest.mark.mpi(ranks=[2, 3, 4])


@EVERYWHERE
def test_the_default_group(group, ranks: int) -> None:
    assert GroupMember.WORLD is group is ddp.groups.group.WORLD
    assert ddp.get_process_group_ranks(None) == list(range(ranks))
    assert (ddp.get_global_rank(group, ranks - 1), ddp.get_group_rank(group, 0)) == (ranks - 1, 0)
    with pytest.raises(ValueError, match=f"Group rank {ranks} is not part of group"):
        ddp.get_global_rank(group, ranks)
    with pytest.raises(ValueError, match="Global rank -1 is not part of group"):
        ddp.get_group_rank(group, -1)
    assert ddp.get_node_local_rank() == ddp.get_rank()
    assert (ddp.is_mpi_available(), ddp.is_available(), ddp.is_torchelastic_launched()) == (True, True, False)
    assert (ddp.is_gloo_available(), ddp.is_nccl_available()) == (True, False)
    assert [ddp.is_backend_available(name) for name in ("gloo", "NCCL", "smoke")] == [True, True, False]
    assert group.timeout == 1800


@SEVERAL
def test_a_group_of_some_ranks(group, ranks: int) -> None:
    chosen = [ranks - 1, 0]
    some = ddp.new_group(chosen, timeout=datetime.timedelta(seconds=90))
    if group.rank not in chosen:
        assert some is GroupMember.NON_GROUP_MEMBER
        assert ddp.get_rank(some) == ddp.get_world_size(some) == -1
        with pytest.warns(UserWarning, match=rf"Running all_reduce on global rank {group.rank} which does not belong"):
            assert ddp.all_reduce(engine.ones(2), group=some) is None
        with pytest.raises(ValueError, match="Invalid process group specified"):
            ddp.get_process_group_ranks(some)
        return
    assert (some.ranks, some.timeout) == ((0, ranks - 1), 90)  # sorted
    assert ddp.get_rank(some) == chosen[::-1].index(group.rank)
    tensor = engine.tensor([float(group.rank)])
    ddp.all_reduce(tensor, group=some)
    assert tensor.item() == ranks - 1
    ddp.broadcast(tensor.fill_(group.rank), src=ranks - 1, group=some)
    assert tensor.item() == ranks - 1
    ddp.broadcast(tensor.fill_(group.rank), group=some, group_src=0)
    assert tensor.item() == 0
    found = [None, None]
    ddp.all_gather_object(found, group.rank, some)
    assert found == [0, ranks - 1]
    assert some.transport.size == 2
    ddp.destroy_process_group(some)


@SEVERAL
def test_the_order_of_ranks_can_be_chosen(group, ranks: int) -> None:
    backwards = list(range(ranks))[::-1]
    turned = ddp.new_group(backwards, sort_ranks=False)
    assert ddp.get_rank(turned) == ranks - 1 - group.rank
    tensor = engine.tensor([group.rank])
    ddp.broadcast(tensor, group=turned, group_src=0)
    assert tensor.item() == ranks - 1
    ddp.destroy_process_group(turned)


@SEVERAL
def test_a_group_that_only_its_ranks_make(group, ranks: int) -> None:
    some = ddp.new_group([0, 1], use_local_synchronization=True)
    if group.rank > 1:
        assert some is GroupMember.NON_GROUP_MEMBER
    else:
        tensor = engine.ones(1)
        ddp.all_reduce(tensor, group=some)
        assert tensor.item() == 2
        ddp.destroy_process_group(some)


@pytest.mark.mpi(ranks=[4])
def test_subgroups(group) -> None:
    own, all_of_them = ddp.new_subgroups(2)
    assert [made is GroupMember.NON_GROUP_MEMBER for made in all_of_them] == [group.rank > 1, group.rank < 2]
    assert own.ranks == ((0, 1) if group.rank < 2 else (2, 3))
    own, _ = ddp.new_subgroups_by_enumeration([[0, 2], [1, 3]])
    tensor = engine.tensor([group.rank])
    works = [ddp.all_reduce(tensor, group=own, async_op=True)]
    world = engine.ones(1)
    works.insert(group.rank % 2, ddp.all_reduce(world, async_op=True))
    for work in works:  # two groups, waited for in different orders
        work.wait()
    assert (tensor.item(), world.item()) == (2 if group.rank in (0, 2) else 4, 4)
    nobody, made = ddp.new_subgroups_by_enumeration([[0], [2]])
    assert (nobody is None) == (group.rank in (1, 3))
    assert len(made) == 2
    own, _ = ddp.new_subgroups()  # a node
    assert own.size() == 4


@pytest.mark.mpi(ranks=[4])
def test_subgroups_of_groups_that_divide_the_ranks(group) -> None:
    half, _ = ddp.new_subgroups_by_enumeration([[0, 2], [1, 3]])
    own, made = ddp.new_subgroups(1, group=half)
    assert (own.ranks, own.size(), len(made)) == ((group.rank,), 1, 2)
    pair, made = ddp.new_subgroups(2, group=half)
    assert (pair.ranks, len(made)) == (half.ranks, 1)
    tensor = engine.tensor([group.rank])
    ddp.all_reduce(tensor, group=pair)
    assert tensor.item() == sum(half.ranks)
    with pytest.raises(ValueError, match="group_size differs between ranks"):
        ddp.new_subgroups(1 + group.rank // 2, group=half)


@SEVERAL
def test_a_group_one_is_not_in_may_be_cleaned_up_and_asked_about(group, ranks: int) -> None:
    """PyTorch's test_gloo_rank_membership."""
    before = list(group.subgroups)
    some = ddp.new_group([1])
    assert ddp.get_group_rank(some, 1) == 0
    with pytest.raises(ValueError, match=r"Global rank 0 is not part of group \[1\]"):
        ddp.get_group_rank(some, 0)
    _, made = ddp.new_subgroups_by_enumeration([[rank] for rank in range(ranks)])
    for one in (some, *made):
        ddp.destroy_process_group(one)
    assert group.subgroups == before


@EVERYWHERE
def test_a_groups_own_methods(group, ranks: int) -> None:
    """The forms in which hooks of PyTorch's documentation call them."""
    me = group.rank
    assert (group.rank(), group.size()) == (me, ranks)
    ones = engine.ones(2)
    total = group.allreduce([ones]).get_future().then(lambda future: future.value()[0] / group.size()).wait()
    assert total.tolist() == [1.0, 1.0]
    highest = engine.tensor([me])
    group.allreduce(highest, ddp.ReduceOp.MAX).wait()
    assert highest.item() == ranks - 1
    tensor = engine.tensor([me])
    group.broadcast([tensor], ranks - 1).wait()
    assert tensor.item() == ranks - 1
    group.reduce(tensor.fill_(me), 0).wait()
    assert tensor.item() == (sum(range(ranks)) if me == 0 else me)
    rows = [engine.empty(1, dtype=engine.int64) for _ in range(ranks)]
    group.allgather([rows], [engine.tensor([me])]).wait()
    assert [row.item() for row in rows] == list(range(ranks))
    whole = engine.empty(ranks, dtype=engine.int64)
    group._allgather_base(whole, engine.tensor([me])).wait()
    assert whole.tolist() == list(range(ranks))
    group.reduce_scatter([tensor], [[engine.tensor([rank]) for rank in range(ranks)]]).wait()
    assert tensor.item() == ranks * me
    if ranks > 1:
        sent = group.send([engine.tensor([me])], (me + 1) % ranks)
        group.recv([tensor], (me - 1) % ranks).wait()
        sent.wait()
        assert tensor.item() == (me - 1) % ranks
    assert group.barrier().wait()
    with pytest.raises(ValueError, match=r"ProcessGroup.broadcast: expected one tensor, or a list of one, got 2"):
        group.broadcast([ones, ones])


@SEVERAL
def test_wrong_ranks_of_a_group(group, ranks: int) -> None:
    for arguments, kind, words in [
        (
            {"ranks": [0, ranks]},
            ValueError,
            f"within the world_size set by init_process_group: rank {ranks} of {ranks}",
        ),
        ({"ranks": [0, 0]}, ValueError, "ranks come twice"),
        ({"ranks": []}, ValueError, "at least one rank"),
        ({"backend": "smoke"}, ValueError, "new_group: unknown backend 'smoke'"),
        ({"timeout": 3}, TypeError, "expected timeout as a datetime.timedelta, got int"),
        ({"ranks": [0] if group.rank == 0 else [1]}, ValueError, "new_group: ranks differs between ranks: rank 1 has"),
    ]:
        with pytest.raises(kind, match=words):
            ddp.new_group(**arguments)
    with pytest.raises(ValueError, match=r"must be divisible by group_size|must not exceed"):
        ddp.new_subgroups(ranks - 1 if ranks > 2 else 3)
    with pytest.raises(ValueError, match="a rank is in two groups"):
        ddp.new_subgroups_by_enumeration([[0], [0, 1]])


@EVERYWHERE
def test_the_world_may_be_left_with_groups_in_it_and_entered_again(group, ranks: int) -> None:
    """The fixture's world stays: this is about a script of its own, so it runs in `run_job` where it matters."""
    some = ddp.new_group()
    ddp.barrier(some)
    ddp.destroy_process_group(some)
    again = ddp.new_group()
    ddp.barrier(again)
    assert again.name != some.name


# Messages -------------------------------------------------------------------------------------------------------------


@SEVERAL
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool", "complex64", "int8"])
def test_a_message_round_the_ring(group, ranks: int, dtype: str) -> None:
    after, before = (group.rank + 1) % ranks, (group.rank - 1) % ranks
    kind = getattr(engine, dtype)
    tensor = (engine.arange(6).reshape(2, 3) + group.rank).to(kind)
    for make in (lambda: engine.empty(2, 3, dtype=kind), lambda: engine.empty(2, 6, dtype=kind)[:, ::2]):
        found = make()
        work = ddp.isend(tensor, after)
        assert ddp.recv(found, before) == before
        assert work.wait()
        assert np.array_equal(found.numpy(), (engine.arange(6).reshape(2, 3) + before).to(kind).numpy())


@SEVERAL
def test_messages_keep_their_order_and_tags(group) -> None:
    if group.rank == 0:
        for value in range(4):
            ddp.send(engine.tensor([value]), 1, tag=value % 2)
    elif group.rank == 1:
        tensors = [engine.empty(1, dtype=engine.int64) for _ in range(4)]
        works = [ddp.irecv(tensors[index], 0, tag=tag) for index, tag in enumerate([1, 1, 0, 0])]
        for work in works[::-1]:
            work.wait()
        assert [tensor.item() for tensor in tensors] == [1, 3, 0, 2]
        assert works[0].source_rank() == 0


@SEVERAL
def test_a_message_from_whoever_comes(group, ranks: int) -> None:
    if group.rank == 0:
        tensor = engine.empty(1, dtype=engine.int64)
        senders = []
        for _ in range(ranks - 1):
            senders.append(ddp.recv(tensor))
            assert tensor.item() == 10 * senders[-1]
        assert sorted(senders) == list(range(1, ranks))
    else:
        ddp.send(engine.tensor([10 * group.rank]), 0)


@SEVERAL
def test_a_batch_of_messages(group, ranks: int) -> None:
    after, before = (group.rank + 1) % ranks, (group.rank - 1) % ranks
    found = engine.empty(1000)
    operations = [
        ddp.P2POp(ddp.isend, engine.full((1000,), float(group.rank)), after),
        ddp.P2POp(ddp.irecv, found, group_peer=before),
    ]
    for work in ddp.batch_isend_irecv(operations):
        work.wait()
    assert (found == before).all()
    with pytest.raises(ValueError, match="Expected ``op`` to be of type"):
        ddp.P2POp(ddp.send, found, after)
    with pytest.raises(TypeError, match="expected P2POp, got Tensor"):
        ddp.batch_isend_irecv([found])


@SEVERAL
@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (lambda: engine.zeros(3), lambda: engine.zeros(4)),
        (lambda: engine.zeros(4), lambda: engine.zeros(3)),
        (lambda: engine.zeros(3), lambda: engine.zeros(3, dtype=engine.int32)),
        (lambda: engine.zeros(2, 3), lambda: engine.zeros(3, 2).t()),
    ],
    ids=["longer", "shorter", "dtype", "strides"],
)
def test_a_message_of_another_kind_than_expected(group, sent, expected) -> None:
    if group.rank == 0:
        ddp.send(sent(), 1)
    elif group.rank == 1:
        with pytest.raises(ValueError, match=r"recv: rank 0 has sent .* but rank 1 expects .*test_groups.py:\d+"):
            ddp.recv(expected(), 0)


@EVERYWHERE
def test_whom_one_cannot_write_to(group, ranks: int) -> None:
    tensor = engine.zeros(1)
    with pytest.raises(ValueError, match="is this process itself"):
        ddp.send(tensor, group.rank)
    with pytest.raises(ValueError, match="is not in the group"):
        ddp.irecv(tensor, ranks)
    with pytest.raises(ValueError, match="Must specify dst or group_dst"):
        ddp.isend(tensor)


# Objects --------------------------------------------------------------------------------------------------------------


@EVERYWHERE
def test_objects(group, ranks: int) -> None:
    root = ranks - 1
    found = [None] * ranks
    ddp.all_gather_object(found, {"rank": group.rank})
    assert found == [{"rank": rank} for rank in range(ranks)]
    gathered = [None] * ranks if group.rank == root else None
    ddp.gather_object(("rank", group.rank), gathered, dst=root)
    assert gathered == ([("rank", rank) for rank in range(ranks)] if group.rank == root else None)
    objects = ["a", engine.ones(2).tolist()] if group.rank == root else [None, None]
    ddp.broadcast_object_list(objects, src=root)
    assert objects == ["a", [1.0, 1.0]]
    output = [None]
    ddp.scatter_object_list(output, list(range(10, 10 + ranks)) if group.rank == root else None, src=root)
    assert output == [10 + group.rank]


@SEVERAL
def test_lists_of_objects_as_messages(group) -> None:
    if group.rank == 0:
        ddp.send_object_list([1, "two", {3: 4}], 1)
        ddp.send_object_list([1], 1)
    elif group.rank == 1:
        found = [None] * 3
        assert ddp.recv_object_list(found) == 0
        assert found == [1, "two", {3: 4}]
        with pytest.raises(ValueError, match="rank 0 has sent 1 objects, expected 2"):
            ddp.recv_object_list([None, None], 0)


@EVERYWHERE
def test_lists_of_objects_are_checked(group, ranks: int) -> None:
    with pytest.raises(ValueError, match=f"expected a list of {ranks} entries, got {ranks + 1}"):
        ddp.all_gather_object([None] * (ranks + 1), 1)
    with pytest.raises(ValueError, match="to be a list of size at least 1"):
        ddp.scatter_object_list([])


# Waiting for every rank -----------------------------------------------------------------------------------------------


@EVERYWHERE
def test_monitored_barrier(group) -> None:
    for timeout in (datetime.timedelta(seconds=30), 30, 30.0):
        ddp.monitored_barrier(group, timeout)


@SEVERAL
def test_a_monitored_barrier_names_who_is_missing(group, ranks: int) -> None:
    """H27: all ranks that came are told who did not, and one that comes later is told so, too."""
    short = datetime.timedelta(seconds=0.2)
    if group.rank != ranks - 1:
        with pytest.raises(RuntimeError, match=rf"rank {ranks - 1} failed to pass monitored_barrier in 0.2 s"):
            ddp.monitored_barrier(timeout=short)
        ddp.barrier()
    else:
        ddp.barrier()
        with pytest.raises(RuntimeError, match=rf"rank {ranks - 1} failed to pass monitored_barrier"):
            ddp.monitored_barrier(timeout=short)
    ddp.monitored_barrier()


@pytest.mark.parametrize("asked", ["OFF", "info", "DETAIL"])
def test_the_debug_level_is_what_the_environment_says(monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", asked)
    assert ddp.get_debug_level() is ddp.DebugLevel[asked.upper()]
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "MUCH")
    with pytest.raises(ValueError, match="must be OFF, INFO, or DETAIL, got 'MUCH'"):
        ddp.get_debug_level()


def test_names_of_backends() -> None:
    assert (ddp.Backend("GLOO"), ddp.Backend.NCCL, ddp.Backend.MPI) == ("gloo", "nccl", "mpi")
    assert ddp.is_backend_available(ddp.Backend.GLOO)
    assert [ddp.get_default_backend_for_device(device) for device in ("cpu", "cuda:1")] == ["gloo", "nccl"]
    with pytest.raises(ValueError, match="not registered for device"):
        ddp.get_default_backend_for_device("meta")


ALONE = """
import ddp, engine, datetime
ddp.init_process_group("gloo", timeout=datetime.timedelta(seconds=5))
assert ddp.groups.group.resolve(None).comm is None
x, one = engine.arange(3.0), [engine.empty(3)]
for op in (ddp.ReduceOp.SUM, ddp.ReduceOp.AVG, ddp.ReduceOp.MAX):
    ddp.all_reduce(x, op)
ddp.broadcast(x, 0); ddp.reduce(x, 0); ddp.barrier(); ddp.monitored_barrier()
for call in (ddp.all_gather, ddp.gather):
    call(one, x) if call is ddp.all_gather else call(x, one)
    assert engine.equal(one[0], x)
ddp.scatter(one[0], [x * 2]); assert engine.equal(one[0], x * 2)
ddp.reduce_scatter(one[0], [x]); assert engine.equal(one[0], x)
ddp.all_to_all(one, [x * 3]); assert engine.equal(one[0], x * 3)
ddp.all_to_all_single(one[0], x); assert engine.equal(one[0], x)
ddp.all_gather_into_tensor(one[0], x); ddp.reduce_scatter_tensor(one[0], x); assert engine.equal(one[0], x)
work = ddp.all_reduce(x, async_op=True); assert work.is_completed() and work.wait()
objects = [None]
ddp.all_gather_object(objects, 7); ddp.gather_object(8, objects); ddp.broadcast_object_list(objects)
ddp.scatter_object_list(objects, [9]); assert objects == [9]
group = ddp.new_group([0]); ddp.all_reduce(x, group=group); ddp.destroy_process_group(group)
own, _ = ddp.new_subgroups(1); ddp.barrier(own)
x.requires_grad_()
F = ddp.nn.functional
y = sum(part.sum() for part in (F.all_reduce(x), *F.all_gather(x), F.broadcast(x, 0), *F.all_to_all([x], [x])))
y.backward(); assert x.grad.tolist() == [4, 4, 4]
try:
    ddp.send(x, 0)
except ValueError as error:
    print(error)
ddp.destroy_process_group()
"""


def test_everything_works_alone_without_mpi() -> None:
    result = run_alone(ALONE, MPI4PY_LIBMPI="missing-libmpi.so")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == "isend: rank 0 is this process itself; a message needs another one\n"


@SEVERAL
def test_communicators_are_freed_when_all_ranks_have_left_their_group(group, ranks: int) -> None:
    made = ddp.new_group()
    comms = made.comm, made.lines.words, made.lines.checks, made.lines.bytes
    ddp.all_reduce(engine.ones(2), group=made)
    if made.rank == 0:
        ddp.send(engine.ones(2), 1, made)
    elif made.rank == 1:
        ddp.recv(engine.ones(2), 0, made)
    ddp.destroy_process_group(made)
    while any(comms):  # false when freed
        leaving.free_settled()


@SEVERAL
def test_only_the_first_rank_tells_that_it_waits_for_kernels(group, capsys, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(waiting, "_told", False)
    monkeypatch.setattr(waiting, "_expected", 0)  # tests before may have waited for more
    waiting.tell(2, tmp_path / "kernel")
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" for")[0] for line in lines] == ["allstride: compiling about 2 kernels"] * (group.rank == 0)
