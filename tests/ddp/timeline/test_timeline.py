"""`ddp.timeline`: times of made-up ranks, then of real ones of which one sleeps."""

import json
import re
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

import ddp
import engine
import engine.nn as nn
import engine.nn.functional as F
from ddp import DistributedDataParallel, hooks, timeline
from ddp.timeline.step_report import chrome_events, table, verdict
from ddp.timeline.step_times import (
    Blocked,
    BucketTrip,
    Piece,
    Record,
    Span,
    Step,
    clock_offsets,
    pieces,
    shifted,
    steps,
)
from ddp.timeline.step_times import step_ends as ends_of
from ddp.watching import progress
from engine.autograd import executor
from engine.optim import SGD, optimizer

ALL = {"all": (0, 1), "three": (0, 1, 2), "pair": (1, 2)}


def record(rank: int, blocked: list[Blocked], arrivals: dict[Any, float], end: float = 10.0, **more: Any) -> Record:
    """One step from 0 to `end`."""
    return Record(rank, 0.0, more.pop("phases", []), blocked, arrivals, ALL, synchronized=[(end, 0.5)], **more)


# --- clocks -----------------------------------------------------------------------------------------------------------


def test_clocks_are_bounded_by_barriers() -> None:
    """The truth, 100 s ahead, is within what is said; the tightest barriers of both sides count."""
    first = [(0.0, 1.0), (5.0, 5.5), (8.0, 8.1)]
    second = [(100.5, 101.1), (105.4, 105.6), (108.05, 108.2)]
    (same, exact), (ahead, wrong) = clock_offsets([first, second])
    assert (same, exact) == (0, 0)
    assert abs(ahead - 100) <= wrong
    assert wrong == pytest.approx((108.2 - 8.0 - (108.05 - 8.1)) / 2)


def test_clocks_that_may_be_equal_are_one_clock() -> None:
    assert clock_offsets([[(1.0, 2.0)], [(1.5, 2.5)]]) == [(0, 0), (0, 0)]
    assert clock_offsets([[]]) == [(0, 0)]


def test_a_shifted_record_is_on_the_other_clock() -> None:
    given = record(
        1,
        [Blocked(("all", 1), "b", 5, 6)],
        {("all", 1): 4},
        phases=[Span("forward", 1, 2)],
        buckets=[BucketTrip(1, "b", 3, 6, 7)],
    )
    moved = shifted(given, 100)
    assert (moved.began, moved.synchronized) == (-100, [(-90, 0.5)])
    assert (moved.phases, moved.blocked) == ([Span("forward", -99, -98)], [Blocked(("all", 1), "b", -95, -94)])
    assert (moved.arrivals, moved.buckets) == ({("all", 1): -96}, [BucketTrip(1, "b", -97, -94, -93)])


# --- who waits for whom -----------------------------------------------------------------------------------------------


def test_who_comes_last_is_waited_for_and_does_not_wait() -> None:
    early = record(0, [Blocked(("all", 1), "b", 3, 9)], {("all", 1): 2.5}, phases=[Span("backward", 1, 9.5)])
    late = record(1, [Blocked(("all", 1), "b", 8.5, 9)], {("all", 1): 8}, phases=[Span("backward", 1, 9.5)])
    blocked = pieces([early, late])
    assert blocked == [[Piece("b", 3, 8, 1), Piece("b", 8, 9, None)], [Piece("b", 8.5, 9, None)]]
    (waits,), (works,) = steps([early, late], blocked)
    assert (dict(waits.waiting), waits.transfer) == ({1: 5}, 1)
    assert (dict(works.waiting), works.transfer) == ({}, 0.5)
    assert waits.own == {"forward": 0, "backward": 2.5, "optimizer": 0, "rest": 1.5}
    assert works.own == {"forward": 0, "backward": 8, "optimizer": 0, "rest": 1.5}


def test_who_came_when_it_was_over_was_not_waited_for() -> None:
    """As another receiver of a broadcast; but clocks may be a little off."""
    waits = record(0, [Blocked(("three", 1), "b", 3, 5)], {("three", 1): 3})
    others = [record(1, [], {("three", 1): 4}), record(2, [], {("three", 1): 5.5})]
    assert pieces([waits, *others])[0] == [Piece("b", 3, 4, 1), Piece("b", 4, 5, None)]
    assert pieces([waits, *others], exactness=1)[0] == [Piece("b", 3, 5, 2)]


