"""RANK and the like, for scripts that were written for torchrun."""

import pytest

from ddp.world.bootstrap import World
from ddp.world.torchrun_variables import set_from_launcher, set_from_world
from tests.mpi_job import run_job

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({}, {}),
        ({"SLURM_PROCID": "0", "SLURM_LOCALID": "0"}, {}),  # a batch script: nothing was launched
        (
            {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "PMIX_RANK": "3"},
            {"WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "1"},
        ),
        (
            {"PMI_SIZE": "4", "PMI_RANK": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"},
            {"WORLD_SIZE": "4", "RANK": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"},
        ),
        ({"PMI_SIZE": "4", "PMI_RANK": "2", "RANK": "7"}, {"WORLD_SIZE": "4", "RANK": "7"}),
    ],
)
def test_what_a_launcher_says(environment: dict[str, str], found: dict[str, str]) -> None:
    both = dict(environment)
    set_from_launcher(both)
    assert {name: both[name] for name in NAMES if name in both} == found


def test_what_mpi_says_counts_and_the_address_is_the_users() -> None:
    environment = {"RANK": "7", "MASTER_ADDR": "there"}
    set_from_world(environment, World(0, 1, 0, 1, None, 0))
    assert environment == {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "there",
        "MASTER_PORT": "29500",
    }


def test_processes_of_torchrun_do_not_train_alone() -> None:
    with pytest.raises(RuntimeError, match=r"torchrun started 2 processes.* start them with ddprun"):
        set_from_world({"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "2"}, World(0, 1, 0, 1, None, 0))


def test_under_plain_mpirun() -> None:
    """Before init_process_group already, as scripts for torchrun choose their device."""
    program = """
import os
import ddp
early = [os.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")]
ddp.init_process_group()
late = [os.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")]
assert early == late == [str(ddp.get_rank()), "2", str(ddp.get_rank()), "2"], (early, late)
assert (os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]) == ("localhost", "29500")
"""
    result = run_job(program, 2, timeout=60)
    assert result.returncode == 0, result.stderr
