"""How many ranks were asked for, on how many hosts: what `-n`, `--nproc-per-node` and `--nnodes` say together."""

from collections.abc import Mapping

from launch import LaunchError
from launch.gpus import Gpus
from launch.hosts import Found
from launch.machine import Machine

# How many ranks a launcher has started, as it tells each of them, and what is typed to have it start a script.
_STARTED = {
    "SLURM_STEP_NUM_TASKS": "srun -n N",
    "OMPI_COMM_WORLD_SIZE": "mpirun -n N",
    "PMI_SIZE": "mpiexec -n N",
}


def check_started_once(environ: Mapping[str, str]) -> None:
    """Raises LaunchError where a launcher has started several of this process, each of which would start all ranks."""
    for variable, command in _STARTED.items():
        size = environ.get(variable, "")
        # A job's own shell (srun --pty) tells the size too, and a script on a rank may run ddprun for another job.
        if size.isdecimal() and int(size) > 1 and not {"SLURM_PTY_PORT", "DDPRUN_JOB"} & environ.keys():
            raise LaunchError(
                f"{command.split()[0]} has started ddprun {size} times ({variable}), and each would start all ranks: "
                f"start it once (`ddprun SCRIPT` in the batch script), or leave it out (`{command} python SCRIPT`)"
            )


def settle(
    nproc: int | None, per_node: int | str | None, nodes: int | None, found: Found, machine: Machine, gpus: Gpus
) -> tuple[int | None, Found]:
    """The number of ranks in all, None for the default, and the hosts with as many slots as each is to take ranks.

    Raises LaunchError where what was asked for does not fit together.
    """
    there = max(1, len(found.hosts))
    if nodes is not None and nodes != there:
        names = ", ".join(host.name for host in found.hosts if host.name) or "this machine" * (there == 1)
        raise LaunchError(
            f"--nnodes {nodes}: there {'is' if there == 1 else 'are'} {there}{f' ({names})' if names else ''}; "
            "ddprun is started once for all hosts, which --hostfile or --host names, or a batch system's job has"
        )
    if per_node is None:
        return nproc, found
    if nproc is not None:
        raise LaunchError("-n is the number of ranks in all, --nproc-per-node that on each host: give one of them")
    if per_node == "gpu" and not gpus.number:
        raise LaunchError("--nproc-per-node gpu: there is no GPU here")
    if isinstance(per_node, str):
        if not found.hosts:
            return (machine.cores if per_node == "cpu" else None), found
        if per_node == "auto":
            return None, found
        per_node = gpus.number if per_node == "gpu" else machine.cores
    if not found.hosts:
        return per_node, found
    if not found.hosts[0].name and any(host.slots != per_node for host in found.hosts):
        tasks = ",".join(str(host.slots) for host in found.hosts)
        raise LaunchError(
            f"--nproc-per-node {per_node}: {found.source} has {tasks} tasks on its nodes, which mpirun keeps to; ask "
            f"Slurm for --ntasks-per-node={per_node}"
        )
    return per_node * there, found._replace(hosts=tuple(host._replace(slots=per_node) for host in found.hosts))
