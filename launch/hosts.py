"""The hosts that take ranks: of a hostfile, of `--host`, or of the batch system's job that ddprun runs in."""

import re
import shutil
import socket
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from launch import LaunchError
from launch.machine import Machine

# What mpirun may hand to ssh: no option, no list, nothing that a shell reads.
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"


class Host(NamedTuple):
    """A machine that takes ranks. `name` is empty where mpirun finds it by itself."""

    name: str
    slots: int  # ranks it takes before it counts as oversubscribed
    cores: int


class Found(NamedTuple):
    """The hosts that were found, none for this machine alone, and how."""

    hosts: tuple[Host, ...] = ()
    slots: str = ""  # what the number of ranks is by default, in words
    source: str = ""  # where they were read, in words
    first: str = ""  # the name of the first host, where mpirun finds the hosts by itself
    agent: str = ""  # a program that starts processes on them where ssh does not


def find_hosts(hostfile: Path | None, listed: str | None, environ: Mapping[str, str], machine: Machine) -> Found:
    """The hosts that were named, else those of the batch system's job.

    Raises LaunchError for what cannot be read.
    """
    if hostfile is not None and listed is not None:
        raise LaunchError("--hostfile and --host both name the hosts: give one of them")
    if hostfile is not None:
        return Found(read_hostfile(hostfile, machine), "the hostfile's slots", "")
    if listed is not None:
        return Found(_listed(listed, machine), "the slots of --host", "")
    for read in (_slurm, _pbs, _lsf, _grid_engine):
        if found := read(environ, machine):
            return found
    return Found()


