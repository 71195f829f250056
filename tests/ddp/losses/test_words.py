"""What a rank says before it ends alone, and when it may not."""

import os
from pathlib import Path

import pytest

from ddp.losses import words
from ddp.losses.options import minimum, refuse


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDPRUN_REPORT", str(tmp_path))


def test_who_kills_a_rank_says_why_unless_it_did() -> None:
    other = words.Member(1, 4000000)
    assert words.reason(other) == ""
    words.excuse(other, "no answer")
    words.excuse(other, "late")
    assert words.reason(other) == "no answer"


def test_of_a_process_on_another_host_ddprun_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDPRUN_REPORT", "tcp:1234:10.0.0.1")
    with pytest.raises(RuntimeError, match="has no folder for the job"):
        words.job_folder()
    monkeypatch.setenv("DDPRUN_FOLDER", str(tmp_path))
    assert words.job_folder() == tmp_path
    near, far = words.Member(1, 4000000), words.Member(2, 4000000, host="another")
    words.excuse(near, "no answer")
    assert (near.is_here, far.is_here) == (True, False)
    assert words.reason(near) == "no answer"
    assert words.reason(far) == "", "whose number is that of a process here"
    assert near.process != far.process
    reading, writing = os.pipe()
    monkeypatch.setenv("DDPRUN_LINE", str(writing))
    words.kill_far(far)
    assert os.read(reading, 100) == b"kill another 4000000\n"
    os.close(reading)
    os.close(writing)


def test_an_error_that_comes_again_at_its_step_is_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    words.excuse(words.Member(5, 4000000), "no answer")
    assert words.leave(3, "1a2b", "ValueError: x")
    assert words.reason(words.Member(0, os.getpid())) == "ValueError: x"
    monkeypatch.setattr(os, "getpid", lambda: 4000001)
    assert words.leave(4, "1a2b", "ValueError: x"), "another step"
    monkeypatch.setattr(os, "getpid", lambda: 4000002)
    assert not words.leave(4, "1a2b", "ValueError: x")
    monkeypatch.setattr(os, "getpid", lambda: 4000003)
    assert words.leave(4, "", "os._exit(0)")


def test_what_does_not_outlive_a_loss_is_refused_in_an_elastic_job_only(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse("a thing", "use another")
    monkeypatch.setenv("ALLSTRIDE_ELASTIC", "2")
    assert minimum() == 2
    with pytest.raises(ValueError, match=r"a thing does not outlive the loss of a rank.*: use another"):
        refuse("a thing", "use another")
