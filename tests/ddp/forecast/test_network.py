"""Formulas of the messages between nodes, in cases that can be counted by hand."""

import math

import pytest

from ddp.forecast import Link, Software, parse_link
from ddp.forecast.network import (
    PAYLOAD,
    SHARED,
    chain_seconds,
    chain_thread_seconds,
    exchange_seconds,
    link_seconds,
    thread_seconds,
)
from ddp.transport import chunks, hierarchical

NO_WORK = Software(0.0, 0.0, 0.0)


def test_links_are_read_as_tc_writes_them() -> None:
    assert parse_link("25gbit,2us") == Link(pytest.approx(PAYLOAD * 25e9 / 8), 2e-6)
    assert parse_link("100Mbit, 0.5ms") == Link(pytest.approx(PAYLOAD * 1.25e7), 5e-4)
    assert parse_link("8kbit,0s") == Link(pytest.approx(PAYLOAD * 1000.0), 0.0)


@pytest.mark.parametrize(
    "text", ["", "25gbit", "25,2us", "0gbit,2us", "25gbit,2", "25gbit,-2us", "25GB,2us", "gbit,us"]
)
def test_anything_else_is_refused(text) -> None:
    with pytest.raises(ValueError, match="expected a bandwidth and a latency like 25gbit,2us"):
        parse_link(text)


def test_a_chunk_goes_along_the_chain_and_back() -> None:
    link = Link(1e9, 1e-3)
    assert chain_seconds(1000, 2, 1, link, NO_WORK) == pytest.approx(2 * (1e-3 + 1e-6))
    assert chain_seconds(1000, 5, 1, link, NO_WORK) == pytest.approx(8 * (1e-3 + 1e-6))
    # two owners send half of it each, over the same link
    assert chain_seconds(1000, 5, 2, link, NO_WORK) == pytest.approx(8 * (1e-3 + 1e-6))
    assert chain_seconds(1000, 3, 1, Link(math.inf, 0.0), Software(1e-4, 0.0, 0.0)) == pytest.approx(2e-4)


def test_many_chunks_take_the_bandwidth_or_wait_for_their_messages() -> None:
    nbytes = 1000 * hierarchical.CHUNK_BYTES
    assert chain_seconds(nbytes, 2, 1, Link(1e9, 0.0), NO_WORK) == pytest.approx(nbytes / 1e9, rel=2e-3)
    # a node in the midst sends and receives them on their way there, and back
    assert chain_seconds(nbytes, 3, 1, Link(1e9, 0.0), NO_WORK) == pytest.approx(2 * nbytes / 1e9, rel=2e-3)
    # at most DEPTH messages are under way: over a long way that is what counts
    far = chain_seconds(nbytes, 2, 1, Link(1e12, 1.0), NO_WORK)
    assert far == pytest.approx(2 * nbytes / hierarchical.CHUNK_BYTES / hierarchical.DEPTH, rel=1e-2)


def test_the_exchange_sends_the_least_that_a_sum_can() -> None:
    nbytes = 1000 * chunks.CHUNK_BYTES
    for ranks in (2, 4, 100):
        least = 2 * (ranks - 1) / ranks * nbytes / (1e9 if ranks == 2 else 1e9 * SHARED)
        assert exchange_seconds(nbytes, ranks, Link(1e9, 0.0), NO_WORK) == pytest.approx(least, rel=2e-3)
    assert exchange_seconds(10**5, 2, Link(math.inf, 1e-3), NO_WORK) == pytest.approx(2e-3)
    assert exchange_seconds(10**5, 12, Link(math.inf, 0.0), Software(0.0, 0.0, 1e-6)) == pytest.approx(2e-5)


def test_a_small_array_goes_whole_to_all() -> None:
    assert exchange_seconds(1000, 5, Link(1e6, 1e-3), NO_WORK) == pytest.approx(1e-3 + 4e-3 / SHARED)
    assert exchange_seconds(1000, 12, Link(math.inf, 0.0), Software(1e-4, 0.0, 1e-6)) == pytest.approx(1.1e-4)


def test_posting_stays_behind_the_link_on_many_ranks() -> None:
    """Chunks grow with the ranks: a fixed one would be posted as often with slices ever shorter."""
    software, link, nbytes = Software(0.0, 0.0, 1e-6), Link(25e9 / 8, 2e-6), 100 * 2**20
    for ranks in (2, 64, 256, 511, 512, 1024, 8192):
        assert thread_seconds(nbytes, ranks, software) < link_seconds(nbytes, ranks, link)


def test_groups_pass_sums_on_and_results_back() -> None:
    """1024 ranks are 16 groups of 64: 15 hops along them, and 15 back, first of the header and then of a chunk."""
    assert chunks.count_groups(1024) == 16
    assert exchange_seconds(10**5, 1024, Link(math.inf, 1.0), NO_WORK, 640) == 30 + 2 + 30 + 1
    # within its group a rank sends 63 of 64 parts twice; along the groups its own part, and as many results back
    nbytes, link = 1000 * chunks.CHUNK_BYTES, Link(1e9, 0.0)
    assert link_seconds(nbytes, 1024, link) == pytest.approx((2 * 63 + 2) / 64 * nbytes / (1e9 * SHARED), rel=1e-3)
    seconds = (2 * 63 / SHARED + 2) / 64 * nbytes / 1e9  # a message along the groups has its link to itself
    assert exchange_seconds(nbytes, 1024, link, NO_WORK) == pytest.approx(seconds, rel=2e-3)
    # a message for each other one of its group, in each of a chunk's two steps, and in the header's
    assert thread_seconds(10**5, 1024, Software(0.0, 0.0, 1.0), 640) == 62 * (2 + 2)


def test_the_header_comes_from_every_rank() -> None:
    link = Link(1e9, 0.0)
    for ranks, bandwidth in ((2, 1e9), (100, 1e9 * SHARED)):
        more = exchange_seconds(10**6, ranks, link, NO_WORK, 640) - exchange_seconds(10**6, ranks, link, NO_WORK)
        assert more == pytest.approx((ranks - 1) * 640 / bandwidth)
        assert link_seconds(1000, ranks, link, 64) == pytest.approx((ranks - 1) * 1064 / bandwidth)


def test_what_a_rank_of_the_chain_works_itself() -> None:
    nbytes = 1000 * hierarchical.CHUNK_BYTES
    work = 1000 * 1e-5 + nbytes * 1e-10
    assert chain_thread_seconds(2 * nbytes, 2, Software(1e-5, 1e-10, 1e-6)) == pytest.approx(work)
