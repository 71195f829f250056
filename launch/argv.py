"""The command line of mpirun: a plan and a command in, a list of arguments out. Pure; one record for each MPI."""

import math
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from launch.hosts import Host
from launch.plan import Plan


class Mpi(NamedTuple):
    """How one MPI implementation is told what a plan says."""

    name: str
    mark: str  # regular expression: what only its `mpirun --version` prints
    live: tuple[str, ...]
    variable: Callable[[str], tuple[str, ...]]  # has ranks inherit it, on every host; its value is nobody's to see
    hosts: Callable[[Sequence[Host]], tuple[str, ...]]
    bound: Callable[[int], tuple[str, ...]]  # each rank to that many cores
    unbound: tuple[str, ...]
    oversubscribed: tuple[str, ...]
    as_root: tuple[str, ...]
    elastic: tuple[str, ...]  # ranks may be lost and the others go on; empty where it cannot
    ended_by: signal.Signals  # how it is asked to end the job; if not by SIGTERM, it never sees that: see launch.mpirun
    agent: str  # the variable that names the program by which it starts processes on other hosts, in place of ssh
    # Variables of its own that every rank gets, unless the user has set them.
    defaults: Mapping[str, str]
    defaults_one_host: Mapping[str, str]
    defaults_oversubscribed: Mapping[str, str]
    defaults_elastic: Mapping[str, str]  # where ranks may be lost
    defaults_reserve: Mapping[str, str]  # where processes are started in the midst of the job


def _host_list(hosts: Sequence[Host]) -> str:
    return ",".join(f"{host.name}:{host.slots}" for host in hosts)


OPEN_MPI = Mpi(
    name="Open MPI",
    mark=r"\(Open MPI\) (?:[5-9]|\d\d)",
    # It waits for whole lines otherwise, and a progress bar is seen when it is complete. Only on a terminal: in 4 KiB
    # of output at once the lines of ranks mix.
    live=("--output", ":raw"),
    variable=lambda name: ("-x", name),
    hosts=lambda hosts: ("--host", _host_list(hosts)),
    bound=lambda cores: ("--map-by", f"slot:PE={cores}", "--bind-to", "core"),
    unbound=("--map-by", "slot", "--bind-to", "none"),
    oversubscribed=("--map-by", "slot:OVERSUBSCRIBE", "--bind-to", "none"),
    as_root=("--allow-run-as-root",),
    elastic=("--with-ft", "ulfm"),
    ended_by=signal.SIGHUP,
    agent="PRTE_MCA_plm_ssh_agent",
    # osc/ucx prints an error for each window where there is no such network; btl/ofi makes MPI_Init take 1.0 s longer.
    # UCX takes SIGHUP for a wish to be debugged: ranks would outlive their terminal.
    # Over TCP a message that is longer than the limit waits for a word from its receiver, which stands behind what that
    # one sends itself: two hosts, 300 Mbit/s, a sum of 4 MB: 148 to 121 ms, of two ranks on each 221 to 134; 1 Gbit/s
    # and 1 ms, 1 MB: 14.5 to 10.2. And where a peer has ended in the midst of one, others may wait in Open MPI for ever
    # (mca_pml_ob1_recv_request_process_pending). The transports' longest messages are shorter.
    defaults={
        "OMPI_MCA_osc": "^ucx",
        "OMPI_MCA_btl": "^ofi",
        "OMPI_MCA_btl_tcp_eager_limit": str(2 << 20),
        "OMPI_MCA_btl_tcp_max_send_size": str(2 << 20),
        "UCX_DEBUG_SIGNO": "0",
    },
    # Each rank would listen on the network for nobody; UCX looks for networks, and prints where it finds none. 5.0.8's
    # mpirun listens for its ranks at the network's address, where they do not find it once `launch.ports` has bound it.
    defaults_one_host={"OMPI_MCA_btl": "^ofi,tcp", "OMPI_MCA_pml": "^ucx", "PMIX_MCA_ptl_base_if_include": "lo"},
    # A rank that waits gives its core to one that works.
    defaults_oversubscribed={"OMPI_MCA_mpi_yield_when_idle": "1"},
    # coll/han, of several hosts, ends a barrier well in which a rank has failed; the others Open MPI leaves out, too.
    defaults_elastic={"OMPI_MCA_coll": "^han,hcoll,portals4"},
    # MPI shares no memory between processes of several starts. With what one asks of another it would get a description
    # of the machine, three times, and mpirun's PMIx never frees what it sends: each looks at the machine by itself.
    defaults_reserve={
        "OMPI_MCA_btl": "^ofi",
        "OMPI_MCA_btl_tcp_if_include": "lo",
        "PRTE_MCA_hwloc_default_binding_policy": "none",
        "PRTE_MCA_pmix_hwloc_shared_memory": "0",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    },
)

