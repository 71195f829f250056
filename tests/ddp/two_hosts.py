"""Two hosts on one machine: two network namespaces of our own, joined by a cable of 1 Gbit/s and 1 ms delay.

    python -m tests.ddp.two_hosts      # as root: 25 MiB over 2 + 2 ranks, hierarchical beside MPI's own Allreduce

To MPI a namespace with a host name and an address of its own is a host. mpirun starts itself on the first one, and its
daemon on the second by a remote shell that only enters the namespace. Nothing outside the two namespaces is touched,
and they go away, with whatever still runs in them, when the block ends.
"""

import contextlib
import os
import shutil
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from launch.find import identify
from launch.hosts import Host
from launch.testing.process import ask_to_end_with_parent, mpirun_command
from tests.mpi_job import ROOT, python_path

_ADDRESS = "10.213.7.{}"
_CABLE = "rate 1gbit delay 1ms limit 100000"
_RATE_ONLY = "rate 1gbit burst 128kb latency 100ms"

# How each MPI takes the cable between them, in the environment of mpirun. Ranks of both share this machine's cores.
NETWORK = {
    "PRTE_MCA_prte_keep_fqdn_hostnames": "1",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_btl": "^ofi,uct,openib,usnic",
    "OMPI_MCA_btl_tcp_if_include": "e0",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "I_MPI_HYDRA_IFACE": "e0",
    "FI_TCP_IFACE": "e0",
    # MPICH would else go around the cable, through memory that the namespaces share.
    "UCX_TLS": "tcp,self",
    "UCX_NET_DEVICES": "e0",
    "MPIR_CVAR_NOLOCAL": "1",
}

_AGENT = """#!/bin/bash
# A remote shell for mpirun: agent [-option]... HOST COMMAND...
while [[ $1 == -* ]]; do shift; done
host=$1; shift
exec ip netns exec "$host" unshare --uts bash -c "hostname $host; $*"
"""

_REMOVE = """
read -r
folder=$1; shift
for name; do
    for _ in {1..100}; do  # until those that were killed are gone, who may still write
        pids=$(ip netns pids "$name")
        [ -n "$pids" ] || break
        kill -9 $pids
        sleep 0.05
    done
    ip netns delete "$name"
done
rm -rf "$folder"
"""


class NotPossibleError(Exception):
    """Why there cannot be two hosts here."""


