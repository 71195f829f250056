"""How far a save or load is: told while somebody waits for it."""

import time
from typing import Any

import pytest

import engine
from ddp import checkpoint
from ddp.checkpoint import progress, shard


@pytest.fixture(autouse=True)
def at_once(monkeypatch) -> None:
    monkeypatch.setattr(progress, "_QUIET", 0.0)
    monkeypatch.setattr(progress, "_PERIOD", 0.0)


def test_saves_loads_and_checks_say_how_far_they_are(tmp_path, capsys) -> None:
    state = {"weight": engine.zeros(1 << 19)}
    for doing, action in (
        ("writing", lambda: checkpoint.save(state, tmp_path / "a")),
        ("reading", lambda: checkpoint.load(state, tmp_path / "a")),
        ("verifying", lambda: checkpoint.verify(tmp_path / "a")),
    ):
        action()
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) > 1
        assert lines[-1] == f"checkpoint: {doing} {tmp_path / 'a'}: 0.0 of 0.0 GB of rank 0"


def test_of_what_is_written_meanwhile_only_who_waits_is_told(tmp_path, capsys, monkeypatch) -> None:
    write_all = shard._write_all
    with checkpoint.Manager(tmp_path / "a", {"weight": engine.zeros(1 << 17)}, every=1) as manager:
        manager.save(1)
        manager._disk._work.result()
        manager.wait()
        assert capsys.readouterr().err == ""

        def write_when_awaited(*arguments: Any) -> None:
            while not manager._disk._progress.awaited:
                time.sleep(0.001)
            write_all(*arguments)

        monkeypatch.setattr(shard, "_write_all", write_when_awaited)
        manager.save(2)
        manager.wait()
        assert f"checkpoint: writing {tmp_path / 'a' / 'step-00000002'}: " in capsys.readouterr().err
