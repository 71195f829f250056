"""What is not declared collective waits for nobody: one rank does it while the others rest."""

import copy
import datetime
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ddp
import engine
from ddp import DistributedDataParallel, GroupMember
from engine import nn
from engine.optim import SGD

_LIMIT = 20.0  # seconds of rest, after which the one that acts is taken to wait for the others
SHORT = datetime.timedelta(seconds=0.1)

Case = Callable[[], Iterator[Callable[[], Any]]]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    """A generator: on every rank it prepares, then yields what one rank does alone; then all end it together."""
    CASES[function.__name__] = function
    return function


def model(
    transport: str | None = None, *, buffers: bool = True, broadcast_buffers: bool = True
) -> DistributedDataParallel:
    """Wrapped: the making of it is collective."""
    group = ddp.groups.group.resolve(None)
    if transport is not None and group.transport.name != transport:
        group = ddp.new_group()
        group.transport_name = transport
    return DistributedDataParallel(
        nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, track_running_stats=buffers), nn.Linear(4, 2)),
        process_group=group,
        broadcast_buffers=broadcast_buffers,
    )


# Collectives that do not wait: the first and the second of a group ---------------------------------------------------

ASYNCHRONOUS: dict[str, Callable[[ddp.ProcessGroup], Any]] = {
    "all_reduce": lambda g: ddp.all_reduce(engine.ones(3), group=g, async_op=True),
    "reduce": lambda g: ddp.reduce(engine.ones(3), group=g, async_op=True, group_dst=0),
    "broadcast": lambda g: ddp.broadcast(engine.ones(3), group=g, async_op=True, group_src=0),
    "all_gather": lambda g: ddp.all_gather([engine.ones(3) for _ in g.ranks], engine.ones(3), g, async_op=True),
    "all_gather_into_tensor": lambda g: ddp.all_gather_into_tensor(
        engine.ones(3 * g.size()), engine.ones(3), g, async_op=True
    ),
    "reduce_scatter": lambda g: ddp.reduce_scatter(
        engine.ones(3), [engine.ones(3) for _ in g.ranks], group=g, async_op=True
    ),
    "all_to_all_single": lambda g: ddp.all_to_all_single(
        engine.ones(g.size()), engine.ones(g.size()), group=g, async_op=True
    ),
    "barrier": lambda g: ddp.barrier(g, async_op=True),
    "all_reduce_coalesced": lambda g: ddp.all_reduce_coalesced(
        [engine.ones(3), engine.ones(2)], group=g, async_op=True
    ),
    "group.allreduce": lambda g: g.allreduce([engine.ones(3)]),
    "group.barrier": lambda g: g.barrier(),
}


def asynchronous(name: str, warm: bool) -> Case:
    def prepared() -> Iterator[Callable[[], Any]]:
        group = ddp.new_group()
        if warm:
            ddp.barrier(group)
        works: list[Any] = []
        yield lambda: works.append(ASYNCHRONOUS[name](group))
        if not works:  # one of those that rested
            works.append(ASYNCHRONOUS[name](group))
        assert works[0].wait()
        ddp.destroy_process_group(group)

    return prepared


for _name in ASYNCHRONOUS:
    CASES[f"the first of a group: {_name}"] = asynchronous(_name, warm=False)
    CASES[f"a later one: {_name}"] = asynchronous(_name, warm=True)


@case
def a_collective_whose_time_is_limited() -> Iterator[Callable[[], Any]]:
    group = ddp.new_group()
    failed: list[bool] = []

    def impatient() -> None:
        with pytest.raises(RuntimeError, match="barrier: Wait timeout"):
            ddp.barrier(group, timeout=SHORT)
        work = ddp.all_reduce(engine.ones(1), group=group, async_op=True)
        with pytest.raises(RuntimeError, match="all_reduce: Wait timeout"):
            work.wait(SHORT)
        failed.append(True)

    yield impatient
    if not failed:
        ddp.barrier(group)
        ddp.all_reduce(engine.ones(1), group=group)
    ddp.destroy_process_group(group)


@case
def a_monitored_barrier() -> Iterator[Callable[[], Any]]:
    group = ddp.new_group()

    def impatient() -> None:
        with pytest.raises(RuntimeError, match=r"failed to pass monitored_barrier in 0\.1 s"):
            ddp.monitored_barrier(group, 0.1)

    yield impatient
    ddp.destroy_process_group(group)


# Messages ------------------------------------------------------------------------------------------------------------


@case
def messages_are_posted() -> Iterator[Callable[[], Any]]:
    me, size = ddp.get_rank(), ddp.get_world_size()
    others = [rank for rank in range(size) if rank != me]
    sent: list[Any] = []

    def post() -> None:
        sent.extend(ddp.isend(engine.ones(2) * me, other) for other in others)
        sent.extend(ddp.irecv(engine.zeros(2), other) for other in others)
        for work in sent:
            work.is_completed()

    yield post
    if not sent:
        post()
    for work in sent:
        work.wait()


