"""The command `ddprun`, or `python -m launch`: reads options, says what it decided, runs mpirun, returns its code."""

import argparse
import importlib.util
import itertools
import os
import pwd
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from launch import LaunchError, job, restart
from launch.argv import Mpi, agent_variables, build_argv, job_variables, worker_command
from launch.environment import describe_forwarded, held_back, read_given
from launch.find import find_mpirun, identify
from launch.gpus import find_gpus
from launch.hosts import find_hosts
from launch.machine import this_machine
from launch.options import answer, build_parser, split_command
from launch.output import output_variables
from launch.plan import Plan, describe, expected_hosts, make_plan
from launch.rank import ELASTIC, MAX_FAILURES, RESERVE, TORCH
from launch.roll import Roll
from launch.sizes import check_started_once, settle


def main(argv: Sequence[str] | None = None) -> int:
    """Runs ddprun with these arguments (default: those of the process) and returns its exit code."""
    _open_what_is_closed()
    parser = build_parser()
    own, command = split_command(sys.argv[1:] if argv is None else argv)
    if said := answer(own):
        parser.error(said)
    given = parser.parse_args(own)
    if given.warm_cache:
        if len(own) > 1 or command:
            parser.error("--warm-cache stands alone: it starts no script")
        # A process of its own, because nothing is imported here that has to be installed.
        return subprocess.run([sys.executable, "-P", "-m", "engine.kernels"], check=False).returncode
    if not command:
        parser.error("no script given")
    if given.max_failures and given.elastic is None:
        parser.error("--max-failures: without --elastic no rank may be lost; --max-restarts N starts a job again")
    try:
        variables = read_given(given.x, os.environ)
    except ValueError as error:
        parser.error(str(error))
    try:
        if not given.module:
            _check_not_python(own, *command)
        return _start(given, variables, *command)
    except LaunchError as error:
        print(f"ddprun: error: {error}", file=sys.stderr)
        return 2


def _start(given: argparse.Namespace, own_variables: dict[str, str], script: str, *arguments: str) -> int:
    """Decides, says what was decided, and runs the job. Raises LaunchError where nothing can be started."""
    base = _with_home(os.environ) | own_variables
    (_check_module if given.module else _check_script)(script)
    check_started_once(os.environ)
    machine = this_machine()
    found = find_hosts(given.hostfile, given.host, os.environ, machine)
    mpirun = find_mpirun(sys.executable, os.environ.get("PATH", os.defpath))
    mpi, version = identify(mpirun, base)
    gpus = find_gpus(os.environ)
    nproc, found = settle(given.nproc, given.nproc_per_node, given.nnodes, found, machine, gpus)
    worker = worker_command(sys.executable, given.module, script, arguments)

    def start(number: int, lost: Collection[str]) -> restart.Ended | None:
        """One start of the job, the first one having the number 0; None where it is only shown."""
        left, ranks = restart.without(found, nproc, lost)
        plan = make_plan(
            nproc=ranks,
            found=left,
            machine=machine,
            environ=base,
            as_root=os.geteuid() == 0,
            live=sys.stdout.isatty() or sys.stderr.isatty(),
            gpus=gpus,
            given=own_variables,
        )
        least, reserve = _check_elastic(given.elastic, mpi, plan)
        plan = plan._replace(reserve=reserve)
        variables = job_variables(mpi, plan, base, least > 0) | output_variables(given.log_dir, given.tag)
        if least:
            variables[ELASTIC] = str(least)
        if reserve:
            variables[RESERVE] = str(reserve)
        if given.max_failures:
            variables[MAX_FAILURES] = given.max_failures
        if given.torch:
            variables[TORCH] = "1"
        if given.max_restarts:
            variables |= {restart.COUNT: str(number), restart.MOST: str(given.max_restarts)}
        print(f"ddprun: {describe(plan, base)}; {mpi.name} {version}, {mpirun}", file=sys.stderr, flush=True)
        environ = base | variables | agent_variables(mpi, left.agent, base)
        if given.dry_run:
            if not plan.one_host:
                withheld = held_back(environ, own_variables)
                told = describe_forwarded(variables, withheld, everything=not mpi.variable("NAME"))
                print(f"ddprun: {told}", file=sys.stderr, flush=True)
            set_here = [f"{name}={value}" for name, value in sorted(environ.items()) if os.environ.get(name) != value]
            print(shlex.join(["env", *set_here, *build_argv(mpi, mpirun, plan, variables, worker, least > 0)]))
            return None
        named = [*variables, *(() if plan.one_host else job.VARIABLES)]
        mpirun_argv = build_argv(mpi, mpirun, plan, named, worker, least > 0)
        roll = Roll(plan.nproc, expected_hosts(plan), least)
        quiet = bool(least or given.max_restarts)
        renews = bool(reserve and given.max_restarts)
        environ = _with_width(environ)
        return job.run(mpirun_argv, environ, roll, plan.one_host, given.grace, mpi.ended_by, quiet, renews)

    return restart.run(start, given.max_restarts, job.say)


def _check_elastic(asked: tuple[int, int | None] | None, mpi: Mpi, plan: Plan) -> tuple[int, int]:
    """How few ranks the job may go on with, 0 where it is not to, and how many processes wait in reserve: as many as
    there are ranks, where those that are lost are replaced. Raises LaunchError where it cannot.
    """
    if asked is None:
        return 0, 0
    least, most = asked
    if not mpi.elastic:
        raise LaunchError(f"--elastic: {mpi.name} ends the job when a rank is lost; --max-restarts N starts it again")
    if most and not plan.one_host:
        raise LaunchError(
            f"--elastic {least}:{most}: ranks are replaced on one host only; with --elastic {least} the others go on"
        )
    if plan.nproc < least:
        raise LaunchError(f"--elastic {least}: the job has {plan.nproc} ranks; start it with -n {least} or more")
    if most not in (None, plan.nproc):
        raise LaunchError(
            f"--elastic {least}:{most}: the job has {plan.nproc} ranks; those that are lost are replaced, but it does "
            f"not grow: say --elastic {least}:{plan.nproc}, or -n {most}"
        )
    if most == 1:
        raise LaunchError(
            "--elastic 1:1: when the only rank is lost, so is its state; --max-restarts N starts it again"
        )
    return least, most or 0


def _check_not_python(own: Sequence[str], script: str, *arguments: str) -> None:
    """Raises LaunchError for `ddprun python train.py`, as one types it after mpirun."""
    path = Path(script)
    if not re.fullmatch(r"python[\d.]*", path.name) or path.is_dir():
        return
    if not path.exists() or os.access(path, os.X_OK):
        words = iter(arguments)
        for word in words:
            if word in ("-W", "-X"):
                next(words, None)  # its value
            elif not word.startswith("-") or word == "-m":
                words = itertools.chain([word], words)
                break
        rest = list(words)
        typed = shlex.join(["ddprun", *own, *(rest or ["SCRIPT"])])
        raise LaunchError(f"ddprun starts {sys.executable} on every rank; leave {script!r} out: {typed}")


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


def _open_what_is_closed() -> None:
    """Opens standard streams that this process was started without: their numbers would go to the files opened next,
    and what is meant for a terminal into those.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            nothing = os.open(os.devnull, os.O_RDWR)
            assert nothing == number, "the lowest number that is free"
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115 - to the end


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