def test_what_is_not_known_is_left_out() -> None:
    """A meeting with a rank that has no timeline, or that came before it began."""
    waits = record(0, [Blocked(("three", 1), "b", 3, 5)], {("three", 1): 3})
    assert pieces([waits, record(1, [], {("three", 1): 4})])[0] == [Piece("b", 3, 5, None)]
    assert steps([waits], pieces([waits]))[0][0].transfer == 2


def test_who_is_late_because_of_another_is_not_to_blame() -> None:
    """Rank 0 waits for rank 1 from 2 to 8, rank 1 meanwhile, from 3 to 7, for rank 2."""
    records = [
        record(0, [Blocked(("all", 1), "sum", 2, 8)], {("all", 1): 2}),
        record(1, [Blocked(("pair", 1), "message", 3, 7)], {("pair", 1): 3, ("all", 1): 8}),
        record(2, [], {("pair", 1): 7}),
    ]
    blocked = pieces(records)
    assert blocked[0] == [Piece("sum", 2, 8, 1)]
    assert dict(steps(records, blocked)[0][0].waiting) == {1: 2, 2: 4}


def test_a_step_ends_with_its_optimizers() -> None:
    phases = [
        Span("forward", 0, 1),
        Span("backward", 1, 2),  # under no_sync
        Span("forward", 2, 3),
        Span("backward", 3, 4),  # synchronised at 3.9
        Span("optimizer", 4.2, 4.5),
        Span("optimizer", 4.6, 5),
        Span("forward", 6, 7),
        Span("backward", 7, 8),  # replayed: its end is that of its sums
        Span("backward", 9, 10),  # without an optimizer
    ]
    given = Record(0, 0.0, phases, synchronized=[(3.9, 0.0), (8, 0.0), (9.9, 0.0)])
    assert ends_of(given) == [5, 8, 10]
    assert [step.own["forward"] for step in steps([given], [[]])[0]] == [2, 1, 0]


# --- in words ---------------------------------------------------------------------------------------------------------


def made_up(waits: list[dict[int, float]], **own: float) -> list[Step]:
    seconds = {"forward": 0.1, "backward": 0.2, "optimizer": 0.0, "rest": 0.0} | own
    return [Step(i, i + 1.0, seconds, waiting, 0.01, 0.5) for i, waiting in enumerate(waits)]


def test_the_rank_that_the_others_wait_for_is_named() -> None:
    taken = [
        made_up([{2: 0.5}] * 9 + [{3: 0.4}]),
        made_up([{}] * 9 + [{3: 0.3}], backward=0.7),
        made_up([{2: 0.3}] * 9 + [{}]),
    ]
    found = verdict([1, 2, 3], taken)
    assert found.rank == 2
    assert found.text == (
        "The others wait for rank 2: 360 ms of a step's 1000 on average; it was the last one in 9 of 10 steps. "
        "It spends 700 ms in backward, the others 200."
    )
    loads = [made_up([{}] * 10, rest=0.5), made_up([{1: 0.4}] * 10)]
    assert verdict([1, 5], loads).text.endswith(
        " It spends 500 ms outside of forward, backward and optimizer, the others 0."
    )
    assert table([1, 2, 3], taken).splitlines()[2].split() == ["2", "1000", "0", "10", "100", "700", "0", "0", "50%"]


NOT_THE_SAME = "It is not always the same one: batches that differ in work, or a busy machine, would explain it."
TOO_FEW = "3 steps are too few to tell that from chance: record more."


@pytest.mark.parametrize(
    ("waits", "begin", "end"),
    [
        ([[{1: 0.5}, {}] * 5, [{}, {0: 0.5}] * 5], "The others wait most for rank 0: 250 ms", NOT_THE_SAME),
        (
            [[{1: 0.04}] * 10, [{}] * 10],
            "No rank stands out: the others wait most for rank 1, 40 ms",
            "10 of 10 steps.",
        ),
        ([[{1: 0.5}] * 3, [{}] * 3], "The others wait most for rank 1: 500 ms", TOO_FEW),
        ([[{1: 9.0}] + [{}] * 9, [{}] + [{0: 0.01}] * 9], "The others wait most for rank 1: 900 ms", NOT_THE_SAME),
    ],
    ids=["in turn", "little", "few steps", "once"],
)
def test_no_rank_is_named(waits: list[list[dict[int, float]]], begin: str, end: str) -> None:
    """That nobody stands out is said only where little is waited for anybody."""
    found = verdict([0, 1], [made_up(each) for each in waits])
    assert found.rank is None
    assert found.text.startswith(f"{begin} of a step's 1000 on average; it was the last one in ")
    assert found.text.endswith(end)


