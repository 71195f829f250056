"""The command `ddprun`, or `python -m launch`: reads options, says what it decided, runs mpirun, returns its code."""

import argparse
import importlib.util
import math
import os
import pwd
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from launch import LaunchError, job
from launch.argv import build_argv, job_variables, worker_command
from launch.cluster import read_hostfile, slurm_hosts, this_machine
from launch.find import find_mpirun, identify
from launch.gpus import find_gpus
from launch.plan import describe, expected_hosts, make_plan
from launch.roll import Roll

_WITH_VALUE = {"-n", "--nproc", "--hostfile", "--grace"}


def build_parser() -> argparse.ArgumentParser:
    """The options of ddprun; a test holds their number, settings of a training run belong to its script."""
    parser = argparse.ArgumentParser(
        prog="ddprun",
        usage="ddprun [-n N] [--hostfile FILE] [--grace SECONDS] [--dry-run] SCRIPT [ARGUMENT ...]\n"
        "       ddprun [-n N] [--hostfile FILE] [--grace SECONDS] [--dry-run] -m MODULE [ARGUMENT ...]\n"
        "       ddprun --warm-cache",
        allow_abbrev=False,
        description="Starts a Python training script on N ranks under mpirun; what follows SCRIPT is passed on to it.",
        epilog="The exit code is 0 if every rank was seen to finish, else that of the first rank to fail, 2 if nothing "
        "was started, 128 + N after signal N (mpirun's own number for a rank that ends so: MPICH's is N, Intel MPI's "
        "255). SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2 reach the handlers of the ranks.",
    )
    parser.add_argument(
        "-n",
        "--nproc",
        type=_positive,
        metavar="N",
        help="number of ranks in all (default: one a GPU, or one a core where there is none; or as many as the "
        "hostfile or the Slurm job has room for)",
    )
    parser.add_argument("--hostfile", type=Path, metavar="FILE", help="hosts to use, a line each: 'name slots=N'")
    parser.add_argument(
        "--grace",
        type=_seconds,
        metavar="SECONDS",
        default=30.0,
        help="time that ranks with a handler for SIGTERM, SIGINT or SIGHUP have to end by themselves, to write a "
        "checkpoint for example (default: 30); a second signal ends the job at once",
    )
    parser.add_argument("--dry-run", action="store_true", help="print the mpirun command and start nothing")
    parser.add_argument("-m", "--module", action="store_true", help="run a module by its name, as `python -m` does")
    parser.add_argument(
        "--warm-cache",
        action="store_true",
        help="start nothing: compile every kernel into NUMBA_CACHE_DIR (else XDG_CACHE_HOME, else ~/.cache), from "
        "where jobs read them; for images, and for homes that jobs cannot write",
    )
    return parser


def split_command(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words up to the script, and the script with its arguments.

    Not by argparse.REMAINDER, which drops a `--` among the script's arguments.
    """
    end = 0
    while end < len(words) and words[end].startswith("-") and words[end] != "--":
        end += 2 if words[end] in _WITH_VALUE else 1
    return list(words[:end]), list(words[end + 1 :] if words[end : end + 1] == ["--"] else words[end:])


def main(argv: Sequence[str] | None = None) -> int:
    """Runs ddprun with these arguments (default: those of the process) and returns its exit code."""
    parser = build_parser()
    own, command = split_command(sys.argv[1:] if argv is None else argv)
    given = parser.parse_args(own)
    if given.warm_cache:
        if len(own) > 1 or command:
            parser.error("--warm-cache stands alone: it starts no script")
        # A process of its own, because nothing is imported here that has to be installed.
        return subprocess.run([sys.executable, "-P", "-m", "engine.kernels"], check=False).returncode
    if not command:
        parser.error("no script given")
    script, *arguments = command
    environ = _with_home(os.environ)
    try:
        (_check_module if given.module else _check_script)(script)
        machine = this_machine()
        hosts = read_hostfile(given.hostfile, machine) if given.hostfile else slurm_hosts(os.environ, machine)
        mpirun = find_mpirun(sys.executable, os.environ.get("PATH", os.defpath))
        mpi, version = identify(mpirun, environ)
        gpus = find_gpus(os.environ)
    except LaunchError as error:
        print(f"ddprun: error: {error}", file=sys.stderr)
        return 2
    plan = make_plan(
        nproc=given.nproc,
        hosts=hosts,
        machine=machine,
        environ=os.environ,
        as_root=os.geteuid() == 0,
        live=sys.stdout.isatty() or sys.stderr.isatty(),
        gpus=gpus,
    )
    worker = worker_command(sys.executable, given.module, script, arguments)
    variables = job_variables(mpi, plan, environ)
    print(f"ddprun: {describe(plan, os.environ)}; {mpi.name} {version}, {mpirun}", file=sys.stderr, flush=True)
    environ |= variables
    if given.dry_run:
        set_here = [f"{name}={value}" for name, value in sorted(environ.items()) if os.environ.get(name) != value]
        print(shlex.join(["env", *set_here, *build_argv(mpi, mpirun, plan, variables, worker)]))
        return 0
    mpirun_argv = build_argv(mpi, mpirun, plan, [*variables, *(() if plan.one_host else job.VARIABLES)], worker)
    roll = Roll(plan.nproc, expected_hosts(plan))
    try:
        return job.run(mpirun_argv, _with_width(environ), roll, plan.one_host, given.grace)
    except LaunchError as error:
        print(f"ddprun: error: {error}", file=sys.stderr)
        return 2


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number of ranks of 1 or more, got {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number of seconds of 0 or more, got {text!r}")
    return seconds


def _check_script(script: str) -> None:
    """Raises LaunchError unless Python could run this path: a file, or a folder with a `__main__.py`."""
    path = Path(script)
    if path.is_file() or (path / "__main__.py").is_file():
        return
    problem = "is a folder without a __main__.py" if path.is_dir() else f"was not found from {os.getcwd()}"
    hint = f"; a module is started with -m: ddprun -m {script}" if _find_module(script) else ""
    raise LaunchError(f"the script {script!r} {problem}{hint}")


def _check_module(name: str) -> None:
    """Raises LaunchError unless `python -m name` would find something to run; nothing is imported."""
    spec = _find_module(name)
    if spec is None:
        raise LaunchError(f"no module named {name!r} in {os.getcwd()} or among the installed packages")
    if spec.submodule_search_locations is not None and _find_module(f"{name}.__main__") is None:
        raise LaunchError(f"the package {name!r} has no __main__ module to run; name one of its modules")


def _find_module(name: str) -> ModuleSpec | None:
    """The module as `python -m` would find it, without importing its parents: those might start MPI in this process."""
    top, *rest = name.split(".")
    if not all(part.isidentifier() for part in (top, *rest)):
        return None
    spec = PathFinder.find_spec(top, [os.getcwd()]) or importlib.util.find_spec(top)
    full = top
    for part in rest:
        if spec is None or spec.submodule_search_locations is None:
            return None
        full = f"{full}.{part}"
        spec = PathFinder.find_spec(full, spec.submodule_search_locations)
    return spec


def _with_home(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment with a HOME in it, without which Open MPI does not start: cron and containers may set none."""
    if environ.get("HOME"):
        return dict(environ)
    try:
        home = pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:  # a number that a container has made up
        home = ""
    return {**environ, "HOME": home or "/"}


def _with_width(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment with the terminal's width in it, which ranks behind mpirun's pipes cannot ask for."""
    if not sys.stderr.isatty():
        return dict(environ)
    return {"COLUMNS": str(shutil.get_terminal_size().columns), **environ}


if __name__ == "__main__":
    sys.exit(main())
