"""How many ranks the options ask for together."""

import pytest

from launch import LaunchError
from launch.gpus import Gpus
from launch.hosts import Found, Host
from launch.machine import Machine
from launch.sizes import check_started_once, settle

EIGHT = Machine(cores=8, whole=True)
HERE = Found()
TWO = Found((Host("a", 2, 8), Host("b", 6, 8)), "the hostfile's slots")
SLURM = Found((Host("", 4, 8), Host("", 4, 8)), "the job's tasks", "Slurm job 7")


@pytest.mark.parametrize(
    ("nproc", "per_node", "nodes", "found", "gpus", "ranks", "slots"),
    [
        (None, None, None, HERE, 0, None, []),
        (3, None, 1, HERE, 0, 3, []),
        (None, 2, 1, HERE, 0, 2, []),
        (None, "auto", None, HERE, 2, None, []),
        (None, "gpu", None, HERE, 2, None, []),
        (None, "cpu", None, HERE, 2, 8, []),
        (None, 3, 2, TWO, 0, 6, [3, 3]),
        (None, "auto", 2, TWO, 0, None, [2, 6]),
        (None, "cpu", 2, TWO, 0, 16, [8, 8]),
        (None, "gpu", 2, TWO, 4, 8, [4, 4]),
        (None, 4, 2, SLURM, 0, 8, [4, 4]),
    ],
)
def test_sizes(
    nproc: int | None,
    per_node: int | str | None,
    nodes: int | None,
    found: Found,
    gpus: int,
    ranks: int | None,
    slots: list[int],
) -> None:
    settled, hosts = settle(nproc, per_node, nodes, found, EIGHT, Gpus(gpus))
    assert (settled, [host.slots for host in hosts.hosts]) == (ranks, slots)


@pytest.mark.parametrize(
    ("nproc", "per_node", "nodes", "found", "message"),
    [
        (4, 2, None, TWO, "-n is the number of ranks in all, --nproc-per-node that on each host: give one"),
        (None, None, 2, HERE, r"--nnodes 2: there is 1 \(this machine\); ddprun is started once for all hosts"),
        (None, None, 1, TWO, r"--nnodes 1: there are 2 \(a, b\)"),
        (None, None, 1, SLURM, "--nnodes 1: there are 2; "),
        (None, "gpu", None, HERE, "there is no GPU here"),
        (None, 2, None, SLURM, "Slurm job 7 has 4,4 tasks on its nodes.* --ntasks-per-node=2"),
    ],
)
def test_what_does_not_fit_together(
    nproc: int | None, per_node: int | str | None, nodes: int | None, found: Found, message: str
) -> None:
    with pytest.raises(LaunchError, match=message):
        settle(nproc, per_node, nodes, found, EIGHT, Gpus())


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"SLURM_STEP_NUM_TASKS": "4"}, r"srun has started ddprun 4 times.*leave it out \(`srun -n N python SCRIPT`\)"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "mpirun has started ddprun 2 times"),
        ({"PMI_SIZE": "2"}, "mpiexec has started ddprun 2 times"),
    ],
)
def test_ddprun_is_started_once(environ: dict[str, str], message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        check_started_once(environ)


@pytest.mark.parametrize(
    "environ",
    [{}, {"SLURM_STEP_NUM_TASKS": "1"}, {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PTY_PORT": "1"}, {"PMI_SIZE": "1"}],
)
def test_a_shell_within_a_job_is_no_launcher(environ: dict[str, str]) -> None:
    check_started_once(environ)