@case
def a_message_that_nobody_receives() -> Iterator[Callable[[], Any]]:
    """It is there when the group is destroyed, and comes to none of those that get numbers of its communicators."""
    me, size = ddp.get_rank(), ddp.get_world_size()
    group = ddp.new_group()
    yield lambda: [ddp.isend(engine.ones(2), other, group) for other in range(size) if other != me]
    ddp.destroy_process_group(group)
    for own in [ddp.new_group([me], use_local_synchronization=True) for _ in range(8)]:
        ddp.barrier(own)
        ddp.destroy_process_group(own)


# Groups --------------------------------------------------------------------------------------------------------------


@case
def groups_are_asked() -> Iterator[Callable[[], Any]]:
    group = ddp.new_group()

    def ask() -> None:
        assert ddp.groups.group.describe(group)["transport"] is None
        assert group.rank() == ddp.get_rank(group) == group.rank
        assert ddp.get_backend(group) == "mpi"

    yield ask
    ddp.destroy_process_group(group)


@case
def a_group_of_others() -> Iterator[Callable[[], Any]]:
    me = ddp.get_rank()
    rest = [rank for rank in range(ddp.get_world_size()) if rank != me]

    def stay_outside() -> None:
        group = ddp.new_group(rest, use_local_synchronization=True)
        assert group is GroupMember.NON_GROUP_MEMBER
        ddp.destroy_process_group(group)

    yield stay_outside


@case
def a_group_is_destroyed() -> Iterator[Callable[[], Any]]:
    groups = [ddp.new_group() for _ in range(4)]
    ddp.barrier(groups[1])
    for group, transport in zip(groups[2:], ("shared", "mpi"), strict=True):
        group.transport_name = transport
        assert group.transport.name == transport
    left: list[bool] = []

    def destroy() -> None:
        for group in groups:
            ddp.destroy_process_group(group)
        left.append(True)

    yield destroy
    if not left:
        destroy()


# A wrapped model -----------------------------------------------------------------------------------------------------


def wrapped(transport: str, buffers: bool, broadcast_buffers: bool) -> Case:
    """Where buffers are shared, forward is collective, in evaluations too: one rank alone runs the module itself."""

    def prepared() -> Iterator[Callable[[], Any]]:
        net = model(transport, buffers=buffers, broadcast_buffers=broadcast_buffers)
        evaluated = net.module if buffers and broadcast_buffers else net
        optimizer = SGD(net.parameters(), lr=0.1)
        inputs = engine.ones(3, 4)
        net(inputs).sum().backward()
        used: list[bool] = []

        def use() -> None:
            optimizer.step()
            net.eval()
            evaluated(inputs)
            with engine.no_grad():
                evaluated(inputs)
            net.train()
            with engine.no_grad():
                evaluated(inputs)
            with net.no_sync():
                net(inputs).sum().backward()
            net.load_state_dict(net.state_dict())
            optimizer.load_state_dict(optimizer.state_dict())
            net.module(inputs)
            net.overlap()
            net.set_gradient_weight(1.0)
            if net.process_group is GroupMember.WORLD:
                duplicate = copy.deepcopy(net)
                duplicate.eval()
                with engine.no_grad():
                    duplicate(inputs)
                del duplicate
            optimizer.zero_grad()
            used.append(True)

        yield use
        if not used:  # replicas that are not at the same step would be an error of the next backward
            use()
        net(inputs).sum().backward()

    return prepared


for _name in ("shared", "mpi", "hierarchical"):
    CASES[f"a wrapped model, {_name}"] = wrapped(_name, buffers=True, broadcast_buffers=True)
CASES["a wrapped model without buffers"] = wrapped("mpi", buffers=False, broadcast_buffers=True)
CASES["a wrapped model with buffers of each rank"] = wrapped("mpi", buffers=True, broadcast_buffers=False)


@case
def synchronized_batch_norm_in_eval_mode() -> Iterator[Callable[[], Any]]:
    norm = nn.SyncBatchNorm(4)
    norm(engine.ones(3, 4))

    def evaluate() -> None:
        norm.eval()
        norm(engine.ones(3, 4))

    yield evaluate


@case
def a_divided_optimizer() -> Iterator[Callable[[], Any]]:
    net = model()
    optimizer = ddp.ZeroRedundancyOptimizer(net.parameters(), SGD, lr=0.1)
    net(engine.ones(3, 4)).sum().backward()
    optimizer.step()

    def use() -> None:
        optimizer.zero_grad()
        with pytest.raises(RuntimeError, match="consolidate_state_dict"):
            optimizer.state_dict()

    yield use


@pytest.mark.mpi(ranks=[2, 3])
@pytest.mark.parametrize("acts", ["the first", "the last"])
@pytest.mark.parametrize("name", CASES)
def test_a_rank_alone(group, shared_tmp_path: Path, name: str, acts: str, ranks: int) -> None:
    """The others look for a file, so they make no call of MPI; their watchdogs run, as in any program."""
    through = shared_tmp_path / "through"
    steps = CASES[name]()
    act = next(steps)
    if group.rank == (0 if acts == "the first" else ranks - 1):
        act()
        through.touch()
    else:
        deadline = time.monotonic() + _LIMIT
        while not through.exists():
            assert time.monotonic() < deadline, f"{name}: {acts} rank waits for those that rest"
            time.sleep(0.01)
    next(steps, None)
    ddp.barrier()
    assert group.lines is not None