# It never waits for whole lines.
OPEN_MPI_4 = OPEN_MPI._replace(
    mark=r"\((?:Open MPI|OpenRTE)\) 4",
    live=(),
    elastic=(),
    ended_by=signal.SIGTERM,
    agent="OMPI_MCA_plm_rsh_agent",
)


MPICH = Mpi(
    name="MPICH",
    mark="HYDRA build details",
    live=(),
    variable=lambda name: (),  # all that mpirun has itself
    hosts=lambda hosts: ("-hosts", _host_list(hosts)),
    bound=lambda cores: ("-bind-to", f"core:{cores}"),
    unbound=("-bind-to", "none"),
    oversubscribed=("-bind-to", "none"),
    as_root=(),
    elastic=(),
    ended_by=signal.SIGTERM,
    agent="",  # it knows the batch systems itself
    defaults={"UCX_DEBUG_SIGNO": "0"},
    defaults_one_host={},
    defaults_oversubscribed={},
    defaults_elastic={},
    defaults_reserve={},
)


def _repeated(hosts: Sequence[Host]) -> tuple[str, ...]:
    """Each name once for every `-ppn` of its slots: Intel MPI knows no `name:slots` on the command line."""
    at_once = math.gcd(*(host.slots for host in hosts))
    names = [host.name for host in hosts for _ in range(host.slots // at_once)]
    return ("-hosts", ",".join(names), "-ppn", str(at_once))


INTEL_MPI = MPICH._replace(
    name="Intel MPI",
    mark=r"Intel\(R\) MPI Library",
    hosts=_repeated,
    # -bind-to is ignored. "auto": the CPUs of a host through its ranks, which is how a plan divides cores.
    bound=lambda cores: ("-genv", "I_MPI_PIN", "on", "-genv", "I_MPI_PIN_DOMAIN", "auto"),
    unbound=("-genv", "I_MPI_PIN", "off"),
    oversubscribed=("-genv", "I_MPI_PIN", "off"),
)

KNOWN = (OPEN_MPI, OPEN_MPI_4, MPICH, INTEL_MPI)


def job_variables(mpi: Mpi, plan: Plan, environ: Mapping[str, str], elastic: bool = False) -> dict[str, str]:
    """The variables that every rank gets, those of the MPI among them. elastic: ranks may be lost."""
    defaults = {
        **mpi.defaults,
        **(mpi.defaults_one_host if plan.one_host else {}),
        **(mpi.defaults_oversubscribed if plan.oversubscribed else {}),
        **(mpi.defaults_elastic if elastic else {}),
        **(mpi.defaults_reserve if plan.reserve else {}),
    }
    return {**plan.variables, **{name: environ.get(name, value) for name, value in defaults.items()}}


def agent_variables(mpi: Mpi, agent: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The variable of mpirun itself by which it takes this agent, unless the user has named one."""
    return {mpi.agent: agent} if agent and mpi.agent and mpi.agent not in environ else {}


def build_argv(
    mpi: Mpi, mpirun: Path, plan: Plan, variables: Iterable[str], command: Sequence[str], elastic: bool = False
) -> list[str]:
    """`mpirun` with everything the plan says spelt out, then `command`. Of `variables` it has the names: any user of a
    machine may read a command line.
    """
    named = plan.hosts if plan.hosts[0].name else ()
    if plan.oversubscribed or plan.reserve:
        placement = mpi.oversubscribed
    else:
        placement = mpi.bound(plan.cores_per_rank) if plan.bound else mpi.unbound
    return [
        str(mpirun),
        *(mpi.as_root if plan.as_root else ()),
        *(mpi.live if plan.live else ()),
        *(mpi.elastic if elastic else ()),
        "-n",
        str(plan.nproc + plan.reserve),
        *(mpi.hosts(named) if named else ()),
        *placement,
        *(word for name in sorted(variables) for word in mpi.variable(name)),
        *command,
    ]


def worker_command(python: str, module: bool, target: str, arguments: Sequence[str]) -> list[str]:
    """What each rank runs: the interpreter, the worker by its path, and the user's script or module with its arguments.

    By its path, because a file or folder called `launch` in the user's working directory would hide the package.
    """
    worker = Path(__file__).with_name("worker.py")
    return [python, str(worker), *(("-m",) if module else ()), *map(escape, (target, *arguments))]


def escape(word: str) -> str:
    """An argument as mpirun passes it on: to all of them a lone `:` says that another program follows.

    It gets one `:` more, as has any word of nothing else, so that `unescape` in rank.py can tell.
    """
    return f":{word}" if word and not word.strip(":") else word
