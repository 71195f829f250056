"""Real jobs under mpirun: what a rank sees, how a failure of one ends all, and that nothing is left behind."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.launch.jobs import (
    LIMIT,
    PIDS,
    WAIT,
    code_of_lost_rank,
    is_running,
    mpirun_of,
    pids,
    running,
    this_mpi,
    wait_until,
)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_every_rank_gets_the_script_its_arguments_and_its_share(
    run: Callable, script: Callable, tmp_path: Path, ranks: int
) -> None:
    name = script(
        "import json, os, sys\n"
        "from mpi4py import MPI\n"
        "threads = int(os.environ['OMP_NUM_THREADS'])\n"
        "print(json.dumps([MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size, os.environ['ALLSTRIDE_NPROC'], __name__,\n"
        "                  sys.path[0], threads <= len(os.sched_getaffinity(0)), sys.argv]))\n"
    )
    arguments = ["-n", "9", "--help", "", "a b", "--", "-m", "$HOME", ":", "-n", "1", "::", "/usr/bin/id"]
    ended = run("-n", str(ranks), name, *arguments)
    assert ended.returncode == 0, ended.stderr
    assert sorted(json.loads(line) for line in ended.stdout.splitlines()) == [
        [rank, ranks, str(ranks), "__main__", str(tmp_path.resolve()), True, [name, *arguments]]
        for rank in range(ranks)
    ]


def test_scripts_for_torchrun_find_its_variables(run: Callable, script: Callable) -> None:
    names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"]
    name = script(f"import os\nprint(*(os.environ[name] for name in {names}), 'MASTER_ADDR' in os.environ)\n")
    ended = run("-n", "2", name)
    assert sorted(ended.stdout.splitlines()) == ["0 2 0 2 True", "1 2 1 2 True"]


def test_imports_are_those_of_python_itself(run: Callable, script: Callable) -> None:
    """A script finds what lies beside it, a module what lies in the working directory."""
    script("print('beside the script')", "folder/helper.py")
    script("print('in the working directory')", "helper.py")
    script("raise SystemExit('hides the launcher')", "launch.py")
    script("import helper", "folder/train.py")
    assert run("-n", "1", "folder/train.py").stdout == "beside the script\n"
    assert run("-n", "1", "-m", "folder.train").stdout == "in the working directory\n"


def test_an_exception_on_one_rank_ends_all_with_its_traceback_first(
    run: Callable, script: Callable, tmp_path: Path
) -> None:
    name = script(
        PIDS + "from mpi4py import MPI\n"
        "def step(rank):\n"
        "    if rank == 2:\n"
        "        raise ValueError('no such batch')\n"
        "step(MPI.COMM_WORLD.rank)\n" + WAIT
    )
    ended = run("-n", "4", name)
    assert ended.returncode == 1
    # Python 3.13 underlines more than 3.12
    lines = [line for line in ended.stderr.splitlines() if not re.fullmatch(r"\[rank 2\] +[~^]+", line)]
    assert lines[1:7] == [
        "",
        "[rank 2] Traceback (most recent call last):",
        '[rank 2]   File "train.py", line 6, in <module>',
        "[rank 2]     step(MPI.COMM_WORLD.rank)",
        '[rank 2]   File "train.py", line 5, in step',
        "[rank 2]     raise ValueError('no such batch')",
    ]
    assert lines[7] == "[rank 2] ValueError: no such batch"
    assert len(pids(tmp_path)) == 4
    assert not running(tmp_path)


def test_an_exception_before_mpi_is_started_ends_all(run: Callable, script: Callable, tmp_path: Path) -> None:
    name = script(
        PIDS + "import time\n"
        "while len(list(pathlib.Path().glob('pid.*'))) < 2: time.sleep(0.01)\n"
        "if os.environ.get('OMPI_COMM_WORLD_RANK', os.environ.get('PMI_RANK')) == '1': 1 / 0\n"
        "time.sleep(3600)\n"
    )
    ended = run("-n", "2", name)
    assert ended.returncode == 1
    assert "[rank 1] ZeroDivisionError: division by zero\n" in ended.stderr
    assert not running(tmp_path)


def test_long_tracebacks_of_all_ranks_are_each_in_one_piece(run: Callable, script: Callable) -> None:
    """mpirun reads 4 KiB at a time from each rank: the blocks must come one after the other."""
    ended = run(
        "-n", "4", script(WAIT + "raise ValueError('\\n'.join(f'note {i:4}' + 'x' * 60 for i in range(300)))\n")
    )
    assert ended.returncode == 1
    reports = [line for line in ended.stderr.splitlines() if line.startswith("[rank ")]
    assert ended.stderr.splitlines()[2] == reports[0]
    first = [line for line in reports if line[:8] == reports[0][:8]]
    assert reports[: len(first)] == first
    assert [line[9:19] for line in first[-300:]] == ["ValueError"] + [f"note {i:4}x" for i in range(1, 300)]


def test_an_exception_in_a_ddp_script_is_reported_once(run: Callable, script: Callable) -> None:
    """ddp ends the job itself where no launcher does."""
    name = script(
        "import ddp\nddp.init_process_group()\nif ddp.get_rank() == 1: raise ValueError('x')\nddp.barrier()\n"
    )
    ended = run("-n", "2", name)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[2] == "[rank 1] Traceback (most recent call last):"
    assert ended.stderr.count("ValueError: x") == 1


@pytest.mark.parametrize(
    ("request_", "code", "words"),
    [
        ("sys.exit(3)", 3, "[rank 1] sys.exit(3) in train.py, line 3\n"),
        ("sys.exit('no data')", 1, "[rank 1] no data\n"),
        ("raise KeyboardInterrupt", 130, "[rank 1] KeyboardInterrupt\n"),
    ],
)
def test_exit_code_of_the_rank_that_failed(
    run: Callable, script: Callable, request_: str, code: int, words: str
) -> None:
    name = script(f"import sys\nfrom mpi4py import MPI\nif MPI.COMM_WORLD.rank == 1: {request_}\n" + WAIT)
    ended = run("-n", "2", name)
    assert ended.returncode == code, ended.stderr
    assert words in ended.stderr


# What Python knows nothing of is mpirun's to report. Intel MPI has one code for all.
@pytest.mark.parametrize(
    ("request_", "code", "words"),
    [
        ("os._exit(4)", 4, r"rank 1 on .* was lost \(os\._exit\(4\)\)"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, r"(?i)signal:? 9(.*\n)+ddprun: error: rank 1 on .* was lost"),
        ("ctypes.string_at(0)", 139, r'File "train.py", line 3 in <module>(.*\n)+ddprun: error: rank 1 on .* was lost'),
    ],
)
def test_exit_code_of_a_rank_that_ends_without_a_word(
    run: Callable, script: Callable, request_: str, code: int, words: str
) -> None:
    name = script(
        f"import ctypes, os, signal\nfrom mpi4py import MPI\nif MPI.COMM_WORLD.rank == 1: {request_}\n" + WAIT
    )
    ended = run("-n", "2", name)
    assert ended.returncode == code_of_lost_rank(code), ended.stderr
    assert re.search(words, ended.stdout + ended.stderr)  # Hydra's words go to standard output


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ("os._exit(4)", "was lost (os._exit(4))"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "was lost (SIGKILL)"),
        ("os.kill(os.getpid(), signal.SIGABRT)", "was lost (SIGABRT)"),
        ("sys.exit(3)", "failed (sys.exit(3))"),
    ],
)
def test_ddprun_itself_says_why_a_job_is_started_again(
    run: Callable, script: Callable, request_: str, words: str
) -> None:
    """Whatever the MPI; its mpirun says nothing."""
    name = script(
        "import faulthandler, os, signal, sys\nfrom mpi4py import MPI\nfaulthandler.disable()\n"
        f"if MPI.COMM_WORLD.rank == 1 and os.environ['TORCHELASTIC_RESTART_COUNT'] == '0': {request_}\n" + WAIT
    )
    ended = run("-n", "2", "--max-restarts", "1", name)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == ""
    own = [line for line in ended.stderr.splitlines() if line and not line.startswith("[rank 1] sys.exit(3)")]
    assert len(own) == 3, own
    assert own[1] == f"ddprun: rank 1 on {os.uname().nodename} {words}; the job is started again (1 of 1)"
    assert own[2] == own[0]


@pytest.mark.parametrize("request_", ["sys.exit()", "sys.exit(0)", "sys.exit(None)", "pass"])
def test_exit_code_of_success(run: Callable, script: Callable, request_: str) -> None:
    ended = run("-n", "1", script(f"import sys\nfrom mpi4py import MPI\n{request_}\n"))
    assert (ended.returncode, ended.stdout) == (0, "")
    assert ended.stderr.count("\n") == 1  # what was decided


def test_a_job_warns_of_nothing_that_is_ours(run: Callable, script: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of nothing that was left open, above all: a rank's line to ddprun is, on purpose."""
    monkeypatch.setenv("PYTHONWARNINGS", "error::ResourceWarning")
    name = script(
        "import ddp, engine\nddp.init_process_group()\nnet = ddp.DistributedDataParallel(engine.nn.Linear(3, 2))\n"
        "net(engine.ones(4, 3)).sum().backward()\nddp.all_reduce(engine.ones(2))\n"
    )
    ended = run("-n", "2", name)
    assert (ended.returncode, ended.stdout) == (0, "")
    assert "Warning" not in ended.stderr  # which may tell of kernels that are compiled


