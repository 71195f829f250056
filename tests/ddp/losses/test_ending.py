"""Whether a rank that fails ends alone."""

import threading
from types import SimpleNamespace

import pytest

from ddp.losses import ending


def test_the_end_of_another_is_a_loss_unless_all_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    noticed = threading.Event()
    noticed.set()
    monkeypatch.setattr(ending, "watching", lambda: SimpleNamespace(noticed=noticed, working=[0, 1]))
    monkeypatch.setattr(ending, "_agreed", False)
    assert not ending.dies_alone("sys.exit(1)", "")
    assert "a rank was lost where the others cannot go on" in capsys.readouterr().err
    ending.end_together()
    assert ending.dies_alone("sys.exit(1)", "")
    assert capsys.readouterr().err == ""
