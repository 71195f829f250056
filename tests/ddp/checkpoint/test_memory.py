"""Checkpoints in the hosts' memory: taken first where they are newer, from another host's where one's own has none."""

import logging
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ddp
import engine
from ddp import checkpoint
from ddp.checkpoint import places
from ddp.checkpoint.agreeing import ranks_of
from ddp.testing import run_ranks
from engine import nn

STEPS = 6  # of a job that ends without a word; on disk is the fourth


@pytest.fixture
def hosts(tmp_path, monkeypatch) -> list[Path]:
    """Of the memory of two hosts: ranks 0 and 1 are on the first, rank 2 on the second."""
    folders = [tmp_path / "first", tmp_path / "second"]

    def in_memory(folder: Path, group: ddp.ProcessGroup) -> places.Place:
        return places.Place(folders[group.rank // 2], (0, 0, 2)[: group.size()], False)

    monkeypatch.setattr(places, "in_memory", in_memory)
    return folders


@pytest.fixture
def host(tmp_path) -> Iterator[Path]:
    """The memory of this one."""
    folder = places.in_memory(tmp_path / "disk", ranks_of(None)).folder
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def made(zero: bool) -> dict[str, Any]:
    """A model with a large parameter, that is cut, and a buffer; its optimizer."""
    model = nn.Module()
    model.register_parameter("weight", nn.Parameter(engine.zeros(1 << 19)))
    model.register_buffer("mean", engine.full((5,), float(ddp.get_rank())))
    parameters = [model.weight, nn.Parameter(engine.zeros(3)), nn.Parameter(engine.zeros(2))]  # one a rank
    if zero:
        return {"model": model, "optimizer": ddp.ZeroRedundancyOptimizer(parameters, engine.optim.AdamW)}
    return {"model": model, "optimizer": engine.optim.AdamW(parameters)}


def train_step(state: dict[str, Any], step: int) -> None:
    for group in state["optimizer"].param_groups:
        for parameter in group["params"]:
            parameter.grad = engine.full(parameter.shape, float(step))
    state["optimizer"].step()


def train(folder: Path, zero: bool) -> None:
    """A job that ends without a word."""
    state = made(zero)
    manager = checkpoint.Manager(folder, state, every=4, memory_every=1)
    for step in range(1, STEPS + 1):
        train_step(state, step)
        manager.step(step)
    manager.wait()
    manager._leave()


def values(state: dict[str, Any]) -> list[Any]:
    """What every rank has."""
    return [each.unique().tolist() for each in (state["model"].weight, state["model"].mean)]


def undisturbed() -> list[Any]:
    """What there is after all steps."""
    state = made(False)
    for step in range(1, STEPS + 1):
        train_step(state, step)
    return values(state)


def go_on(folder: Path, zero: bool) -> tuple[int, list[Any]]:
    """The step that another job begins with, and what it has then."""
    state = made(zero)
    with checkpoint.Manager(folder, state, every=4, memory_every=1) as manager:
        step = manager.restore()
        found = values(state)
        manager.save(step + 1)
        manager.step(step + 1)
    return step, found


def change(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


HARMS: dict[str, Callable[[Path], None]] = {
    "changed": lambda generation: change(generation / "00001.safetensors"),
    "gone": lambda generation: (generation / "00001.safetensors").unlink(),
    "cut": lambda generation: os.truncate(generation / "00001.safetensors", 5000),
    "manifest changed": lambda generation: change(generation / "manifest.json"),
    "manifest gone": lambda generation: (generation / "manifest.json").unlink(),
    "all gone": lambda generation: shutil.rmtree(generation),
}


@pytest.mark.parametrize(
    "harm", ["changed", "gone", *(pytest.param(harm, marks=pytest.mark.full) for harm in [*HARMS][2:])]
)
def test_memory_of_a_rank_that_is_damaged_or_gone_is_named_and_the_disks_taken(tmp_path, caplog, host, harm) -> None:
    """One of an older step; and what follows is kept in memory again, which is given back at the end."""
    run_ranks(2, lambda: train(tmp_path / "disk", True))
    generation = host / f"step-{STEPS:08d}"
    assert [path.name for path in host.iterdir()] == [generation.name]
    HARMS[harm](generation)
    with caplog.at_level(logging.WARNING):
        found = run_ranks(2, lambda: go_on(tmp_path / "disk", True))
    assert {step for step, _ in found} == {4}
    assert len({str(values) for _, values in found}) == 1
    assert (str(generation) in caplog.text) == (harm != "all gone")
    assert not host.exists()


def test_what_memory_lacks_of_the_same_step_comes_from_the_disk(tmp_path, caplog, host) -> None:
    """On every rank, whichever of them checks it."""

    def write() -> None:
        manager = checkpoint.Manager(tmp_path / "disk", {"weight": engine.ones(1 << 19)}, every=2, memory_every=2)
        manager.step(2)
        manager.wait()
        manager._leave()

    def read() -> bool:
        state: dict[str, Any] = {"weight": None}
        with checkpoint.Manager(tmp_path / "disk", state, every=2, memory_every=2) as manager:
            assert manager.restore() == 2
        return bool((state["weight"] == 1).all())

    run_ranks(2, write)
    change(host / "step-00000002" / "00000.safetensors")
    with caplog.at_level(logging.WARNING):
        assert run_ranks(2, read) == [True, True]
    assert f"taken from {tmp_path / 'disk' / 'step-00000002'}" in caplog.text


def test_nobody_else_can_read_a_hosts_memory(tmp_path, host) -> None:
    assert host.stat().st_mode & 0o777 == 0o700
    host.chmod(0o750)
    with pytest.raises(RuntimeError, match="others can read it"):
        checkpoint.Manager(tmp_path / "disk", {}, every=1, memory_every=1)


@pytest.mark.parametrize(
    ("zero", "lost"),
    [
        (False, 0),
        (True, 1),
        *(pytest.param(*both, marks=pytest.mark.full) for both in ((False, None), (False, 1), (True, None), (True, 0))),
    ],
)
def test_a_host_that_comes_anew_takes_the_others(tmp_path, caplog, hosts, zero, lost) -> None:
    """All that ranks hold alike is on each host; what is divided (ZeRO) is on all of them together only."""
    run_ranks(3, lambda: train(tmp_path / "disk", zero))
    if lost is not None:
        shutil.rmtree(hosts[lost])
    expected = 4 if zero and lost is not None else STEPS
    with caplog.at_level(logging.WARNING):
        found = run_ranks(3, lambda: go_on(tmp_path / "disk", zero))
    assert {step for step, _ in found} == {expected}
    assert {str(values) for _, values in found} == {str(found[0][1])}
    assert found[0][1][1] == [0.0]  # buffers are rank 0's
    assert ("an older checkpoint is tried" in caplog.text) == (expected == 4)
    assert not any(folder.exists() for folder in hosts)


def test_a_host_without_room_leaves_the_others_as_they_were(tmp_path, hosts) -> None:
    """All raise, and what the other one has begun is gone: when there is room, the same step is kept."""
    obstacle = hosts[1] / "step-00000001"
    hosts[1].mkdir()
    obstacle.write_text("in the way")

    def body() -> None:
        manager = checkpoint.Manager(tmp_path / "disk", {"weight": engine.ones(3)}, every=4, memory_every=1)
        with pytest.raises(OSError, match="step-00000001"):
            manager.step(1)
        ddp.barrier()
        assert not list(hosts[0].iterdir())
        if ddp.get_rank() == 2:
            obstacle.unlink()
        ddp.barrier()
        manager.step(1)
        manager.close()

    run_ranks(3, body)


def test_the_hosts_that_are_left_go_on(tmp_path, hosts) -> None:
    """One of two does not come back: the other one's ranks have all."""
    run_ranks(3, lambda: train(tmp_path / "disk", False))
    whole = run_ranks(1, undisturbed)[0]
    shutil.rmtree(hosts[1])
    assert run_ranks(2, lambda: go_on(tmp_path / "disk", False)) == [(STEPS, whole)] * 2
