"""Where what ranks print goes: files, tags, and the last words of ranks that end badly."""

from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = """
import os, sys
from mpi4py import MPI
rank = MPI.COMM_WORLD.rank
print(f'out {rank}')
sys.stderr.write(f'err {rank}\\n')  # in one piece: print writes the end of the line by itself, and the child is quick
os.system(f'echo child {rank}')
"""


def logs(folder: Path) -> dict[str, list[str]]:
    return {path.name: sorted(path.read_text().splitlines()) for path in folder.iterdir()}


def of_rank(rank: int) -> list[str]:
    return [f"child {rank}", f"err {rank}", f"out {rank}"]


def test_a_file_a_rank_and_rank_0_on_the_terminal(run: Callable, script: Callable, tmp_path: Path) -> None:
    """A second job goes on where the first has ended."""
    for times in (1, 2):
        ended = run("-n", "2", "--log-dir", "logs/today", script(SCRIPT))
        assert ended.returncode == 0, ended.stderr
        assert sorted(ended.stdout.splitlines()) == ["child 0", "out 0"]
        assert ended.stderr.splitlines()[1:] == ["err 0"]  # after what was decided
        written = {f"rank_{rank}.log": sorted(times * of_rank(rank)) for rank in (0, 1)}
        assert logs(tmp_path / "logs/today") == written


def test_each_line_on_the_terminal_has_its_rank(run: Callable, script: Callable, tmp_path: Path) -> None:
    ended = run("-n", "2", "--tag", script(SCRIPT + "print('no end', end='')\n"))
    assert ended.returncode == 0, ended.stderr
    expected = [f"[rank {rank}] {text} {rank}" for rank in (0, 1) for text in ("child", "out")]
    assert sorted(ended.stdout.splitlines()) == sorted([*expected, "[rank 0] no end", "[rank 1] no end"])
    assert sorted(ended.stderr.splitlines()[1:]) == ["[rank 0] err 0", "[rank 1] err 1"]


def test_tags_are_on_the_terminal_only(run: Callable, script: Callable, tmp_path: Path) -> None:
    ended = run("-n", "2", "--tag", "--log-dir", "logs", script(SCRIPT))
    assert sorted(ended.stdout.splitlines()) == ["[rank 0] child 0", "[rank 0] out 0"]
    assert logs(tmp_path / "logs") == {"rank_0.log": of_rank(0), "rank_1.log": of_rank(1)}


@pytest.mark.parametrize(
    ("options", "failing"),
    [(["--log-dir", "logs"], 0), (["--log-dir", "logs"], 1), (["--tag"], 1), (["--tag", "--log-dir", "logs"], 0)],
)
def test_a_traceback_is_on_the_terminal_and_in_the_file(
    run: Callable, script: Callable, tmp_path: Path, options: list[str], failing: int
) -> None:
    ended = run(
        "-n", "2", *options, script(SCRIPT + f"if rank == {failing}: raise KeyError('x')\nMPI.COMM_WORLD.Barrier()\n")
    )
    assert ended.returncode == 1
    assert ended.stderr.count(f"[rank {failing}] KeyError: 'x'\n") == 1
    assert ended.stderr.count("KeyError: 'x'") == 1
    if "--log-dir" in options:
        assert f"[rank {failing}] KeyError: 'x'" in logs(tmp_path / "logs")[f"rank_{failing}.log"]


@pytest.mark.parametrize("end", ["sys.exit(3)", "os._exit(3)"])
def test_what_was_printed_before_a_rank_ended_early_is_there(
    run: Callable, script: Callable, tmp_path: Path, end: str
) -> None:
    rest = f"for line in range(2000): print('line', line)\nif rank == 0: {end}\nMPI.COMM_WORLD.Barrier()\n"
    ended = run("-n", "2", "--log-dir", "logs", script(SCRIPT + rest))
    assert ended.returncode in (3, 255)  # Intel MPI's own number for a rank that ends without a word
    assert "line 1999" in logs(tmp_path / "logs")["rank_0.log"]
    if end == "sys.exit(3)":  # after os._exit mpirun may have ended before it has passed all on
        assert "line 1999\n" in ended.stdout


def test_a_log_that_cannot_be_written(run: Callable, script: Callable, tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file")
    ended = run("-n", "1", "--log-dir", "logs", script(SCRIPT))
    assert ended.returncode == 1
    assert "[rank 0] [Errno 17] File exists" in ended.stderr


def test_scripts_do_not_see_how_they_are_watched(run: Callable, script: Callable) -> None:
    ended = run(
        "-n",
        "1",
        "--tag",
        "--log-dir",
        "logs",
        script("import os\nprint([n for n in os.environ if 'LOG_DIR' in n or 'TAG' in n])"),
    )
    assert ended.stdout == "[rank 0] []\n"
