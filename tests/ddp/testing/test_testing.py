"""Ranks that are threads: what a job does, without one."""

import subprocess
import sys
import textwrap
import time
from typing import Any

import numpy as np
import pytest

import ddp
import engine
import engine.nn as nn
from ddp import DistributedDataParallel, ReduceOp
from ddp.hooks import bf16_compress_hook
from ddp.testing import on_ranks, run_ranks
from engine.optim import SGD, AdamW
from tests.ddp.models import TASKS, Weights, batch, build, gradients, loss_of


def tensor(*values: float) -> engine.Tensor:
    return engine.tensor([float(value) for value in values])


# --- what ranks do together -------------------------------------------------------------------------------------------


def collectives() -> dict[str, Any]:
    """What this rank gets of each."""
    rank, size = ddp.get_rank(), ddp.get_world_size()
    found: dict[str, Any] = {}
    for op in (ReduceOp.SUM, ReduceOp.AVG, ReduceOp.MAX, ReduceOp.PRODUCT):
        values = tensor(rank + 1, 1)
        ddp.all_reduce(values, op)
        found[op.name] = values.tolist()
    half = tensor(rank, 0.5).bfloat16()
    ddp.all_reduce(half)
    found["half"] = half.tolist()
    values = tensor(rank)
    ddp.broadcast(values, size - 1)
    ddp.reduce(more := tensor(rank + 1), 0)
    found["broadcast, reduce"] = values.tolist(), more.tolist()
    rows = [tensor(0) for _ in range(size)]
    ddp.all_gather(rows, tensor(rank))
    found["all_gather"] = [row.item() for row in rows]
    ddp.gather(tensor(rank), rows if rank == 0 else None, 0)
    ddp.scatter(values, [tensor(10 + r) for r in range(size)] if rank == 0 else None, 0)
    found["scatter"] = values.item()
    ddp.reduce_scatter(values, [tensor(r) for r in range(size)])
    found["reduce_scatter"] = values.item()
    ddp.all_to_all(rows, [tensor(10 * rank + r) for r in range(size)])
    found["all_to_all"] = [row.item() for row in rows]
    objects: list[Any] = [None] * size
    ddp.all_gather_object(objects, {"rank": rank})
    found["objects"] = objects
    work = ddp.all_reduce(values := tensor(1), async_op=True)
    ddp.barrier()
    work.wait()
    found["async"] = values.item()
    ddp.monitored_barrier()
    return found


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_collectives(size: int) -> None:
    everyone = range(size)
    total, product = size * (size + 1) / 2, float([1, 1, 2, 6, 24][size])
    for rank, found in enumerate(run_ranks(size, collectives)):
        assert found == {
            "SUM": [total, size],
            "AVG": [total / size, 1],
            "MAX": [size, 1],
            "PRODUCT": [product, 1],
            "half": [size * (size - 1) / 2, size / 2],
            "broadcast, reduce": ([size - 1], [total if rank == 0 else rank + 1]),
            "all_gather": [*everyone],
            "scatter": 10 + rank,
            "reduce_scatter": size * rank,
            "all_to_all": [10 * r + rank for r in everyone],
            "objects": [{"rank": r} for r in everyone],
            "async": size,
        }


@pytest.mark.mpi(ranks=[3])
def test_a_job_gives_the_same(group) -> None:
    assert collectives()["all_to_all"] == [float(10 * r + group.rank) for r in range(3)]
    with pytest.raises(RuntimeError, match="in a process group already"):
        run_ranks(2, collectives)


@on_ranks(3)
def test_messages() -> None:
    """In rings, of any source, and of objects; those of one tag keep their order."""
    rank, size = ddp.get_rank(), ddp.get_world_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    work = ddp.isend(tensor(rank), right)
    received = tensor(0)
    assert ddp.recv(received, left) == left
    assert received.item() == left
    work.wait()
    if rank == 0:
        senders = set()
        for _ in range(size - 1):
            senders.add((ddp.recv(received), received.item()))
        assert senders == {(r, float(r)) for r in range(1, size)}
    else:
        ddp.send(tensor(rank), 0)
    ddp.barrier()
    objects = ["a", {"b": rank}] if rank == 0 else [None, None]
    ddp.broadcast_object_list(objects)
    assert objects == ["a", {"b": 0}]


