"""Entering the world of ranks, and being told when it is not the one that was asked for."""

import os
import subprocess
import sys

import pytest

from ddp.world import bootstrap
from ddp.world.bootstrap import Launch, check_size, prepare_environment, read_launch
from tests.mpi_job import python_path, run_job

START = "from ddp.world import bootstrap\nworld = bootstrap.start_world()\n"


def run_alone(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program without a launcher."""
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": python_path(), **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.mpi(ranks=[1, 2, 3, 4])
def test_the_world_is_that_of_the_launcher(ranks: int) -> None:
    from mpi4py import MPI

    granted = MPI.Query_thread()
    world = bootstrap.start_world()
    assert MPI.Query_thread() == granted  # what is set by MPI's tool interface leaves it alone
    assert (world.rank, world.size) == (MPI.COMM_WORLD.rank, ranks)
    assert (world.local_rank, world.local_size) == (world.rank, ranks)
    assert world.thread_level == MPI.Query_thread()
    assert MPI.Comm.Compare(world.comm, MPI.COMM_WORLD) == MPI.CONGRUENT  # same ranks, private traffic
    assert bootstrap.default_world() is world
    assert world.exchange(("rank", world.rank)) == [("rank", rank) for rank in range(ranks)]
    with pytest.raises(ValueError, match="initialize the default process group twice"):
        bootstrap.start_world()
    bootstrap.stop_world()
    assert not bootstrap.is_started()
    assert bootstrap.start_world().size == ranks
    bootstrap.stop_world()


def test_importing_ddp_starts_nothing() -> None:
    result = run_alone("import sys, ddp\nprint('mpi4py' in sys.modules)")
    assert (result.stdout, result.stderr) == ("False\n", "")


def test_no_world_before_it_is_started() -> None:
    assert not bootstrap.is_started()
    with pytest.raises(ValueError, match="Default process group has not been initialized"):
        bootstrap.default_world()


def test_a_plain_process_is_a_world_of_one() -> None:
    result = run_alone(f"{START}print(world.rank, world.size, world.local_rank, world.local_size, world.exchange(7))")
    assert (result.stdout, result.stderr) == ("0 1 0 1 [7]\n", "")


def test_a_world_of_one_needs_no_mpi() -> None:
    program = f"{START}print(world.comm, world.size, world.exchange(7))\nbootstrap.stop_world()"
    result = run_alone(program, MPI4PY_LIBMPI="missing-libmpi.so")
    assert (result.stdout, result.stderr) == ("None 1 [7]\n", "")


def test_a_launched_process_that_cannot_load_mpi_is_told_so() -> None:
    result = run_alone(START, MPI4PY_LIBMPI="missing-libmpi.so", OMPI_COMM_WORLD_SIZE="4")
    assert result.returncode == 1
    assert "Open MPI's mpirun started 4 processes, but this one cannot use MPI" in result.stderr
    assert "missing-libmpi.so" in result.stderr


def test_an_mpirun_of_another_mpi_is_recognised() -> None:
    """To Open MPI, what MPICH's mpiexec starts looks like single processes."""
    result = run_alone(START, PMI_SIZE="4", PMI_RANK="0")
    assert result.returncode == 1
    assert "the mpiexec of MPICH or Intel MPI started 4 processes, but MPI sees 1 rank" in result.stderr


def test_an_srun_that_speaks_another_language_is_told_which_it_should() -> None:
    result = run_alone(START, PMI_SIZE="4", PMI_RANK="0", SLURM_STEP_NUM_TASKS="4", SLURM_MPI_TYPE="pmi2")
    assert result.returncode == 1
    assert (
        "srun started 4 processes, but MPI sees 1 rank: it does not speak srun's language (--mpi=pmi2)" in result.stderr
    )


def test_a_world_of_another_size_than_asked_for_is_refused() -> None:
    result = run_alone(START, ALLSTRIDE_NPROC="4")
    assert result.returncode == 1
    assert (
        "ddprun was asked for 4 ranks, but MPI sees 1: is the mpirun that started them from another MPI"
        in result.stderr
    )


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"OMPI_COMM_WORLD_SIZE": "3"}, Launch("Open MPI's mpirun", 3)),
        ({"PMI_SIZE": "2"}, Launch("the mpiexec of MPICH or Intel MPI", 2)),
        ({"SLURM_NTASKS": "8"}, None),
        ({"SLURM_STEP_NUM_TASKS": "8"}, Launch("srun", 8)),
        ({"SLURM_STEP_NUM_TASKS": "8", "PMI_SIZE": "8"}, Launch("srun", 8)),
        ({"SLURM_STEP_NUM_TASKS": "2", "PMI_SIZE": "8"}, Launch("the mpiexec of MPICH or Intel MPI", 8)),
        ({"PMI_SIZE": "many"}, None),
    ],
)
def test_launchers_are_known_by_their_variables(environment, expected) -> None:
    assert read_launch(environment) == expected


def test_sizes_that_agree_are_accepted() -> None:
    check_size(None, {}, 1)
    check_size(Launch("mpirun", 4), {"ALLSTRIDE_NPROC": "4"}, 4)
    check_size(Launch("mpirun", 1), {"ALLSTRIDE_NPROC": "1"}, 1)


def test_settings_of_the_user_stay() -> None:
    environment = {"OMPI_MCA_osc": "ucx"}
    prepare_environment(environment)
    assert environment == {"OMPI_MCA_osc": "ucx", "OMPI_MCA_btl": "^ofi"}


def test_ucx_is_for_jobs_on_several_hosts() -> None:
    one = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}
    several = one | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    for environment in (one, several):
        prepare_environment(environment)
    assert one["OMPI_MCA_pml"] == "^ucx"
    assert "OMPI_MCA_pml" not in several


@pytest.mark.parametrize(
    "runner", [(), pytest.param(("-m", "mpi4py"), marks=pytest.mark.full)], ids=["python", "python -m mpi4py"]
)
def test_an_exception_on_one_rank_ends_all_with_its_traceback(runner) -> None:
    program = START + "if world.rank == 1:\n    raise KeyError('lost')\nworld.comm.Barrier()\n"
    result = run_job(program, 3, timeout=30, runner=runner)
    assert result.returncode != 0
    assert result.stderr.startswith("rank 1 of 3 raised:\nTraceback (most recent call last):\n")
    assert result.stderr.count("KeyError: 'lost'") == 1


@pytest.mark.full
def test_a_rank_that_leaves_without_stopping_the_world_ends_in_peace() -> None:
    program = START + (
        "from ddp.transport import choose_transport\nfrom engine.kernels import waiting\n"
        "waiting.speak(False)\n"  # of kernels that a first run compiles
        "choose_transport(world.comm)\nprint('done')\n"
    )
    result = run_job(program, 2, timeout=30)
    assert (result.returncode, result.stdout, result.stderr) == (0, "done\ndone\n", "")
