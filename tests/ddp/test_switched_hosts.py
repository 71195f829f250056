"""The switch between hosts carries what is sent, not faster than its links; sums over three of them are right."""

import json

import pytest

from ddp.forecast import parse_link
from tests.ddp.switched_hosts import switched_hosts
from tests.ddp.two_hosts import NotPossibleError

_BYTES = 1 << 20


@pytest.mark.full
@pytest.mark.parametrize("text", ["200mbit,0us", "200mbit,1ms"])
def test_no_sum_is_faster_than_the_links(text: str) -> None:
    link = parse_link(text)
    bench = ["-m", "ddp.bench", "--json", "--transport", "mpi", "--min-bytes", str(_BYTES), "--max-bytes", str(_BYTES)]
    try:
        with switched_hosts(3, link) as hosts:
            ended = hosts.run(bench, ranks=3, timeout=100)
    except NotPossibleError as why:
        pytest.skip(f"hosts cannot be made here: {why}")
    assert ended.returncode == 0, ended.stderr  # it compares the sums with what they are
    figure = json.loads(ended.stdout.splitlines()[-1])
    share = 2 * 2 / 3  # of the bytes that a rank of three sends
    least = share * _BYTES / link.bandwidth + 2 * link.latency
    assert figure["seconds"] > 0.9 * least  # what is in buckets of tokens goes at once
