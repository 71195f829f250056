"""examples/checkpoints.py goes on where it was stopped, on another number of ranks."""

import re

import pytest

from tests.examples.running import command, run


@pytest.mark.full
def test_it_goes_on(tmp_path) -> None:
    lines = []
    for ranks, steps in ((2, 20), (1, 40), (3, 60)):
        done = run(command(ranks, "examples/checkpoints.py", "--steps", steps, "--out", tmp_path))
        assert done.returncode == 0, done.stderr
        lines.append(done.stdout.strip())
    assert [re.match(r"from step (\d+) to", line)[1] for line in lines] == ["0", "20", "40"]
    losses = [float(line.split()[-1]) for line in lines]
    assert losses[2] < losses[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000050", "step-00000060"]
