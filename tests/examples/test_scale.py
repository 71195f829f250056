"""benchmarks/scale.py: the shapes that it plans buckets for, and its lines. What it predicts is nobody's test."""

import math

import pytest

from tests.examples.running import ROOT


@pytest.fixture
def scale(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import scale

    return scale


def test_models_have_the_parameters_of_their_papers(scale) -> None:
    assert [len(scale.RESNET_50), sum(map(math.prod, scale.RESNET_50))] == [161, 25_557_032]
    assert [len(scale.GPT_2), sum(map(math.prod, scale.GPT_2))] == [148, 124_439_808]
    assert sum(map(math.prod, scale.HOROVOD.shapes)) == 44_549_160
    assert 4 * sum(map(math.prod, scale.COSMOFLOW.shapes)) == pytest.approx(28.15e6, rel=2e-3)


def test_buckets_hold_every_gradient_and_end_with_the_step(scale) -> None:
    for case in scale.CASES:
        found = scale.workload(case, 8)
        nbytes = 4 * sum(map(math.prod, case.shapes))
        assert sum(size for _, size, _ in found.buckets) == nbytes
        assert [full for full, _, _ in found.buckets] == sorted(full for full, _, _ in found.buckets)
        assert found.buckets[-1][0] == pytest.approx(case.own)
        assert found.buckets[0][1] < 2**20 + 4 * max(map(math.prod, case.shapes))


def test_lines(scale) -> None:
    line = scale.predicted(scale.CASES[0], 1)
    assert (line["efficiency"], line["limit"], line["MB"]) == (1.0, "own work", 102)
    (few, grows), (more, growing) = scale.rehearsed(2), scale.rehearsed(4)
    assert few["virtual_ms"] == few["formula_ms"]
    assert more["virtual_ms"] == more["formula_ms"]
    assert grows["step_calls"] == growing["step_calls"] == 9
    assert growing["step_headers_B"] == 3 * grows["step_headers_B"]
    assert grows.keys() == scale.HEADS.keys()
