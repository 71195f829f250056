"""A program that goes wrong on one of two hosts ends on both, and what the ranks of the other host do is known."""

import re
from pathlib import Path

import pytest

from tests.ddp.test_faults import LATE
from tests.ddp.two_hosts import NotPossibleError, two_hosts


def test_a_rank_of_another_host_is_named_with_its_python_line(tmp_path: Path) -> None:
    """The last rank is on the second host."""
    program = tmp_path / "program.py"
    program.write_text(LATE)
    try:
        with two_hosts() as hosts:
            results = {
                site: hosts.run([str(program), site, "4"], ranks=4, timeout=60)
                for site in ("exits before a collective", "sleeps before a collective")
            }
    except NotPossibleError as why:
        pytest.skip(f"two hosts cannot be made here: {why}")
    for site, words in {
        "exits before a collective": r"rank 3 has ended, but ranks 0, 1, 2 wait for it in all_reduce",
        "sleeps before a collective": r"rank 0 has been waiting in broadcast .* for rank 3; that is longer than the "
        r"timeout of 4 s; the job is ended\n(.|\n)*in oversleep\n    time.sleep\(100\)  # here\n",
    }.items():
        assert results[site].returncode != 0
        assert re.search(words, results[site].stderr), results[site].stderr
