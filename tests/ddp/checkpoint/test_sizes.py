"""A sample of tests/campaigns/checkpoint_sizes.py: jobs that go on on other numbers of ranks have the same bits."""

import pytest

from tests.campaigns.checkpoint_sizes import table


@pytest.mark.parametrize("sizes", [[1, 3], pytest.param([2, 4, 6, 7], marks=pytest.mark.full)])
def test_any_number_continues_any_other(tmp_path, sizes) -> None:
    lines: list[str] = []
    assert table(sizes, tmp_path, lines.append), "\n".join(lines)
    assert sum(line.count("same bits") for line in lines) == 2 * len(sizes) ** 2
