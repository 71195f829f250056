"""Every byte is written by one rank, and all ranks write equally much."""

from hypothesis import given
from hypothesis import strategies as st

from ddp.checkpoint.dealing import deal


@given(st.lists(st.integers(0, 20_000_000), max_size=20), st.lists(st.integers(0, 30_000_000), min_size=1, max_size=9))
def test_every_byte_once_and_in_equal_parts(sizes, alone) -> None:
    dealt = deal(sizes, alone)
    ends = dict.fromkeys(range(len(sizes)), 0)
    for cut in (cut for cuts in dealt for cut in cuts):
        assert cut.begin == ends[cut.place] < cut.end
        ends[cut.place] = cut.end
    assert list(ends.values()) == sizes
    loads = [sum(cut.end - cut.begin for cut in cuts) + own for cuts, own in zip(dealt, alone, strict=True)]
    # The most that must be: an equal share, or what a rank has alone; cutting is no finer than a small tensor.
    least = max([-(-sum((*sizes, *alone)) // len(alone)), *alone])
    assert max(loads) <= least + 2 * (1 << 20)


def test_large_tensors_are_cut_at_pages() -> None:
    assert [[tuple(cut) for cut in cuts] for cuts in deal([10_000_000, 10], [0, 0])] == [
        [(0, 0, 4_997_120)],
        [(0, 4_997_120, 10_000_000), (1, 0, 10)],
    ]