def test_standard_streams_that_are_closed_take_nothing_along(start: Callable, script: Callable, tmp_path: Path) -> None:
    """As where a daemon starts it: what is opened next would else get their numbers, and what is printed."""
    name = script("import sys\nfrom mpi4py import MPI\nprint('out')\nprint('err', file=sys.stderr)\nopen('ran', 'w')\n")
    nothing = {"stdin": None, "stdout": None, "stderr": None}
    process = start("-n", "1", name, **nothing, preexec_fn=lambda: [os.close(number) for number in range(3)])
    assert process.wait(60) == 0
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "end", ["os._exit(0)", "MPI.COMM_WORLD.Abort(0), time.sleep(60)", "os.execv('/bin/true', ['true'])"]
)
def test_a_rank_that_was_not_seen_to_finish_is_no_success(run: Callable, script: Callable, end: str) -> None:
    """Whatever mpirun makes of it; with Open MPI it returns 0 for the last two."""
    name = script(
        f"import os, time\nfrom mpi4py import MPI\nMPI.COMM_WORLD.Barrier()\nif MPI.COMM_WORLD.rank == 1: {end}\n"
    )
    ended = run("-n", "2", name)
    assert ended.returncode != 0
    if "mpirun returned 0" in ended.stderr:
        lost = r"(rank 1 on \S+ was lost \(os\._exit\(0\)\); )?"
        missing = r"ranks? (0, )?1( on \S+)? w(as|ere) not seen to finish, though"
        assert re.search(f"ddprun: error: {lost}{missing}", ended.stderr)