@on_ranks(4)
def test_subgroups() -> None:
    own, both = ddp.new_subgroups(2)
    ddp.all_reduce(values := tensor(ddp.get_rank()), group=own)
    assert values.item() == [1, 1, 5, 5][ddp.get_rank()]
    assert len(both) == 2
    ends = ddp.new_group([0, 3])
    if ddp.get_rank() in (0, 3):
        ddp.all_reduce(values, group=ends)
        assert values.item() == 6
        ddp.destroy_process_group(ends)
    ddp.destroy_process_group()
    assert not ddp.is_initialized()


# --- training ---------------------------------------------------------------------------------------------------------


def small() -> nn.Module:
    net = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    with engine.no_grad():
        for number, parameter in enumerate(net.parameters()):
            parameter.copy_((engine.arange(parameter.numel()) % 3 - number % 2).reshape(parameter.shape))
    return net


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("cap", [25, 1e-5])
def test_training_is_that_of_one_process(size: int, cap: float) -> None:
    """Bit for bit: in double precision these sums are exact, and a mean over 2 or 4 is."""

    def body() -> list[list[float]]:
        net = DistributedDataParallel(small(), bucket_cap_mb=cap)
        rank = ddp.get_rank()
        share = slice(rank * 4 // size, (rank + 1) * 4 // size)
        optimizer = SGD(net.parameters(), lr=2**-10)
        for step in range(2):
            optimizer.zero_grad()
            net((engine.arange(8.0).double().reshape(4, 2) + step)[share]).sum().backward()
            optimizer.step()
        return [parameter.tolist() for parameter in net.parameters()]

    net = small()
    optimizer = SGD(net.parameters(), lr=2**-10)
    for step in range(2):
        optimizer.zero_grad()
        (net(engine.arange(8.0).double().reshape(4, 2) + step).sum() / size).backward()
        optimizer.step()
    alone = [parameter.tolist() for parameter in net.parameters()]
    assert run_ranks(size, body) == [alone] * size


@pytest.mark.parametrize("task", TASKS)
def test_models_under_ddp(task: str) -> None:
    """As on one rank, to rounding, and with equal bits on all of them."""

    def body() -> list[bytes]:
        net = DistributedDataParallel(build(TASKS[task], engine.float64), bucket_cap_mb=0.001)
        optimizer = AdamW(net.parameters(), lr=1e-3)
        inputs, targets = batch(TASKS[task], engine.float64, 0)
        share = slice(ddp.get_rank(), None, ddp.get_world_size())
        for _ in range(2):
            optimizer.zero_grad()
            loss_of(net, inputs[share], targets[share]).backward()
            optimizer.step()
        return [parameter.detach().numpy().tobytes() for parameter in net.parameters()]

    (alone,) = run_ranks(1, body)
    results = run_ranks(3, body)
    assert results == [results[0]] * 3
    for one, other in zip(alone, results[0], strict=True):
        assert np.allclose(np.frombuffer(one), np.frombuffer(other), rtol=1e-9, atol=1e-11)


@on_ranks(2, 3)
def test_what_builds_on_ddp() -> None:
    rank, size = ddp.get_rank(), ddp.get_world_size()
    net = DistributedDataParallel(Weights("a", "b"), bucket_cap_mb=1e-5)
    with net.no_sync():
        net(a=12.0 * rank).backward()
    net(b=12.0).backward()
    assert gradients(net) == {"a": 6.0 * (size - 1), "b": 12}
    net.register_comm_hook(None, bf16_compress_hook)
    net.zero_grad()
    net(a=12.0 * rank).backward()
    assert gradients(net) == {"a": 6.0 * (size - 1), "b": None}
    norm = ddp.SyncBatchNorm(2)
    norm(engine.full((2, 2), 12.0 * rank))
    assert norm.running_mean.tolist() == pytest.approx([0.6 * (size - 1)] * 2)
    optimizer = ddp.ZeroRedundancyOptimizer(net.parameters(), SGD, lr=1.0)
    optimizer.step()
    assert net.module.a.tolist() == [-6.0 * (size - 1)] * 3
    with net.join():
        for _ in range(1 + rank):
            net.zero_grad()
            net(a=12.0).backward()


# --- errors -----------------------------------------------------------------------------------------------------------


def test_the_first_error_ends_all() -> None:
    ended: list[int] = []

    def body() -> None:
        try:
            if ddp.get_rank() == 1:
                raise ArithmeticError("not today")
            ddp.barrier()
        except Exception:
            assert ddp.get_rank() == 1  # the others' is none that they could take for their own
            raise
        finally:
            ended.append(ddp.get_rank())

    with pytest.raises(ArithmeticError, match="not today") as caught:
        run_ranks(3, body)
    assert caught.value.__notes__ == ["raised by rank 1 of 3"]
    assert caught.traceback[-1].name == "body"
    assert sorted(ended) == [0, 1]  # rank 2 had not begun
    assert not ddp.is_initialized()


def test_ranks_that_wait_for_each_other_are_named() -> None:
    def body() -> None:
        if ddp.get_rank() == 0:
            ddp.barrier()
        elif ddp.get_rank() == 1:
            ddp.recv(engine.zeros(1), 0)

    words = r"wait for each other.*rank 0 in .* \(.*test_testing.py:\d+\), rank 1 in Recv from rank 0 .*, rank 2 at the"
    with pytest.raises(RuntimeError, match=words):
        run_ranks(3, body)


def test_calls_that_do_not_fit_together() -> None:
    """As in a job: all ranks raise, each could catch it."""

    def body() -> str:
        with pytest.raises((ValueError, RuntimeError)) as caught:
            ddp.all_reduce(engine.zeros(2 + ddp.get_rank()))
        return str(caught.value)

    first, second = run_ranks(2, body)
    assert first == second
    assert "tensors differ between ranks" in first


@pytest.mark.parametrize("stuck", ["looking", "computing"])
def test_a_time_out_says_who_waits(stuck: str) -> None:
    over: list[bool] = []

    def body() -> None:
        if ddp.get_rank() == 0:
            ddp.barrier()
        elif stuck == "looking":
            work = ddp.irecv(engine.zeros(1), 0)
            while not work.is_completed():
                pass
        else:
            while not over:
                time.sleep(0.01)

    with pytest.raises(RuntimeError, match=r"not over after 0\.3 s: rank 0 in .*, rank 1 elsewhere") as caught:
        run_ranks(2, body, timeout=0.3)
    over.append(True)
    assert stuck == "looking" or "in body" in str(caught.value)
    assert run_ranks(2, ddp.get_rank) == [0, 1]


def test_arguments() -> None:
    with pytest.raises(ValueError, match="at least one rank, got 0"):
        run_ranks(0, list)


# --- what belongs to a rank -------------------------------------------------------------------------------------------


def test_each_rank_has_its_own_random_generator() -> None:
    """A copy of the caller's, as each process of a job begins with one seed; the caller's own is left alone."""
    engine.manual_seed(7)
    expected = engine.randn(3).tolist()
    engine.manual_seed(7)

    def body() -> list[float]:
        first = engine.randn(1 if ddp.get_rank() else 2).tolist()
        ddp.barrier()
        return first + engine.randn(2 if ddp.get_rank() else 1).tolist()

    assert run_ranks(3, body) == [expected] * 3
    assert engine.randn(3).tolist() == expected


def test_every_variable_of_a_rank_is_exchanged() -> None:
    """The lists and dictionaries of ddp's modules that are empty at first fill up while ranks work."""
    program = """
        import sys, types, weakref
        import ddp, ddp.testing
        from ddp.testing import turns
        taken = {id(one) for one in (*turns._DICTIONARIES, *turns._LISTS)}
        for name, module in sorted(sys.modules.items()):
            if name.startswith("ddp.") and not name.startswith("ddp.testing"):
                for key, value in vars(module).items():
                    if isinstance(value, (list, dict, set)) and not value and id(value) not in taken:
                        print(name, key)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True, timeout=60
    )
    # what the watchdog's rank, the main thread, waits for; processes that are stopped, and what is left of watchdogs
    # and of communicators whose ranks were lost, which threads have none of
    assert done.stdout.split("\n")[:-1] == [
        "ddp.watching.progress _waiting",
        "ddp.watching.standstill _stopped",
        "ddp.watching.watchdog _retired",
    ]


@pytest.mark.full
def test_without_mpi4py() -> None:
    program = """
        import sys
        sys.modules["mpi4py"] = None
        import engine, ddp
        from ddp.testing import run_ranks
        from tests.ddp.models import Weights, gradients
        from tests.ddp.testing.test_testing import collectives

        def body():
            net = ddp.DistributedDataParallel(Weights("a"))
            net(a=12.0 * ddp.get_rank()).backward()
            return gradients(net)["a"], collectives()["SUM"]

        print(run_ranks(3, body))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.stdout, done.stderr) == ("[(12.0, [6.0, 3.0]), (12.0, [6.0, 3.0]), (12.0, [6.0, 3.0])]\n", "")


@pytest.mark.full
def test_the_example() -> None:
    """`examples/unit_tests.py` is a file of tests."""
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", "examples/unit_tests.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
