"""Manager: generations while training goes on, the newest kept, errors on every rank, the newest found again."""

import logging
import os
import signal
from pathlib import Path
from typing import Any

import pytest

import ddp
import engine
from ddp import checkpoint
from ddp.checkpoint import shard
from ddp.testing import on_ranks, run_ranks

FULL = OSError(28, "No space left on device")


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def train(folder: Path, steps: range, **options: Any) -> dict[str, Any]:
    state = {"weight": engine.zeros(1 << 19)}  # large enough to be cut
    with checkpoint.Manager(folder, state, **({"every": 2} | options)) as manager:
        assert manager.restore() == steps.start
        for step in steps:
            state["weight"] += step + 1
            manager.step(step + 1)
    return state


@on_ranks(1, 3)
def test_keeps_the_newest_and_continues(tmp_path) -> None:
    folder = tmp_path / str(ddp.get_world_size())
    train(folder, range(7), keep=2)
    assert [path.name for path in sorted(folder.iterdir())] == ["step-00000004", "step-00000006"]
    state = train(folder, range(6, 9), keep=2)
    assert state["weight"][0].item() == sum(range(1, 10))
    assert [path.name for path in sorted(folder.iterdir())] == ["step-00000006", "step-00000008"]


@on_ranks(2)
def test_the_state_may_change_while_it_is_written(tmp_path) -> None:
    state = {"weight": engine.zeros(1 << 20)}
    with checkpoint.Manager(tmp_path / "a", state, every=1) as manager:
        manager.step(1)
        state["weight"] += 1
    checkpoint.load(state, tmp_path / "a")
    assert not state["weight"].any()


def step_often(manager: checkpoint.Manager) -> None:
    for _ in range(1000):
        manager.step(2)


def test_a_writers_error_comes_at_the_next_step_on_every_rank(tmp_path, monkeypatch) -> None:
    """And nothing of that generation stays; the ones before it do, and later ones are written."""
    write = shard.write

    def full_on_rank_one(path: Path, *arguments: Any, **keywords: Any) -> Any:
        if "step-00000002" in str(path) and path.name == "00001.safetensors":
            path.write_bytes(b"begun")
            raise FULL
        return write(path, *arguments, **keywords)

    monkeypatch.setattr(shard, "write", full_on_rank_one)

    def body() -> None:
        with checkpoint.Manager(tmp_path / "a", {"weight": engine.zeros(100)}, every=1) as manager:
            manager.step(1)
            manager.wait()
            manager.step(2)
            with pytest.raises(OSError, match="No space left") as error:
                step_often(manager)
            assert ("rank 1" in str(error.value)) == (ddp.get_rank() != 1)
            assert manager.all_steps() == [1]
            manager.save(3)
            manager.wait()
            assert manager.all_steps() == [3, 1]

    run_ranks(3, body)
    assert not [name for name in names(tmp_path) if "00000002" in name]


def test_a_second_save_waits_or_replaces_the_first(tmp_path) -> None:
    def body(busy: str) -> list[int]:
        with checkpoint.Manager(tmp_path / busy, {"w": engine.zeros(8 << 20)}, every=1, busy=busy) as manager:
            for step in range(1, 4):
                manager.save(step)
            manager.wait()
            return manager.all_steps()

    assert run_ranks(2, lambda: body("wait"))[0] == [3, 2, 1]
    found = run_ranks(2, lambda: body("replace"))[0]
    assert found[0] == 3
    assert not [name for name in names(tmp_path) if name.endswith("partial")]


@on_ranks(1, 2)
def test_what_dead_writers_left_is_named_and_removed(tmp_path, caplog) -> None:
    folder = tmp_path / str(ddp.get_world_size())
    train(folder, range(4))
    if ddp.get_rank() == 0:
        left = folder / "step-00000006"
        left.mkdir()
        (left / "00000.safetensors").write_bytes(b"half")
        (left / ".manifest.json.0a1b2c3d.partial").touch()
        (folder / "notes.txt").touch()
    ddp.barrier()
    with caplog.at_level(logging.WARNING):
        train(folder, range(4, 5))
    assert "step-00000006 was not complete" in caplog.text
    assert [path.name for path in sorted(folder.iterdir())] == ["notes.txt", "step-00000002", "step-00000004"]


