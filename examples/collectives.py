"""What ranks can say to each other: every function of `ddp` once, on any number of ranks, with what comes out.

    ddprun -n 3 examples/collectives.py
    python examples/collectives.py        # a world of one: the same calls, nobody to talk to

Each function below is an example of its own; `main` runs them in order. Tensors stay small enough to follow by eye.
"""

import ddp
import engine
from ddp import P2POp, ReduceOp


def reductions(rank: int, world: int) -> None:
    """Sums and the like of one tensor a rank."""
    x = engine.tensor([float(rank), 1.0])
    ddp.all_reduce(x)  # on every rank; the sum, unless another operation is asked for
    assert x.tolist() == [sum(range(world)), world]

    x = engine.tensor([rank])
    ddp.reduce(x, dst=0, op=ReduceOp.MAX)  # on rank 0 only
    assert rank != 0 or x.item() == world - 1

    rows = [engine.tensor([rank + column]) for column in range(world)]
    own = engine.empty(1, dtype=engine.int64)
    ddp.reduce_scatter(own, rows)  # rank r receives the sum of everybody's row r
    assert own.item() == sum(range(world)) + world * rank

    stacked = engine.arange(world) + rank
    ddp.reduce_scatter_tensor(own, stacked)  # the same from one tensor
    assert own.item() == sum(range(world)) + world * rank


def spreading(rank: int, world: int) -> None:
    """From one rank to all, from all to one, from all to all."""
    x = engine.tensor([rank])
    ddp.broadcast(x, src=world - 1)
    assert x.item() == world - 1

    own = engine.tensor([rank * rank])
    everybody = [engine.empty(1, dtype=engine.int64) for _ in range(world)]
    ddp.all_gather(everybody, own)
    assert [each.item() for each in everybody] == [r * r for r in range(world)]

    stacked = engine.empty(world, dtype=engine.int64)
    ddp.all_gather_into_tensor(stacked, own)
    assert stacked.tolist() == [r * r for r in range(world)]

    ddp.gather(own, everybody if rank == 0 else None, dst=0)
    ddp.scatter(own, everybody if rank == 0 else None, src=0)  # and back again
    assert own.item() == rank * rank

    for_rank = [engine.tensor([10 * rank + r]) for r in range(world)]
    ddp.all_to_all(everybody, for_rank)  # a transposition: what rank r has for rank q goes to place r of rank q
    assert [each.item() for each in everybody] == [10 * r + rank for r in range(world)]

    ddp.all_to_all_single(stacked, engine.cat(for_rank))
    assert stacked.tolist() == [10 * r + rank for r in range(world)]


def objects(rank: int, world: int) -> None:
    """Anything that can be pickled; for settings and results, not for gradients."""
    everybody: list[object] = [None] * world
    ddp.all_gather_object(everybody, {"rank": rank})
    assert everybody == [{"rank": r} for r in range(world)]

    gathered: list[object] | None = [None] * world if rank == 0 else None
    ddp.gather_object(f"rank {rank}", gathered, dst=0)
    assert gathered is None or gathered[-1] == f"rank {world - 1}"

    settings: list[object] = [{"lr": 0.1}, "adam"] if rank == 0 else [None, None]
    ddp.broadcast_object_list(settings, src=0)
    assert settings == [{"lr": 0.1}, "adam"]

    own: list[object] = [None]
    ddp.scatter_object_list(own, [f"for {r}" for r in range(world)] if rank == 0 else None, src=0)
    assert own == [f"for {rank}"]


def neighbours(rank: int, world: int) -> None:
    """Messages between two ranks, around a ring."""
    if world == 1:
        return  # nobody to talk to
    after, before = (rank + 1) % world, (rank - 1) % world
    x, y = engine.tensor([float(rank)]), engine.empty(1)

    sending = ddp.isend(x, after)  # returns at once; wait() before the memory is used again
    receiving = ddp.irecv(y, before)
    sending.wait()
    receiving.wait()
    assert y.item() == before

    for work in ddp.batch_isend_irecv([P2POp(ddp.isend, x, after), P2POp(ddp.irecv, y, before)]):
        work.wait()
    assert y.item() == before

    if rank == 0:  # one after the other, or both would wait for ever
        ddp.send(x, dst=after)
        ddp.recv(y, src=before)
    else:
        ddp.recv(y, src=before)
        ddp.send(x, dst=after)
    assert y.item() == before

    if rank == 0:
        ddp.send_object_list(["a message"], dst=1)
    elif rank == 1:
        received: list[object] = [None]
        ddp.recv_object_list(received, src=0)
        assert received == ["a message"]


def while_computing(rank: int, world: int) -> None:
    """async_op=True gives a Work: what can be done meanwhile is, then one waits."""
    x = engine.full((4,), float(rank))
    work = ddp.all_reduce(x, async_op=True)
    square = engine.ones(8, 8) @ engine.ones(8, 8)
    work.wait()
    assert (x.sum().item(), square[0, 0].item()) == (4 * sum(range(world)), 8.0)

    done = ddp.all_reduce(x, op=ReduceOp.MIN, async_op=True).get_future().then(lambda future: future.value()[0])
    assert done.wait().tolist() == [float(sum(range(world)))] * 4


def groups(rank: int, world: int) -> None:
    """A group of some ranks talks among itself. Every rank makes it, also those that are not in it."""
    even = ddp.new_group(range(0, world, 2))
    if rank % 2 == 0:
        x = engine.tensor([1])
        ddp.all_reduce(x, group=even)
        assert x.item() == len(ddp.get_process_group_ranks(even)) == (world + 1) // 2
        assert ddp.get_global_rank(even, ddp.get_group_rank(even, rank)) == rank
    else:
        assert even is ddp.GroupMember.NON_GROUP_MEMBER

    own, everybody = ddp.new_subgroups(group_size=1)
    assert (own.size(), len(everybody)) == (1, world)
    halves, _ = ddp.new_subgroups_by_enumeration([list(range(world))])
    assert halves.size() == world


def together(rank: int, world: int) -> None:
    """All meet; with monitored_barrier rank 0 names those who do not come in time."""
    ddp.barrier()
    ddp.monitored_barrier()
    assert (rank, world) == (ddp.get_rank(), ddp.get_world_size())


def main() -> None:
    ddp.init_process_group()
    rank, world = ddp.get_rank(), ddp.get_world_size()
    for example in (reductions, spreading, objects, neighbours, while_computing, groups, together):
        example(rank, world)
        if rank == 0:
            print(f"{example.__name__}: {example.__doc__}", flush=True)
    ddp.destroy_process_group()


if __name__ == "__main__":
    main()
