"""`python -m engine.kernels`, which `ddprun --warm-cache` runs: what it leaves on disk, and what it says."""

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

# As the command, on two kernels instead of all, which take half a minute to compile; on two that lead to no others,
# which a copy of the process would compile meanwhile.
FEW = """
import sys
from engine.kernels import __main__, jit
kernels = jit.registered
jit.registered = lambda: [kernel for kernel in kernels() if kernel.name.startswith("optim.")][:2]
sys.exit(__main__.main())
"""


def command(place: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(place)}
    return subprocess.run(
        [sys.executable, "-c", FEW], env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def files_after(done: subprocess.CompletedProcess[str]) -> dict[Path, int]:
    """The files where it says they are, and when they were written."""
    assert done.returncode == 0, done.stderr
    said = re.fullmatch(r"4 kernels in (\S+): \d+\.\d MB, \d+\.\d s\n", done.stdout)
    assert said is not None, done.stdout
    assert re.fullmatch(rf"compiling all kernels into {said[1]}\n1 of 4: \S+ float32\n", done.stderr)
    return {path: path.stat().st_mtime_ns for path in Path(said[1]).iterdir()}


def test_it_fills_the_cache_and_says_where_it_is(tmp_path: Path) -> None:
    """Two kernels for two dtypes; a second run finds them and writes nothing."""
    files = files_after(command(tmp_path))
    assert len(files) == 4
    assert all(path.is_relative_to(tmp_path) for path in files)
    assert files_after(command(tmp_path)) == files


def test_a_place_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.touch()
    done = command(place)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1].startswith(f"nothing is kept: cannot keep compiled kernels in {place}")
    assert "Set NUMBA_CACHE_DIR to a directory that can be written." in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root keeps kernels for others")
def test_what_root_keeps_in_a_named_place_all_may_read(tmp_path: Path) -> None:
    files = files_after(command(tmp_path))
    folder = next(iter(files)).parent
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder.parent, folder)] == [0o755, 0o755]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o644}