def test_a_rank_that_costs_much_is_named_though_another_one_is_last_as_often() -> None:
    """It sleeps in most steps; on a busy machine the other one is late by little in the rest."""
    taken = [made_up([{1: 0.5}] * 12 + [{}] * 8), made_up([{}] * 12 + [{0: 0.1}] * 8)]
    assert verdict([0, 1], taken).rank == 1


def test_nothing_to_compare() -> None:
    assert verdict([0], [made_up([{}] * 3)]).rank is None
    assert verdict([0, 1], [[], []]).text.startswith("Nothing can be said")


def test_events_of_a_trace() -> None:
    """Rows of made-up ranks: who waits, and a bucket on its way; in µs after the first rank began."""
    waits = [Blocked(("all", 1), "bucket", 4, 9)]
    first = record(
        0,
        waits,
        {("all", 1): 3},
        phases=[Span("forward", 1, 2), Span("backward", 2, 9.5)],
        buckets=[BucketTrip(1, "w to b", 3, 9, 9.25)],
    )
    second = shifted(record(1, [], {("all", 1): 8}), 1)
    blocked = pieces([first, second])
    events = chrome_events([first, second], blocked, steps([first, second], blocked))
    json.dumps(events)
    check_nesting(events)
    times = {(e["pid"], e["tid"], e["name"]): (e["ts"] / 1e6, e["dur"] / 1e6) for e in events if e["ph"] == "X"}
    assert times == {
        (0, 0, "step 1"): (1, 10),
        (0, 0, "forward"): (2, 1),
        (0, 0, "backward"): (3, 7.5),
        (0, 0, "waits for rank 1"): (5, 3),
        (0, 0, "transfer"): (8, 2),
        (0, 1, "w to b"): (4, 6.25),
        (0, 1, "sum"): (4, 6),
        (0, 1, "hand out"): (10, 0.25),
        (1, 0, "step 1"): (0, 10),
    }
    names = {(e["pid"], e["tid"], e["name"]): e["args"]["name"] for e in events if e["ph"] == "M"}
    assert names[1, 0, "process_name"] == "rank 1"
    assert (names[0, 0, "thread_name"], names[0, 1, "thread_name"]) == ("steps", "bucket 1")


# --- real ranks -------------------------------------------------------------------------------------------------------


