"""`engine.profiler`, PyTorch's names for what `engine.trace` records."""

import json
from pathlib import Path
from typing import Any

import pytest

import engine
from engine.profiler import ProfilerAction, ProfilerActivity, profile, record_function, schedule
from engine.profiler import tensorboard_trace_handler as handler


def work() -> None:
    x = engine.ones(8, 8, requires_grad=True)
    with record_function("forward"):
        loss = (x @ x).relu().sum()
    loss.backward()


def test_operators_by_name(tmp_path: Path) -> None:
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        work()
        work()
    events = {event.key: event for event in profiler.key_averages()}
    assert events["relu"].count == 2
    assert events["forward"].count == 2
    assert events["forward"].cpu_time_total > events["forward"].self_cpu_time_total > 0
    assert events["forward"].cpu_time_total >= events["relu"].cpu_time_total
    assert {"MmBackward0", "ReluBackward0"} <= set(events)
    table = profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=3)
    assert len(table.splitlines()) == 5
    assert "Self CPU time total" in table
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    assert "forward" in {event["name"] for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]}
    work()  # is not recorded any more
    assert {event.key: event.count for event in profiler.key_averages()}["relu"] == 2


def test_a_schedule_says_which_steps_are_recorded(tmp_path: Path) -> None:
    plan = schedule(skip_first=1, wait=1, warmup=1, active=2, repeat=2)
    none, warmup, record, save = ProfilerAction
    once = [none, warmup, record, save]
    assert [plan(step) for step in range(10)] == [none, *once, *once, none]
    seen: list[Any] = []

    def ready(profiler: profile) -> None:
        seen.append({event.key: event.count for event in profiler.key_averages()})
        handler(str(tmp_path), "rank0")(profiler)

    with profile(schedule=plan, on_trace_ready=ready) as profiler:
        for _ in range(10):
            work()
            profiler.step()
    assert [counts["relu"] for counts in seen] == [2, 2]
    assert len(list(tmp_path.glob("rank0.*.pt.trace.json"))) == 2


def test_record_function_decorates_and_costs_nothing_outside() -> None:
    @record_function("mine")
    def mine(x: Any) -> Any:
        return x.exp()

    assert mine(engine.zeros(1)).item() == 1.0
    with profile() as profiler:
        mine(engine.zeros(1))
    assert [call.operator for call in profiler.events()] == ["mine", "exp"]


def test_what_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match="expected active > 0"):
        schedule(wait=1, warmup=1, active=0)
    with pytest.raises(NotImplementedError, match="only groups by name"):
        profile().key_averages(group_by_input_shape=True)
    with pytest.raises(AttributeError, match="itt"):
        engine.profiler.itt  # noqa: B018
