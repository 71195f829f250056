"""A sample of tests/campaigns/damaged_checkpoints.py: one clear error each, nothing half loaded, no gigabytes."""

import os
import subprocess
import sys

import pytest

from tests.mpi_job import ROOT, python_path


@pytest.mark.full
def test_damaged_checkpoints_are_refused() -> None:
    """In a process of its own, whose memory is limited."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.campaigns.damaged_checkpoints", "--mutations", "1700"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": python_path()},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "manifest.json, crafted" in done.stdout