@dataclass(frozen=True, slots=True)
class Hosts:
    """Their names, a folder for what runs there, and what is between them, in words."""

    names: tuple[str, ...]
    folder: Path
    cable: str

    def set_cable(self, state: str) -> None:
        """Plugs it in, "up", or out, "down"."""
        must("ip", "-netns", self.names[1], "link", "set", "e0", state)

    def lose_packets(self) -> None:
        """As where a switch between them fails: nothing that is sent arrives, and both devices stay up."""
        for number, name in enumerate(self.names, 1):
            nobody = f"{_ADDRESS.format(3 - number)} lladdr 02:00:00:00:00:00 dev e0 nud permanent"
            must("ip", "-netns", name, "neigh", "replace", *nobody.split())

    def processes(self) -> list[str]:
        """What still runs on them."""
        listed = [subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True) for name in self.names]
        return [pid for one in listed for pid in one.stdout.split()]

    def run(self, arguments: Sequence[str], ranks: int, timeout: float) -> subprocess.CompletedProcess[str]:
        """Run Python with these arguments on `ranks` ranks, dealt to the hosts in order, the first ones first.

        AssertionError, with all that it said: it has not ended after `timeout` seconds.
        """
        hostfile, agent = self.folder / "hosts", self.folder / "agent"
        slots = -(-ranks // len(self.names))
        hostfile.write_text("".join(f"{name} slots={slots}\n" for name in self.names))
        agent.write_text(_AGENT)
        agent.chmod(0o755)
        settings = {
            "PYTHONPATH": python_path(),
            "TMPDIR": str(self.folder),  # an mpirun that is killed leaves its files
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "PRTE_MCA_plm_ssh_agent": str(agent),
            "OMPI_MCA_plm_rsh_agent": str(agent),  # Open MPI 4
            **NETWORK,
            "OMPI_MCA_osc": "^ucx",
            "I_MPI_PIN": "off",
            **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"),
        }
        mpirun = mpirun_command(ranks)
        mpi, _ = identify(Path(mpirun[0]))
        if mpi.name == "Open MPI":
            mpirun += ["--hostfile", str(hostfile), *(word for name in settings for word in ("-x", name))]
        else:  # Hydra exports what it has itself
            mpirun += [*mpi.hosts([Host(name, slots, 1) for name in self.names]), "-iface", "e0"]
            mpirun += ["-launcher", "ssh", "-launcher-exec", str(agent)]
        mpirun += [sys.executable, *arguments]
        enter = ["ip", "netns", "exec", self.names[0], "unshare", "--uts", "bash", "-c"]
        command = [*enter, f'hostname {self.names[0]}; exec "$@"', "bash", *mpirun]
        try:
            return subprocess.run(
                command,
                env={**os.environ, **settings},
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=timeout,
                preexec_fn=ask_to_end_with_parent,
            )
        except subprocess.TimeoutExpired as late:
            said = b"".join(stream for stream in (late.stdout, late.stderr) if stream).decode(errors="replace")
            raise AssertionError(f"{arguments} has not ended on two hosts after {timeout} s; said\n{said}") from None


@contextlib.contextmanager
def namespaces(count: int) -> Iterator[tuple[tuple[str, ...], Path]]:
    """So many network namespaces with nothing in them, and a folder. They and it are gone when the block ends, or this
    process. Raises NotPossibleError, with the reason, where they cannot be made.
    """
    if missing := [tool for tool in ("ip", "tc", "unshare") if shutil.which(tool) is None]:
        raise NotPossibleError(f"there is no {' and no '.join(missing)} (packages iproute2, util-linux)")
    names = tuple(f"allstride{os.getpid()}{letter}" for letter in string.ascii_lowercase[:count])
    folder = tempfile.mkdtemp(prefix="allstride-hosts-")
    # It holds the other end of a pipe of ours, so it also acts when this process is killed.
    remover = subprocess.Popen(
        ["bash", "-c", _REMOVE, "bash", folder, *names],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        for name in names:
            must("ip", "netns", "add", name)
            must("ip", "-netns", name, "link", "set", "lo", "up")
        yield names, Path(folder)
    finally:
        remover.communicate()


@contextlib.contextmanager
def two_hosts() -> Iterator[Hosts]:
    """Two namespaces and their cable. Raises NotPossibleError, with the reason, where they cannot be made."""
    with namespaces(2) as (names, folder):
        must(*f"ip link add e0 netns {names[0]} type veth peer name e0 netns {names[1]}".split())
        for number, name in enumerate(names, 1):
            give_address(name, number)
            cable = _shape(name)
        for name in names:
            wait_for_cable(name)
        yield Hosts(names, folder, cable)


def give_address(name: str, number: int) -> None:
    """To the device e0 of a host, by its number, from 1 on."""
    must("ip", "-netns", name, "address", "add", f"{_ADDRESS.format(number)}/24", "dev", "e0")
    must("ip", "-netns", name, "link", "set", "e0", "up")


def wait_for_cable(name: str) -> None:
    """The kernel says up to a second late that a cable is there, and UCX, below MPICH, uses no device without one."""
    deadline = time.monotonic() + 5.0
    show = ["ip", "-netns", name, "link", "show", "e0"]
    while b"state UP" not in subprocess.run(show, capture_output=True).stdout and time.monotonic() < deadline:
        time.sleep(0.02)


def _shape(name: str) -> str:
    """Rate and delay of what leaves a host; a kernel without netem can only limit the rate."""
    attach = f"tc -netns {name} qdisc add dev e0 root".split()
    with contextlib.suppress(NotPossibleError):
        must(*attach, "netem", *_CABLE.split())
        return "1 Gbit/s, 1 ms"
    must(*attach, "tbf", *_RATE_ONLY.split())
    return "1 Gbit/s, no delay: this kernel has no netem"


def must(*command: str) -> None:
    """Runs it. Raises NotPossibleError, with what it said, where it fails."""
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode:
        raise NotPossibleError(f"{' '.join(command)}: {ended.stderr.strip()}")


def main() -> None:
    """Measure and print JSON lines as of `ddp.bench`."""
    with two_hosts() as hosts:
        print(f"cable: {hosts.cable}", file=sys.stderr)
        size = ["--min-bytes", "25M", "--max-bytes", "25M"]
        which = ["--transport", "hierarchical", "--transport", "mpi", "--transport", "mpi_library"]
        ended = hosts.run(["-m", "ddp.bench", "--json", *which, *size], ranks=4, timeout=300)
    sys.stdout.write(ended.stdout)
    sys.stderr.write(ended.stderr)
    sys.exit(ended.returncode)


if __name__ == "__main__":
    main()
