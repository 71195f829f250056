"""A step put together: what is hidden, what is not, who is waited for, and what the limit is called."""

from dataclasses import replace

import pytest

from ddp.forecast import Link, Software, Workload, predict
from ddp.forecast.prediction import NO_TIME, expected_slowest, exposed_seconds
from ddp.transport.timing import SumTimes

FAST = Link(1e15, 0.0)
FREE = Software(0.0, 0.0, 0.0)
# a second of work; a bucket of 1 MB is full after 0.2 s, one of 2 MB with the last gradient
WORK = Workload(1.0, [0.0], [(0.2, 10**6, 0), (0.6, 2 * 10**6, 0)], NO_TIME, 1, 1.0)


def test_on_one_node_there_is_nothing_to_send() -> None:
    assert predict(WORK, 1, Link(1.0, 1.0), FREE) == (1, 1, 1.0, 1.0, 0.0, 0.0, 1.0, "own work")


def test_sums_wait_for_their_gradients_and_for_one_another() -> None:
    local = SumTimes(0.1, 1e-7)
    assert exposed_seconds(replace(WORK, local=local), 1, FAST, FREE) == pytest.approx(0.3)
    local = SumTimes(0.3, 2e-7)  # the first is over at 0.7, the second at 1.4
    assert exposed_seconds(replace(WORK, local=local), 1, FAST, FREE) == pytest.approx(0.8)


def test_work_for_sums_delays_the_gradients_that_follow() -> None:
    software = Software(0.0, 1e-7, 0.0)  # 0.1 s for the first bucket of two ranks, 0.2 s for the second
    assert exposed_seconds(WORK, 2, FAST, software) == pytest.approx(0.1 + 0.2, rel=1e-3)


def test_what_the_slowest_of_so_many_adds() -> None:
    assert expected_slowest([1.0, 3.0], 1) == 2.0
    assert expected_slowest([1.0, 3.0], 2) == 2.5
    assert expected_slowest([3.0, 1.0], 1000) == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("workload", "link", "software", "limit"),
    [
        (WORK, FAST, FREE, "own work"),
        (WORK, Link(1e6, 0.0), FREE, "bandwidth of the link"),
        (WORK, Link(1e15, 0.5), FREE, "latency of the link"),
        (WORK, FAST, Software(0.0, 1e-6, 0.0), "software of the messages"),
        (replace(WORK, noise=[-0.5, 0.5]), FAST, FREE, "the slowest rank"),
        (replace(WORK, local=SumTimes(0.4, 0.0)), FAST, FREE, "sums within a node"),
    ],
)
def test_the_limit_is_what_takes_most_of_what_is_lost(workload, link, software, limit) -> None:
    found = predict(workload, 16, link, software)
    assert found.limit == limit
    assert found.seconds == pytest.approx(found.own + found.slowest + found.exposed)
    assert found.efficiency == pytest.approx(found.own / found.seconds)


def test_several_ranks_of_a_node_sum_there_and_send_along_the_chain() -> None:
    four = replace(WORK, ranks=4)
    near, far = (predict(four, nodes, Link(1e9, 1e-3), FREE) for nodes in (2, 64))
    assert (near.ranks, far.ranks) == (8, 256)
    assert near.exposed < far.exposed
