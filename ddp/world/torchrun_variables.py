"""The environment variables by which torchrun tells a script who it is, set where another launcher started it.

`ddprun` sets them before the script begins. Under plain mpirun or srun `import ddp` sets what the launcher's own
variables say, so that `os.environ["LOCAL_RANK"]` may stand before `init_process_group`, and that sets what MPI says.
"""

from collections.abc import Mapping, MutableMapping
from socket import gethostname

from ddp.world.bootstrap import World

# Where each is found: set for each process by Open MPI, by the Hydra of MPICH and Intel MPI, by MVAPICH, by srun.
_SOURCES = {
    "WORLD_SIZE": ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"),
    "RANK": ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID"),
    "LOCAL_RANK": ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "MV2_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"),
    "LOCAL_WORLD_SIZE": ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_LOCAL_SIZE"),
}
# Nobody listens there: MPI's ranks find each other by themselves.
PORT = "29500"


def set_from_launcher(environment: MutableMapping[str, str]) -> None:
    """Sets what the variables of mpirun or srun say, where somebody has not set it; nothing without a launcher.

    A Slurm batch script that nothing launched has some of srun's variables, but not the size of the step.
    """
    if not _known(environment, "WORLD_SIZE"):
        return
    for name in _SOURCES:
        if found := _known(environment, name):
            environment.setdefault(name, found)


def set_from_world(environment: MutableMapping[str, str], world: World) -> None:
    """Collective: sets what MPI says of this rank. The address is that of rank 0's host, unless somebody has set one.

    Raises RuntimeError in a process that torchrun started beside others: each would be a world of its own.
    """
    _check_torchrun(environment, world.size)
    environment["RANK"], environment["WORLD_SIZE"] = str(world.rank), str(world.size)
    environment["LOCAL_RANK"], environment["LOCAL_WORLD_SIZE"] = str(world.local_rank), str(world.local_size)
    address = "localhost"
    if world.comm is not None and world.local_size != world.size:  # several hosts; so says every rank, or none
        address = world.comm.bcast(gethostname(), root=0)
    environment.setdefault("MASTER_ADDR", address)
    environment.setdefault("MASTER_PORT", PORT)


def _known(environment: Mapping[str, str], name: str) -> str:
    return next((environment[source] for source in _SOURCES[name] if environment.get(source, "").isdecimal()), "")


def _check_torchrun(environment: Mapping[str, str], size: int) -> None:
    asked = environment.get("WORLD_SIZE", "")
    if size == 1 and "TORCHELASTIC_RUN_ID" in environment and asked.isdecimal() and int(asked) > 1:
        raise RuntimeError(
            f"torchrun started {asked} processes, which MPI knows nothing of: each would train alone; start them with "
            "ddprun, which takes --nproc-per-node, --nnodes and --standalone as well"
        )
