"""Checkpoints whose writers are killed, whose disk is full and whose files are cut: a sample, and all of them."""

import os
import subprocess
import sys

import pytest

from tests.mpi_job import ROOT, python_path


def strike(*arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tests.campaigns.checkpoints", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": python_path(), **environment},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_sample() -> None:
    table = strike("--every", "97", "--begin", "30")
    assert all(f"| {fault} | " in table for fault in ("SIGKILL", "disk full", "read-only", "bad disk", "cut"))


@pytest.mark.full
@pytest.mark.parametrize("fault", ["SIGKILL", "disk full", "quota", "read-only", "bad disk", "cut"])
def test_at_every_operation(fault) -> None:
    """In memory, where syncs do not wait; the sample is on a disk."""
    strike("--every", "1", "--faults", fault, TMPDIR="/dev/shm")
