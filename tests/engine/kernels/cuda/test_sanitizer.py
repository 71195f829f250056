"""NVIDIA's compute-sanitizer over the tests of the kernels, on a real GPU that has it: `pytest -n0 -m sanitizer`."""

import faulthandler
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from engine.memory import backend
from tests.mpi_job import ROOT, python_path

# Every array is an allocation of its own, so that an access beside it is seen. Only once pytest has begun: it rewrites
# what comes with its plugins, this package among them where it is installed in full, and warns of what it finds.
PROGRAM = """
import sys
import pytest

class OwnAllocations:
    def pytest_collection(self):
        from engine.memory.backend import require_cupy
        require_cupy().cuda.set_allocator(None)

words = ["-q", "-x", "-n0", "-o", "faulthandler_timeout=0", "-p", "no:cacheprovider", *sys.argv[1:]]
sys.exit(pytest.main(words, [OwnAllocations()]))
"""
LIMIT = 7200  # seconds: the tools run kernels tens of times slower, and NVRTC compiles every variant before


@pytest.mark.sanitizer
@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_kernels_are_clean(tool: str) -> None:
    try:
        backend.require_cupy()
    except RuntimeError as missing:
        pytest.skip(str(missing))
    sanitizer = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    if sanitizer is None:
        pytest.skip("no compute-sanitizer on PATH or in /usr/local/cuda/bin")
    here = Path(__file__)
    words = [sanitizer, "--tool", tool, "--error-exitcode", "9", "--target-processes", "application-only"]
    words += [sys.executable, "-c", PROGRAM, str(here.parent), "--ignore", str(here)]
    faulthandler.cancel_dump_traceback_later()  # pytest's limit, which is for tests of seconds
    environment = {**os.environ, "PYTHONPATH": python_path()}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=LIMIT)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
