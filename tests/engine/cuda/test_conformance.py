"""A sample of the layout facts of tests/data/conformance, held by tensors on the device."""

import json
from typing import Any

import pytest

import engine
from tests.engine.rules import test_conformance as host

EVERY = 11  # of each file's facts


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True:UserWarning")
@pytest.mark.parametrize(
    "check",
    [host.iterator, host.formats, host.matmul, host.promotion, host.views, host.accumulate],
    ids=lambda check: check.__name__,
)
def test_facts_hold(check: Any, cuda: engine.device) -> None:
    lines = (host.FACTS / f"{check.__name__}.jsonl").read_text().splitlines()
    with cuda:
        cases = [json.loads(line) for line in lines[::EVERY]]
        wrong = [(case, got, wanted) for case in cases for got, wanted in check(case) if got != wanted]
    assert cases
    assert not wrong, f"{len(wrong)} facts do not hold, the first: {wrong[0]}"