class Sleeper(nn.Module):
    """One rank is slow in its forward, for so many seconds."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self._sleeps = ddp.get_rank() == rank
        self.seconds = 0.05

    def forward(self, x: engine.Tensor) -> engine.Tensor:
        if self._sleeps:
            time.sleep(self.seconds)
        return x


def build(sleeper: int = -1, **options: Any) -> tuple[DistributedDataParallel, SGD]:
    engine.manual_seed(0)
    layers = [Sleeper(sleeper), nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 16), nn.Linear(16, 3)]
    net = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=0.0005, **options)
    if sleeper >= 0:
        layers[0].seconds = max(0.05, 2 * slowest_step(*build()))
    return net, SGD(net.parameters(), lr=0.1)


def train(net: DistributedDataParallel, sgd: SGD, number: int, accumulate: bool = False) -> None:
    """Twice as many forwards where gradients are accumulated."""
    step = stepping(net, sgd)
    generator = engine.Generator().manual_seed(ddp.get_rank())
    for _ in range(number):
        x = engine.randn(4, 8, generator=generator)
        sgd.zero_grad()
        if accumulate:
            with net.no_sync():
                F.mse_loss(net(x), engine.zeros(4, 3)).backward()
        step(x)


def slowest_step(net: DistributedDataParallel, sgd: SGD) -> float:
    """Seconds, of a few: how long ranks that are not slow let each other wait, where others have the processors."""
    seconds = []
    for _ in range(6):
        began = time.perf_counter()
        train(net, sgd, 1)
        seconds.append(time.perf_counter() - began)
    return max(seconds[1:])


def stepping(net: DistributedDataParallel, sgd: SGD) -> Any:
    def step(x: engine.Tensor) -> None:
        F.mse_loss(net(x), engine.zeros(4, 3)).backward()
        sgd.step()

    return step


def saved(steps: timeline, folder: Path) -> list[dict[str, Any]]:
    """Events of the file; none where this rank has not written it."""
    path = folder / f"steps{ddp.get_rank()}.json"
    steps.save(path)
    assert path.exists() == (ddp.get_rank() == 0)
    return json.loads(path.read_text())["traceEvents"] if path.exists() else []


def check_nesting(events: list[dict[str, Any]]) -> None:
    """In each row, a time lies within another one or beside it."""
    rows = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            assert event["dur"] >= 0
            rows[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for spans in rows.values():
        outer: list[float] = []
        for begin, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while outer and outer[-1] <= begin + 1e-3:
                outer.pop()
            assert not outer or end <= outer[-1] + 1e-3
            outer.append(end)


@pytest.mark.mpi(ranks=[1, 2, 3, 4])
def test_a_rank_that_sleeps_is_named(group: ddp.ProcessGroup, tmp_path: Path) -> None:
    slow, number = group.size() - 1, 11
    net, sgd = build(slow)
    reducer = net.live_reducer()
    buckets = len(reducer.buckets.sizes())
    with timeline(net) as watched:
        train(net, sgd, 1)
        buckets += (number - 1) * len(reducer.buckets.sizes())  # planned anew after the first backward
        train(net, sgd, number - 1)
    assert buckets >= 2 * number
    assert watched.straggler == (slow if group.size() > 1 else None)
    lines = watched.summary().splitlines()
    assert lines[0].startswith(f"ms, medians of steps 2 to {number};")
    assert lines[0].endswith("one clock for all ranks")
    assert [line.split()[0] for line in lines[2:-1]] == [str(rank) for rank in range(group.size())]
    if group.size() > 1:
        assert f"wait for rank {slow}: " in lines[-1]
        assert "ms in forward, the others " in lines[-1]
    events = saved(watched, tmp_path)
    check_nesting(events)
    kinds = Counter((event["pid"], event["cat"], event["name"]) for event in events if event["ph"] == "X")
    for rank in range(group.size()) if events else ():
        assert sum(count for (pid, kind, _), count in kinds.items() if (pid, kind) == (rank, "bucket")) == buckets
        phases = [kinds[rank, "phase", name] for name in ("forward", "backward", "optimizer")]
        assert phases == [number] * 3
        assert all(kinds[rank, "step", f"step {i}"] == 1 for i in range(1, number + 1))
        assert (kinds[rank, "blocked", f"waits for rank {slow}"] > 0) == (rank != slow)


@pytest.mark.mpi(ranks=[2, 3])
def test_ranks_with_clocks_of_their_own(
    group: ddp.ProcessGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on several machines. On the clock of the first rank no sum is over before the last rank has come to it."""

    def clock() -> float:
        return time.perf_counter() + 1000 * group.rank

    net, sgd = build(0)
    train(net, sgd, 1)
    for module in ("ddp.timeline.recorder", "ddp.gradients.reducer"):
        monkeypatch.setattr(sys.modules[module], "perf_counter", clock)
    with timeline(net) as watched:
        train(net, sgd, 10)
    head, *_, last = watched.summary().splitlines()
    found = re.fullmatch(r".*; clocks aligned to within (\d+) µs", head)
    assert found is not None
    assert watched.straggler == 0, last
    events = saved(watched, tmp_path)
    check_nesting(events)
    sums: dict[Any, list[tuple[float, float]]] = defaultdict(list)
    for event in events:
        if event["name"] == "sum":
            sums[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for bucket in range(1, len(net.live_reducer().buckets.sizes()) + 1) if events else ():
        for trips in zip(*(sums[rank, bucket] for rank in range(group.size())), strict=True):
            assert max(begin for begin, _ in trips) <= min(end for _, end in trips) + 2 * int(found[1]) + 2


@pytest.mark.mpi(ranks=[1, 3])
@pytest.mark.parametrize("hook", [None, hooks.bf16_compress_hook])
def test_steps_that_accumulate_and_a_hook(group: ddp.ProcessGroup, tmp_path: Path, hook: Any) -> None:
    """The numbers are those without a timeline; a step has all its forwards."""
    weights = []
    for watch in (False, True):
        net, sgd = build(gradient_as_bucket_view=False)
        if hook is not None:
            net.register_comm_hook(None, hook)
        train(net, sgd, 1)  # from now on buckets stay as they are
        if watch:
            with timeline(net) as watched:
                train(net, sgd, 5, accumulate=True)
        else:
            train(net, sgd, 5, accumulate=True)
        weights.append([parameter.detach().numpy().tobytes() for parameter in net.parameters()])
    assert weights[0] == weights[1]
    events = saved(watched, tmp_path)
    check_nesting(events)
    mine = Counter(event["name"] for event in events if event["pid"] == 0)
    if events:
        assert [mine[name] for name in ("forward", "backward", "optimizer", "step 5", "step 6")] == [10, 10, 5, 1, 0]
        assert sum(event.get("cat") == "bucket" and event["pid"] == 0 for event in events) == 5 * len(
            net.live_reducer().buckets.sizes()
        )


@pytest.mark.mpi(ranks=[1, 2])
def test_a_closure_is_part_of_the_optimizer(group: ddp.ProcessGroup, tmp_path: Path) -> None:
    net, sgd = build()

    def closure() -> engine.Tensor:
        sgd.zero_grad()
        loss = F.mse_loss(net(engine.ones(4, 8)), engine.zeros(4, 3))
        loss.backward()
        return loss

    with timeline(net) as watched:
        for _ in range(3):
            sgd.step(closure)
    events = saved(watched, tmp_path)
    check_nesting(events)
    if events:
        mine = Counter(event["name"] for event in events if event["pid"] == 0)
        names = ("forward", "backward", "optimizer", "step 3", "step 4")
        assert [mine[name] for name in names] == [0, 0, 3, 1, 0]


@pytest.mark.mpi(ranks=[1, 2])
def test_replayed_steps(group: ddp.ProcessGroup, tmp_path: Path) -> None:
    """Recorded under the timeline, replayed under it and after it: the numbers of eager steps."""
    weights = []
    for compiled in (False, True):
        net, sgd = build()
        step = stepping(net, sgd)
        if compiled:
            step = engine.compile(step)
        x = engine.ones(4, 8) * group.rank
        with timeline(net) as watched:
            for _ in range(6):
                step(x)
        for _ in range(3):
            step(x)
        weights.append([parameter.detach().numpy().tobytes() for parameter in net.parameters()])
    assert weights[0] == weights[1]
    assert sum(len(entry.programs) for entry in step._entries.values()) >= 1
    events = saved(watched, tmp_path)
    check_nesting(events)
    mine = Counter(event["name"] for event in events if event["pid"] == 0)
    if events:
        assert mine["forward"] < 6
        assert [mine[name] for name in ("backward", "optimizer", "step 6")] == [6, 6, 1]


@pytest.mark.mpi(ranks=[1, 2])
def test_everything_is_as_before(group: ddp.ProcessGroup) -> None:
    net, sgd = build()
    train(net, sgd, 2)
    reducer = net.live_reducer()

    def objects() -> list[object]:
        own = [vars(reducer).get(name) for name in ("observer", "_buckets", "_release", "poll")]
        hooks = [dict(kept) for kept in (executor.watchers, optimizer._global_post_hooks)]
        watching = [progress._waiting.observer, net.around_forward]
        return [*own, *watching, *hooks, set(vars(net)), set(vars(reducer))]

    before, pre_hooks = objects(), dict(optimizer._global_pre_hooks)
    with timeline(net):
        train(net, sgd, 2)
        assert progress._waiting.observer is not None
        assert reducer.observer is not None
        with pytest.raises(RuntimeError, match="another one is active"):
            timeline(net).__enter__()
    broken = timeline(net)
    with pytest.raises(ZeroDivisionError), broken:
        raise ZeroDivisionError
    with pytest.raises(RuntimeError, match="nothing to show before its block has ended, or after an exception"):
        broken.summary()
    after = objects()
    assert all(a is b for a, b in zip(before[:6], after[:6], strict=True))
    assert before[6:] == after[6:]
    assert pre_hooks == optimizer._global_pre_hooks
    with timeline(net) as empty:
        pass
    assert empty.straggler is None


@pytest.mark.mpi(ranks=[1, 2])
def test_printed(group: ddp.ProcessGroup) -> None:
    """What it knows by then."""
    net, sgd = build()
    steps = timeline(net)
    assert repr(steps) == str(steps) == "<ddp.timeline: not entered>"
    with steps:
        assert repr(steps) == "<ddp.timeline: recording, 0 steps so far>"
        train(net, sgd, 2)
        assert repr(steps) == "<ddp.timeline: recording, 2 steps so far>"
    assert repr(steps).startswith("<ddp.timeline: ended, 2 steps; ")
    assert str(steps) == steps.summary()
    with pytest.raises(ArithmeticError), steps:
        raise ArithmeticError
    assert repr(steps) == "<ddp.timeline: an exception came, nothing was compared>"


def test_only_for_a_wrapped_module() -> None:
    with pytest.raises(TypeError, match="expected a DistributedDataParallel, got Linear"):
        timeline(nn.Linear(1, 1))  # type: ignore[arg-type]
