"""After an error that somebody catches the wrapper is usable at the next forward, with the right gradients."""

from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

import pytest

import ddp
import engine
from ddp import DistributedDataParallel, Future, GradBucket
from ddp.gradients.stage import Stage
from ddp.transport import TRANSPORTS
from engine.optim import SGD
from tests.ddp.models import Weights, gradients, mean

# MiB of a bucket, by the number of buckets that three parameters of 12 bytes then have
CAPS = {1: 25.0, 2: 24 / 2**20, 3: 1e-5}
BUCKETS = pytest.mark.parametrize("buckets", CAPS)
TRANSPORT = pytest.mark.parametrize("transport", ["own", "mpi"])

IN_HOOKS = ("the hook raises", "the hook raises after a start", "its future raises", "its future has another size")
IN_BACKWARD = tuple(f"at the gradient of {name}" for name in "cba")  # in the order in which they come
ERRORS: dict[str, tuple[type[Exception], str]] = {
    "all weights are 0": (ValueError, "all ranks have weight 0"),
    "its future has another size": (RuntimeError, "expected the future of a Tensor of .* elements"),
}


class Fault:
    """What goes wrong, while `now` says so."""

    def __init__(self) -> None:
        self.now = ""

    def check(self, what: str, *_: Any) -> None:
        if self.now == what:
            raise ArithmeticError("not today")


def hook(fault: Fault, bucket: GradBucket) -> Future[engine.Tensor]:
    fault.check("the hook raises")
    future = bucket.average()
    fault.check("the hook raises after a start")

    def finish(future: Future[engine.Tensor]) -> engine.Tensor:
        fault.check("its future raises")
        return future.value()[:1] if fault.now == "its future has another size" else future.value()

    return future.then(finish)


def made(group: ddp.ProcessGroup, buckets: int, what: str, **options: Any) -> tuple[DistributedDataParallel, Fault]:
    net = DistributedDataParallel(Weights(*"abc"), bucket_cap_mb=CAPS[buckets], **options)
    fault = Fault()
    if what in IN_HOOKS:
        net.register_comm_hook(fault, hook)
    net.module.register_forward_pre_hook(partial(fault.check, "in forward"))
    for name, parameter in net.module.named_parameters():
        parameter.register_hook(partial(fault.check, f"at the gradient of {name}"))
    assert len(net.reducer.buckets.all) == buckets
    return net, fault


def step(net: DistributedDataParallel, factor: float) -> None:
    net.zero_grad()
    net(a=factor, b=2 * factor, c=12).backward()


def check_step(group: ddp.ProcessGroup, net: DistributedDataParallel) -> None:
    """The next step is right."""
    step(net, 12.0 * group.rank)
    a = mean(group, lambda rank: 12 * rank)
    assert gradients(net) == {"a": a, "b": 2 * a, "c": 12}
    assert {bucket.stage for bucket in net.reducer.buckets.all} == {Stage.IDLE}


@pytest.mark.mpi(ranks=[1, 2])
@TRANSPORT
@BUCKETS
@pytest.mark.parametrize("what", [*IN_HOOKS, *IN_BACKWARD, "in forward", "all weights are 0"])
def test_of_all_ranks(group, monkeypatch, what, buckets, transport) -> None:
    if transport != "own" and group.size() > 1:
        monkeypatch.setattr(group, "_transport", TRANSPORTS[transport](group.comm))
    net, fault = made(group, buckets, what)
    kind, words = ERRORS.get(what, (ArithmeticError, "not today"))
    for fails in (True, False, True, True, False, False):
        if not fails:
            check_step(group, net)
            continue
        fault.now = what
        net.set_gradient_weight(0 if what == "all weights are 0" else 1)
        with pytest.raises(kind, match=words):
            step(net, 12.0)
        fault.now = ""
        net.set_gradient_weight(1)


