"""What docs/testing.md promises."""

import re

import pytest

from tests.launch.testing.inner import RunFile
from tests.mpi_job import ROOT


@pytest.mark.full
def test_the_example_runs_as_it_says(run_file: RunFile) -> None:
    text = (ROOT / "docs/testing.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    result = run_file(code)
    named = re.findall(r"`(test_\w+\[ranks=\d\])`", text)
    result.assert_outcomes(passed=len(named))
    result.stdout.fnmatch_lines_random([f"PASSED *::{name.replace('[', '[[]')}" for name in named])