@pytest.mark.parametrize("victim", ["manifest.json", "00000.safetensors", "00001.safetensors"])
def test_a_damaged_one_is_named_and_an_older_one_taken(tmp_path, caplog, victim) -> None:
    """Bit rot: one changed byte; and the damaged one goes when the next is complete."""
    run_ranks(2, lambda: train(tmp_path / "a", range(4)))
    path = tmp_path / "a" / "step-00000004" / victim
    content = bytearray(path.read_bytes())
    content[-7] ^= 1
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        states = run_ranks(3, lambda: train(tmp_path / "a", range(2, 5)))
    assert f"step-00000004/{victim}" in caplog.text
    assert states[0]["weight"][0].item() == sum(range(1, 6))
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == ["step-00000002", "step-00000004"]
    run_ranks(1, lambda: train(tmp_path / "a", range(4, 5)))


def test_none_that_can_be_read_is_no_fresh_start(tmp_path) -> None:
    train(tmp_path / "a", range(2))
    os.truncate(tmp_path / "a" / "step-00000002" / "00000.safetensors", 10)
    with pytest.raises(RuntimeError, match="none of those in"):
        train(tmp_path / "a", range(2))


def test_a_folder_with_later_steps_is_refused(tmp_path) -> None:
    train(tmp_path / "a", range(4))
    manager = checkpoint.Manager(tmp_path / "a", {"weight": engine.zeros(10)}, every=1)  # no restore
    with manager, pytest.raises(FileExistsError, match="one of step 4, and this is step 1"):
        manager.step(1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_writes_a_last_one(tmp_path, number) -> None:
    before = signal.getsignal(number)
    state = {"weight": engine.zeros(10)}

    def body() -> None:
        with checkpoint.Manager(tmp_path / "a", state, every=100) as manager:
            manager.step(1)
            os.kill(os.getpid(), number)
            manager.step(2)

    with pytest.raises(SystemExit) as ended:
        body()
    assert ended.value.code == 128 + number
    assert signal.getsignal(number) == before
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["step-00000002"]


def test_an_exception_gives_up_what_is_under_way(tmp_path) -> None:
    def body() -> None:
        with checkpoint.Manager(tmp_path / "a", {"w": engine.zeros(4 << 20)}, every=1) as manager:
            manager.step(1)
            raise KeyError("somewhere in training")

    with pytest.raises(KeyError):
        body()
    for path in (tmp_path / "a").iterdir():  # it may have been complete already
        assert (path / "manifest.json").exists()


@on_ranks(2)
def test_memory_first(tmp_path) -> None:
    """A job that ended without a word goes on from its hosts' memory, where that is newer."""
    folder = tmp_path / "a"
    state = {"weight": engine.zeros(1000)}
    manager = checkpoint.Manager(folder, state, every=4, memory_every=1)
    memory = manager._memory.place.folder
    for step in range(1, 7):
        state["weight"] += step
        manager.step(step)
    manager.wait()
    again = {"weight": engine.zeros(1000)}
    with checkpoint.Manager(folder, again, every=4, memory_every=1) as later:
        assert later.restore() == 6
        assert again["weight"][0].item() == 21
    assert not memory.exists()
    manager._leave()
    with checkpoint.Manager(folder, again, every=4) as later:
        assert later.restore() == 4


@on_ranks(1)
def test_refused(tmp_path) -> None:
    for options, text in (({"every": 0}, "every"), ({"keep": 0}, "keep"), ({"busy": "ignore"}, "busy")):
        with pytest.raises(ValueError, match=text):
            checkpoint.Manager(tmp_path, {}, **({"every": 1} | options))