@pytest.mark.mpi(ranks=[2])
@TRANSPORT
@BUCKETS
@pytest.mark.parametrize("what", [*IN_HOOKS, *IN_BACKWARD[1:]])
def test_of_one_rank(group, monkeypatch, what, buckets, transport) -> None:
    """That rank raises its own error; the others are told, unless it came after their sums."""
    if transport != "own":
        monkeypatch.setattr(group, "_transport", TRANSPORTS[transport](group.comm))
    net, fault = made(group, buckets, what)
    if group.rank == 1:
        outcome: Any = pytest.raises(ERRORS.get(what, (ArithmeticError,))[0])
    elif what.startswith("its future"):
        outcome = nullcontext()
    else:
        outcome = pytest.raises(RuntimeError, match="an exception ended the backward of rank 1")
    for _ in range(2):
        fault.now = what if group.rank == 1 else ""
        with outcome:
            step(net, 12.0)
        fault.now = ""
        check_step(group, net)


@pytest.mark.mpi(ranks=[1, 2])
def test_an_error_of_every_bucket_is_told_once_for_all(group) -> None:
    net, _ = made(group, 3, "")

    def fail(_: object, bucket: GradBucket) -> Future[engine.Tensor]:
        def finish(_: object) -> engine.Tensor:
            raise ArithmeticError(f"bucket {bucket.index()}")

        return bucket.average().then(finish)

    net.register_comm_hook(None, fail)
    with pytest.raises(ArithmeticError, match="bucket 0") as caught:
        step(net, 12.0)
    notes = [note for note in caught.value.__notes__ if note.startswith("another bucket")]
    assert notes == [f"another bucket: ArithmeticError: bucket {number}" for number in (1, 2)]


@pytest.mark.mpi(ranks=[1, 2])
@BUCKETS
def test_an_interrupted_wait_is_taken_up_again(group, monkeypatch, buckets) -> None:
    """Ctrl-C in a notebook: the sum is still under way."""
    net, _ = made(group, buckets, "")
    transport = net.reducer.buckets.transport

    def interrupt(_: object) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    for _ in range(2):
        monkeypatch.setattr(transport, "wait", interrupt)
        with pytest.raises(KeyboardInterrupt):
            step(net, 12.0)
        check_step(group, net)


@pytest.mark.mpi(ranks=[2])
def test_what_a_hook_makes_of_a_failed_backward_is_a_warning(group) -> None:
    """Where the exception that ended it has been raised already."""
    net, fault = made(group, 3, IN_HOOKS[0])
    fault.now = "at the gradient of b" if group.rank == 1 else ""
    with pytest.raises(ArithmeticError if group.rank == 1 else RuntimeError):
        step(net, 12.0)
    fault.now = "its future raises" if group.rank == 1 else ""
    with pytest.warns(RuntimeWarning, match="had ended: ArithmeticError") if group.rank == 1 else nullcontext():
        net(a=1.0)
    fault.now = ""
    check_step(group, net)


@pytest.mark.mpi(ranks=[1, 2])
@BUCKETS
def test_with_an_optimizer_in_backward(group, buckets) -> None:
    """What cannot be averaged steps nothing."""
    net, _ = made(group, buckets, "")
    ddp.step_in_backward(SGD(net.parameters(), lr=1.0), net)
    for _ in range(2):
        before = [parameter.tolist() for parameter in net.parameters()]
        net.set_gradient_weight(0)
        with pytest.raises(ValueError, match="all ranks have weight 0"):
            step(net, 12.0)
        net.set_gradient_weight(1)
        assert [parameter.tolist() for parameter in net.parameters()] == before
        step(net, 12.0)
        steps = [[x - y for x, y in zip(b, p.tolist(), strict=True)]
                 for b, p in zip(before, net.parameters(), strict=True)]  # fmt: skip
        assert steps == [[12.0] * 3, [24.0] * 3, [12.0] * 3]


@pytest.mark.mpi(ranks=[2])
def test_of_the_last_step_under_join(group) -> None:
    """The rank that fails and is through next tells the others before it votes."""
    net, fault = made(group, 3, "")
    with net.join():
        for number in range(2 if group.rank == 1 else 3):
            fault.now = "at the gradient of b" if group.rank == number == 1 else ""
            with suppress(ArithmeticError) if group.rank == 1 else nullcontext():
                if group.rank == 0 and number == 1:
                    with pytest.raises(RuntimeError, match="the backward of rank 1"):
                        step(net, 12.0)
                else:
                    step(net, 12.0)
    if group.rank == 0:
        assert gradients(net) == {"a": 6.0, "b": 12.0, "c": 6.0}
    fault.now = ""
    check_step(group, net)