def read_hostfile(path: Path, machine: Machine) -> tuple[Host, ...]:
    """The hosts of a file with one `name`, `name slots=N` or `name:N` a line; `#` starts a comment.

    A name alone takes as many ranks as this machine has cores, or one for each line it stands in if there are several.
    Open MPI's `max_slots=N` may follow; the slots are what counts. Raises LaunchError for a file that is missing or
    empty and for a line that reads otherwise.
    """
    stated: dict[str, list[int | None]] = {}
    for number, line in enumerate(_lines(path, "the hostfile"), 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        where = f"hostfile {str(path)!r}, line {number}"
        match = re.fullmatch(
            r"(?P<name>[^\s:=]+)(?:(?:\s+slots\s*=\s*|:)(?P<slots>[1-9]\d*))?(?:\s+max_?slots\s*=\s*[1-9]\d*)?", text
        )
        if match is None:
            raise LaunchError(f"{where}: expected 'name', 'name slots=N' or 'name:N', N at least 1, got {text!r}")
        stated.setdefault(_checked(match["name"], where), []).append(int(match["slots"]) if match["slots"] else None)
    if not stated:
        raise LaunchError(f"the hostfile {str(path)!r} names no host; expected a line 'name slots=N' for each")
    return tuple(
        _host(name, machine.cores if slots == [None] else sum(1 if one is None else one for one in slots), machine)
        for name, slots in stated.items()
    )


def one_host(hosts: tuple[Host, ...], environ: Mapping[str, str]) -> bool:
    """Whether the ranks all are on the machine that this process runs on.

    From a login node, salloc has them on another one even where the job has one node only.
    """
    if len(hosts) > 1:
        return False
    if hosts[0].name:
        return _is_here(hosts[0].name)
    return "SLURM_JOB_ID" not in environ or _is_here(environ.get("SLURMD_NODENAME", ""))


def _slurm(environ: Mapping[str, str], machine: Machine) -> Found | None:
    """The nodes of a Slurm job, nameless because mpirun asks Slurm itself."""
    tasks = environ.get("SLURM_TASKS_PER_NODE") if "SLURM_JOB_ID" in environ else None
    if tasks is None:
        return None
    hosts: list[Host] = []
    for group in tasks.split(","):  # "2(x3),1": three nodes of two tasks each, then one of one
        match = re.fullmatch(r"(?P<slots>\d+)(?:\(x(?P<nodes>\d+)\))?", group)
        if match is None:
            raise LaunchError(f"cannot read SLURM_TASKS_PER_NODE={tasks!r}: expected something like '2(x3),1'")
        slots = int(match["slots"])
        hosts += [Host("", slots, max(slots, machine.cores))] * int(match["nodes"] or 1)
    nodes = re.match(r"([\w.-]+)(?:\[(\w+)[^\]]*\]([\w.-]*))?", environ.get("SLURM_JOB_NODELIST", ""))  # n[01-04,7],m
    first = "".join(part or "" for part in nodes.groups()) if nodes else ""
    return Found(tuple(hosts), "the job's tasks", f"Slurm job {environ['SLURM_JOB_ID']}, SLURM_TASKS_PER_NODE", first)


def _pbs(environ: Mapping[str, str], machine: Machine) -> Found | None:
    """PBS and Torque: a file with the name of a host for each rank it takes."""
    path = environ.get("PBS_NODEFILE") if "PBS_JOBID" in environ else None
    return _of_job("PBS", environ["PBS_JOBID"], "PBS_NODEFILE", _words(path, 1), machine) if path else None


def _lsf(environ: Mapping[str, str], machine: Machine) -> Found | None:
    """LSF: a file as PBS's, or where it makes none, `name slots name slots...` in a variable."""
    if "LSB_JOBID" not in environ:
        return None
    agent = shutil.which("blaunch", path=environ.get("PATH")) or ""  # ssh is often switched off there
    if path := environ.get("LSB_DJOB_HOSTFILE"):
        return _of_job("LSF", environ["LSB_JOBID"], "LSB_DJOB_HOSTFILE", _words(path, 1), machine, agent)
    words = environ.get("LSB_MCPU_HOSTS", "").split()
    pairs = list(zip(words[::2], words[1::2], strict=False))
    return _of_job("LSF", environ["LSB_JOBID"], "LSB_MCPU_HOSTS", pairs, machine, agent) if pairs else None


def _grid_engine(environ: Mapping[str, str], machine: Machine) -> Found | None:
    """Grid Engine: a file with lines `name slots queue processors`. mpirun itself starts processes by its qrsh."""
    path = environ.get("PE_HOSTFILE")
    if not path:
        return None
    return _of_job("Grid Engine", environ.get("JOB_ID", "?"), "PE_HOSTFILE", _words(path, 2), machine)


def _of_job(
    system: str, job: str, variable: str, stated: Iterable[Sequence[str]], machine: Machine, agent: str = ""
) -> Found:
    """stated: the name of a host and its slots, or its name alone for one slot; as often as it takes more."""
    slots: dict[str, int] = {}
    for name, *number in stated:
        if number and not number[0].isdecimal():
            raise LaunchError(
                f"{variable} of {system} job {job}: expected a number of slots for {name!r}, got {number}"
            )
        slots[_checked(name, variable)] = slots.get(name, 0) + int(number[0] if number else 1)
    if not slots:
        raise LaunchError(f"{variable} of {system} job {job} names no host; name them by --hostfile or --host")
    hosts = tuple(_host(name, count, machine) for name, count in slots.items() if count)
    return Found(hosts, "the job's slots", f"{system} job {job}, {variable}", agent=agent if len(hosts) > 1 else "")


def _words(path: str, count: int) -> list[list[str]]:
    """The first words of each line of a batch system's file."""
    return [line.split()[:count] for line in _lines(Path(path), "the batch system's list of hosts") if line.strip()]


def _listed(text: str, machine: Machine) -> tuple[Host, ...]:
    """`name,name:N,...` as mpirun's --host has it: a name alone is one slot more."""
    slots: dict[str, int] = {}
    for entry in text.split(","):
        match = re.fullmatch(r"([^\s:=]+)(?::([1-9]\d*))?", entry.strip())
        if match is None:
            raise LaunchError(f"--host {text!r}: expected 'name' or 'name:N', N at least 1, got {entry!r}")
        slots[_checked(match[1], f"--host {text!r}")] = slots.get(match[1], 0) + int(match[2] or 1)
    return tuple(_host(name, count, machine) for name, count in slots.items())


def _lines(path: Path, what: str) -> list[str]:
    try:
        return path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise LaunchError(f"cannot read {what} {str(path)!r}: {error}") from error


def _checked(name: str, where: str) -> str:
    if re.fullmatch(_NAME, name):
        return name
    raise LaunchError(
        f"{where}: {name!r} cannot be the name of a host, which has letters, digits, '.', '-' and '_' and begins with "
        "none of the last three; nothing else is given to ssh"
    )


def _host(name: str, slots: int, machine: Machine) -> Host:
    # How many cores another host has cannot be asked before mpirun is there: as many as here, or as it takes ranks.
    return Host(name, slots, cores=machine.cores if _is_here(name) else max(slots, machine.cores))


def _is_here(name: str) -> bool:
    """By its name with its domain or without, as batch systems write it either way; numbers are no such names."""
    own = socket.gethostname()
    short = name if re.fullmatch(r"[\d.]+", name) else name.partition(".")[0]
    return name in {"localhost", "127.0.0.1", own} or own in {short, name} or name == own.partition(".")[0]