def test_a_rank_that_leaves_its_threads_behind_after_mpi_has_finished(run: Callable, script: Callable) -> None:
    """Unlike a process that it forked, which ends in the same way."""
    if this_mpi().name == "MPICH":
        pytest.skip("its mpirun may kill a rank that runs on after MPI_Finalize as soon as another has ended")
    name = script(
        "import os, sys, threading, time\nfrom mpi4py import MPI\n"
        "threading.Thread(target=time.sleep, args=(3600,)).start()\n"
        "MPI.Finalize()\n"
        "if os.fork() == 0: os._exit(0)\n"
        "os.wait()\n"
        "os._exit(int(sys.argv[1]))\n"
    )
    assert run("-n", "2", name, "0").returncode == 0
    assert run("-n", "2", name, "3").returncode == 3


def test_exit_handlers_and_threads_belong_to_the_script(run: Callable, script: Callable) -> None:
    name = script(
        "import atexit, os, threading, time\n"
        "atexit.register(os._exit, 0)\n"
        "threading.Thread(target=time.sleep, args=(0.2,)).start()\n"
    )
    ended = run("-n", "1", name)
    assert ended.returncode == 1
    assert "rank 0 on" in ended.stderr


def test_a_process_that_a_rank_forks_does_not_speak_for_it(run: Callable, script: Callable) -> None:
    name = script("import os, sys\nif os.fork() == 0: sys.exit(0)\nos.wait()\nos._exit(0)\n")
    ended = run("-n", "1", name)
    assert (ended.returncode, "rank 0 on" in ended.stderr) == (1, True)


def test_a_thread_that_goes_on_does_not_delay_the_end(run: Callable, script: Callable) -> None:
    name = script(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(3600,)).start()\nraise ValueError('x')"
    )
    assert run("-n", "1", name).returncode == 1


