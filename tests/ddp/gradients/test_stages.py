"""Every failure in every stage of every bucket: whatever it was, the next forward finds the wrapper usable."""

from collections import Counter
from functools import partial
from itertools import pairwise, product
from typing import Any

import pytest

import ddp
import engine
from ddp import DistributedDataParallel, Future, GradBucket
from ddp.gradients.bucket import Bucket
from ddp.gradients.stage import FOLLOWING, Stage
from tests.ddp.models import Weights, gradients, mean

NAMES = "cba"  # in the order in which gradients come; a bucket each
POSITIONS = range(len(NAMES))
IN_A_HOOK = ("before its sum", "after its start", "in its future", "another size")
FAILURES = [
    *product(("gradient", "optimizer", *IN_A_HOOK), POSITIONS),
    *product(("interrupt", "weight", "forward", "skip"), (0,)),
]


class Ways:
    """An observer of every stage that every bucket enters."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stages: dict[int, list[Stage]] = {}
        enter, forget = Bucket.enter, Bucket.forget

        def noting(bucket: Bucket, stage: Stage) -> None:
            self.stages.setdefault(id(bucket), [Stage.IDLE]).append(stage)
            enter(bucket, stage)

        def forgetting(bucket: Bucket) -> None:
            self.stages.setdefault(id(bucket), [Stage.IDLE]).append(Stage.IDLE)
            forget(bucket)

        monkeypatch.setattr(Bucket, "enter", noting)
        monkeypatch.setattr(Bucket, "forget", forgetting)

    def steps(self) -> Counter[tuple[Stage, Stage]]:
        """How often a stage followed another one."""
        return Counter(step for way in self.stages.values() for step in pairwise(way))


class Fault:
    """What is to go wrong with which bucket, while `now` says so."""

    def __init__(self, kind: str, position: int) -> None:
        self.kind = kind
        self.position = position
        self.now = False

    def check(self, kind: str, position: int = 0) -> None:
        if self.now and (kind, position) == (self.kind, self.position):
            raise KeyboardInterrupt if kind == "interrupt" else ArithmeticError("not today")

    def check_at(self, position: int, _: engine.Tensor) -> None:
        self.check("gradient", position)

    def hook(self, bucket: GradBucket) -> Future[engine.Tensor]:
        self.check("before its sum", bucket.index())
        future = bucket.average()
        self.check("after its start", bucket.index())

        def finish(future: Future[engine.Tensor]) -> engine.Tensor:
            self.check("in its future", bucket.index())
            wrong = self.now and (self.kind, self.position) == ("another size", bucket.index())
            return future.value()[:1] if wrong else future.value()

        return future.then(finish)


def made(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> DistributedDataParallel:
    net = DistributedDataParallel(Weights(*"abc"), bucket_cap_mb=1e-5)
    reducer = net.live_reducer()
    assert len(reducer.buckets.sizes()) == len(NAMES)
    if fault.kind in IN_A_HOOK:
        net.register_comm_hook(fault, Fault.hook)
    if fault.kind == "optimizer":  # where the bucket is summed

        def stepped(parameters: list[engine.Tensor]) -> None:
            (number,) = {NAMES.index(name) for name, own in net.module.named_parameters() if own is parameters[0]}
            fault.check("optimizer", number)

        reducer.on_summed = stepped
    if fault.kind == "interrupt":
        wait = reducer.buckets.transport.wait

        def interrupted(buffer: Any) -> None:
            fault.check("interrupt")
            wait(buffer)

        monkeypatch.setattr(reducer.buckets.transport, "wait", interrupted)
    net.module.register_forward_pre_hook(lambda *_: fault.check("forward"))
    for name, parameter in net.module.named_parameters():
        parameter.register_hook(partial(fault.check_at, NAMES.index(name)))
    return net


def step(net: DistributedDataParallel, factor: float) -> None:
    net.zero_grad()
    net(a=factor, b=2 * factor, c=12).backward()


def fail(net: DistributedDataParallel, fault: Fault, alike: bool) -> None:
    """A step that goes wrong on this rank, or on another one, which some failures do not tell it."""
    if fault.kind == "skip":
        net(a=1.0)  # a bad sample, noticed after forward, by all ranks
        return
    if fault.kind == "weight":
        net.set_gradient_weight(0)
    try:
        step(net, 12.0)
    except (ArithmeticError, RuntimeError, ValueError, KeyboardInterrupt):
        pass
    else:
        assert not fault.now
        assert not alike
    net.set_gradient_weight(1)


@pytest.mark.mpi(ranks=[1, 2, 3])
@pytest.mark.parametrize(("kind", "position"), FAILURES, ids=lambda value: str(value).replace(" ", "-"))
def test_the_next_forward_is_right(
    group: ddp.ProcessGroup, monkeypatch: pytest.MonkeyPatch, kind: str, position: int
) -> None:
    """On all ranks, with a good step between and without, and on the last rank only."""
    fault = Fault(kind, position)
    net, ways = made(fault, monkeypatch), Ways(monkeypatch)
    on_one_rank = kind not in ("weight", "forward", "skip")
    for failing in (*product("a", (True, True, False)), *product("l" * on_one_rank, (True, False, True, False))):
        who, goes_wrong = failing
        if goes_wrong:
            fault.now = who == "a" or group.rank == group.size() - 1
            fail(net, fault, alike=who == "a")
            fault.now = False
            continue
        step(net, 12.0 * group.rank)
        a = mean(group, lambda rank: 12 * rank)
        assert gradients(net) == {"a": a, "b": 2 * a, "c": 12}
    assert {way[-1] for way in ways.stages.values()} == {Stage.IDLE}
    taken = ways.steps()
    assert {(before, after) for before, after in taken if after not in FOLLOWING[before]} <= {
        (stage, Stage.IDLE) for stage in Stage
    }
    if kind == "gradient":  # sent late, with the news
        assert taken[Stage.FILLING, Stage.FAILED] == taken[Stage.FAILED, Stage.FLYING] >= 1


def test_the_walk_fails_in_every_stage() -> None:
    """Of the bucket at which it fails and of the others: what is filling, under way, summed, failed."""
    assert {stage for stages in FOLLOWING.values() for stage in stages} == set(Stage)
    assert {kind for kind, _ in FAILURES} >= {
        "gradient",
        "optimizer",
        "interrupt",
        "weight",
        "forward",
        "skip",
        *IN_A_HOOK,
    }


def test_a_bucket_goes_no_other_way() -> None:
    bucket = Bucket.__new__(Bucket)
    for before, after in product(Stage, Stage):
        bucket.stage = before
        if after in FOLLOWING[before]:
            bucket.enter(after)
            assert bucket.stage is after
        else:
            with pytest.raises(AssertionError, match=f"{before.name} cannot become {after.name}"):
                bucket.enter(after)
