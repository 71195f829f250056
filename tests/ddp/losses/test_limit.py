"""How many ranks may be lost, and in how much time."""

import math

import pytest

from ddp.losses.limit import Limit, limit


def test_it_is_what_ddprun_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ALLSTRIDE_MAX_FAILURES", raising=False)
    assert limit() is None
    monkeypatch.setenv("ALLSTRIDE_MAX_FAILURES", "0")
    assert limit() == Limit(0, math.inf)
    monkeypatch.setenv("ALLSTRIDE_MAX_FAILURES", "3/60")
    assert limit() == Limit(3, 60.0)


def test_only_losses_of_one_period_count() -> None:
    three = Limit(3, 60.0)
    assert three.passed(()) == ""
    assert three.passed((1.0, 20.0, 40.0, 61.0)) == ""
    assert three.passed((1.5, 20.0, 40.0, 61.0)) == "more than 3 ranks were lost in 60 s (--max-failures)"
    assert three.still_count((1.0, 20.0, 40.0, 61.0)) == (20.0, 40.0, 61.0)
    assert three.still_count((55.0, 56.0, 57.0, 58.0, 59.0)) == (56.0, 57.0, 58.0, 59.0), "no more than it needs"


def test_without_a_period_all_count() -> None:
    assert Limit(1, math.inf).passed((1.0, 9e9)) == "more than 1 rank was lost (--max-failures)"
    assert Limit(0, math.inf).passed(()) == ""
    assert Limit(0, math.inf).passed((5.0,)) != ""