@pytest.fixture
def waiting(start: Callable, script: Callable, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A job of three ranks, two of them in a barrier, that would never end."""
    name = script(
        "import time\nfrom mpi4py import MPI\n" + PIDS + "if MPI.COMM_WORLD.rank == 0: time.sleep(3600)\n" + WAIT
    )
    process = start("--grace", "3", "-n", "3", name)  # Open MPI answers SIGHUP, and does nothing: the grace passes
    wait_until(lambda: len(pids(tmp_path)) == 3)
    yield process
    wait_until(lambda: not running(tmp_path))


# Rank 0 sleeps, and the others wait for it inside of MPI, where Python's own answer to SIGINT does not get a turn.
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_everything(waiting: subprocess.Popen[str], number: signal.Signals, tmp_path: Path) -> None:
    waiting.send_signal(number)
    assert waiting.wait(LIMIT) == 128 + number
    assert not running(tmp_path)
    if number != signal.SIGINT:  # which Python itself handles
        assert "passed on" not in waiting.stderr.read(), "no rank has a handler"


def test_ranks_end_with_a_killed_launcher(waiting: subprocess.Popen[str]) -> None:
    waiting.kill()  # the fixture sees the ranks end


def test_ranks_end_with_a_killed_mpirun(waiting: subprocess.Popen[str], tmp_path: Path) -> None:
    os.kill(mpirun_of(waiting.pid), signal.SIGKILL)
    assert waiting.wait(LIMIT) == 137
    wait_until(lambda: not running(tmp_path))  # killed ranks take a moment to end where the machine is busy


def test_what_ranks_started_does_not_outlive_the_job(run: Callable, script: Callable, tmp_path: Path) -> None:
    """Even in a session of its own, where no signal to a process group would find it."""
    name = script(
        "import pathlib, subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(3600)'], start_new_session=True,\n"
        "                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n"
        "pathlib.Path(f'pid.{child.pid}').touch()\n"
    )
    assert run("-n", "1", name).returncode == 0
    assert len(pids(tmp_path)) == 1
    assert not is_running(pids(tmp_path)[0])


def test_a_line_arrives_when_it_is_printed(start: Callable, script: Callable, tmp_path: Path) -> None:
    """The script goes on when its line has been read."""
    name = script("import pathlib, time\nprint('line')\nwhile not pathlib.Path('read').exists(): time.sleep(0.01)\n")
    process = start("-n", "1", name)
    assert select.select([process.stdout], [], [], LIMIT)[0]
    assert process.stdout.readline() == "line\n"
    (tmp_path / "read").touch()
    assert process.wait(LIMIT) == 0


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_lines_of_ranks_do_not_mix(
    run: Callable, script: Callable, monkeypatch: pytest.MonkeyPatch, unbuffered: str
) -> None:
    if this_mpi().name == "Intel MPI":
        pytest.skip("its mpirun passes on what ranks print in pieces, not in lines")
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    ended = run("-n", "2", script("for i in range(500): print('rank', 'says', i, 'x' * 30, 'end')"))
    assert sorted(ended.stdout.splitlines()) == sorted(
        f"rank says {i} {'x' * 30} end" for i in range(500) for _ in "ab"
    )


@pytest.mark.parametrize("kind", ["pipe", "file", "nothing", "closed"])
def test_standard_input_goes_to_rank_0_and_ends(start: Callable, script: Callable, tmp_path: Path, kind: str) -> None:
    """More than a pipe holds; a program that reads without end, or has a breakpoint() left in it, is not kept."""
    text = "blue" * 100_000 if kind in ("pipe", "file") else ""
    (tmp_path / "input").write_text(text)
    name = script(
        "import sys\nread = sys.stdin.read()\nprint(len(read), not sys.stdin.readline(), set(read) <= {*'blue'})"
    )
    with (tmp_path / "input").open() as file:
        options = {
            "pipe": {"stdin": subprocess.PIPE},
            "file": {"stdin": file},
            "nothing": {},
            "closed": {"preexec_fn": lambda: os.close(0)},
        }[kind]
        process = start("-n", "2", name, **options)
        out, err = process.communicate(text if kind == "pipe" else None, timeout=LIMIT)
    assert sorted(out.splitlines(), key=len) == ["0 True True", f"{len(text)} True True"], err


def test_a_progress_bar_is_seen_as_it_moves(start: Callable, script: Callable, tmp_path: Path) -> None:
    """On a terminal, a line without an end arrives at once; each step waits until the one before has been seen."""
    ours, theirs = pty.openpty()
    name = script(
        "import pathlib, sys, time\n"
        "for step in range(3):\n"
        "    print(f'\\r{step} of 3', end='', file=sys.stderr, flush=True)\n"
        "    while not pathlib.Path(f'seen.{step}').exists(): time.sleep(0.01)\n"
    )
    process = start("-n", "1", name, stdout=theirs, stderr=theirs)
    os.close(theirs)
    seen = b""
    for step in range(3):
        while f"\r{step} of 3".encode() not in seen:
            assert select.select([ours], [], [], LIMIT)[0], seen
            seen += os.read(ours, 4096)
        (tmp_path / f"seen.{step}").touch()
    assert process.wait(LIMIT) == 0
    os.close(ours)


def test_oversubscription_and_root_are_said(run: Callable, script: Callable) -> None:
    ranks = len(os.sched_getaffinity(0)) + 1
    ended = run("-n", str(ranks), script("print('here')"))
    assert ended.stdout == "here\n" * ranks, ended.stderr
    assert "oversubscribed and therefore not bound" in ended.stderr
    assert ("as root" in ended.stderr) == (os.geteuid() == 0)


def test_worker_imports_nothing_of_ours_and_no_mpi(run: Callable, script: Callable) -> None:
    name = script("import sys\nprint({'engine', 'ddp', 'launch', 'mpi4py', 'numpy'} & set(sys.modules))")
    assert run("-n", "1", name).stdout == "set()\n"


def test_python_itself_is_the_interpreter_of_the_ranks(run: Callable, script: Callable) -> None:
    assert run("-n", "1", script("import sys\nprint(sys.executable)")).stdout == f"{sys.executable}\n"
