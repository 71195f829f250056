"""Runs a test file in a pytest of its own, with the plugin and without this repository's settings."""

import pytest

from tests.launch.testing.inner import RunFile
from tests.mpi_job import python_path


@pytest.fixture
def run_file(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> RunFile:
    """Write the given tests into files and run them; `options` are pytest's."""
    monkeypatch.setenv("PYTHONPATH", python_path())  # installed or not
    pytester.makeini("[pytest]\naddopts = -p launch.testing -p no:cacheprovider -rA\n")

    def run(text: str, *options: str, **more_files: str) -> pytest.RunResult:
        header = "import os, signal, time, pytest\nfrom mpi4py import MPI\ncomm = MPI.COMM_WORLD\n"
        pytester.makepyfile(**{name: header + body for name, body in {"test_inner": text, **more_files}.items()})
        return pytester.runpytest_subprocess(*options, timeout=200)

    return run
