"""ddprun with two hosts (`tests.ddp.two_hosts`): the remote shell by which it reaches the second, its environment."""

import sys
from collections.abc import Sequence
from pathlib import Path

from tests.ddp.two_hosts import NETWORK, Hosts

ROOT = Path(__file__).parents[2]

# A remote shell for mpirun: enters the other network namespace, and a process namespace that lasts as long as there is
# somebody in it, in a session that mpirun cannot end, and without mpirun's environment: as ssh and another host do.
# It ends when the command has, whoever is left there: Hydra's mpirun waits for it, and guards wait for mpirun's end.
# With a folder for temporary files of its own: Open MPI's daemon calls its folder by its process id, which is the same
# in each new process namespace, and one that is killed leaves the folder in the way of the next job's.
AGENT = """#!/bin/bash
while [[ $1 == -* ]]; do shift; done
host=$1; shift
enter=(ip netns exec "$host" unshare --uts --pid --fork --mount-proc setsid)
for each in /proc/$$/fd/*; do  # mpirun's pipes, which Hydra lets its children inherit
    n=${each##*/}; [[ $n -gt 2 && $n -lt 255 ]] && exec {n}>&-
done
exec 4<&0 5>&1
exec 3< <(exec env -i PATH="$PATH" HOME="$HOME" TMPDIR="${0%/*}/other" "${enter[@]}" bash -c "hostname $host; {
$*
} <&4 >&5 3<&- 4<&- 5>&-
echo \\$?
exec </dev/null >/dev/null 2>&1 3<&- 4<&- 5>&-
while set -- /proc/[0-9]*; [ \\$# -gt 1 ]; do sleep 0.05; done")
read -r code <&3
kill -9 $!  # else it keeps mpirun's pipes open; who is in the namespace stays
exit "${code:-255}"
"""


def hostfile_of(hosts: Hosts, folder: Path) -> Path:
    """The file for ddprun, with two ranks on each."""
    hostfile = folder / "hosts"
    hostfile.write_text("".join(f"{name} slots=2\n" for name in hosts.names))
    return hostfile


def prepare(hosts: Hosts, folder: Path) -> dict[str, str]:
    """Writes what ddprun needs into a folder, once; returns the variables of its environment."""
    agent = folder / "agent"
    agent.write_text(AGENT)
    agent.chmod(0o755)
    (folder / "tmp").mkdir()
    (folder / "other").mkdir()
    return {
        "PYTHONPATH": str(ROOT),
        "TMPDIR": str(folder / "tmp"),
        "PRTE_MCA_plm_ssh_agent": str(agent),
        "OMPI_MCA_plm_rsh_agent": str(agent),  # Open MPI 4
        **NETWORK,
        "HYDRA_LAUNCHER": "ssh",
        "HYDRA_LAUNCHER_EXEC": str(agent),
        "HYDRA_IFACE": "e0",
        "I_MPI_HYDRA_BOOTSTRAP": "ssh",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC": str(agent),
    }


def ddprun(hosts: Hosts, arguments: Sequence[str]) -> list[str]:
    """The command that starts it on the first host."""
    first = hosts.names[0]
    enter = ["ip", "netns", "exec", first, "unshare", "--uts", "bash", "-c", f'hostname {first}; exec "$@"', "bash"]
    return [*enter, sys.executable, "-P", "-m", "launch", *arguments]
