"""Which buckets gradients fill, and those that would be chosen for a link."""

import pytest

from ddp.forecast import Link, Software
from ddp.forecast.filling import fill, limits_between
from ddp.gradients.plan import choose_limits

FREE = Software(0.0, 0.0, 0.0)


def test_gradients_fill_buckets_in_their_order() -> None:
    gradients = [(0.1, 3), (0.2, 4), (0.3, 5), (0.4, 6)]
    assert [found[:2] for found in fill(gradients, [1, 8])] == [(0.1, 3), (0.3, 9), (0.4, 6)]
    assert [found[:2] for found in fill(gradients, [18])] == [(0.4, 18)]
    assert [found[:2] for found in fill(gradients, [100])] == [(0.4, 18)]
    one, two = (fill(gradients, limits)[0][2] for limits in ([1], [7]))
    assert two - one == 8  # a number of the header for each gradient


@pytest.mark.parametrize("ranks", [1, 4])
def test_a_longer_way_makes_larger_buckets(ranks: int) -> None:
    sizes = [limits_between(4, ranks, Link(1e8, latency), FREE, 10**8)[-1] for latency in (1e-6, 1e-4, 1e-2)]
    assert sizes == sorted(set(sizes))
    assert limits_between(1, ranks, Link(1e8, 1.0), FREE, 10**8) == choose_limits(10**8, None)
