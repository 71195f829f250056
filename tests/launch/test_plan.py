"""What is decided for which settings and surroundings."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.hosts import Found, Host
from launch.machine import Machine
from launch.plan import THREAD_VARIABLES, describe, ranks_per_host
from tests.launch.plans import plan_of


@pytest.mark.parametrize(
    ("nproc", "ranks", "cores_per_rank", "bound", "oversubscribed"),
    [
        (None, 8, 1, True, False),
        (1, 1, 8, True, False),
        (2, 2, 4, True, False),
        (3, 3, 2, True, False),
        (8, 8, 1, True, False),
        (9, 9, 1, False, True),
        (64, 64, 1, False, True),
    ],
)
def test_on_a_machine_of_eight_cores(
    nproc: int | None, ranks: int, cores_per_rank: int, bound: bool, oversubscribed: bool
) -> None:
    plan = plan_of(nproc=nproc)
    assert (plan.nproc, plan.ranks) == (ranks, (ranks,))
    assert (plan.cores_per_rank, plan.bound, plan.oversubscribed) == (cores_per_rank, bound, oversubscribed)
    assert plan.variables == dict.fromkeys(THREAD_VARIABLES, str(cores_per_rank)) | {"ALLSTRIDE_NPROC": str(ranks)}


def test_part_of_a_machine_is_not_bound() -> None:
    plan = plan_of(nproc=2, machine=Machine(cores=4, whole=False))
    assert (plan.bound, plan.oversubscribed, plan.cores_per_rank) == (False, False, 2)


def test_thread_counts_of_the_user_are_kept() -> None:
    plan = plan_of(nproc=2, environ={"OMP_NUM_THREADS": "3"})
    assert plan.variables["OMP_NUM_THREADS"] == "3"
    assert plan.variables["OPENBLAS_NUM_THREADS"] == "4"


HOSTFILE = Found((Host("a", 2, 8), Host("b", 6, 8)), "the hostfile's slots")


@pytest.mark.parametrize(
    ("nproc", "ranks", "cores_per_rank", "oversubscribed"),
    [
        (None, (2, 6), 1, False),
        (1, (1, 0), 8, False),
        (4, (2, 2), 4, False),
        (8, (2, 6), 1, False),
        (10, (3, 7), 1, True),
    ],
)
def test_on_two_hosts(nproc: int | None, ranks: tuple[int, ...], cores_per_rank: int, oversubscribed: bool) -> None:
    plan = plan_of(nproc=nproc, found=HOSTFILE)
    assert plan.hosts == HOSTFILE.hosts
    assert (plan.ranks, plan.cores_per_rank, plan.oversubscribed) == (ranks, cores_per_rank, oversubscribed)


def test_a_host_with_fewer_cores_than_slots_is_oversubscribed() -> None:
    assert plan_of(nproc=9, found=Found((Host("localhost", 16, 8),))).oversubscribed
    assert not plan_of(nproc=8, found=Found((Host("localhost", 16, 8),))).oversubscribed


def test_other_hosts_get_what_a_script_may_depend_on() -> None:
    environ = {"PYTHONPATH": "src", "HOME": "here", "SECRET": "s"}
    own = {*THREAD_VARIABLES, "ALLSTRIDE_NPROC"}
    two_hosts = plan_of(environ=environ, found=HOSTFILE).variables
    assert {name: two_hosts[name] for name in two_hosts if name not in own} == {"PYTHONPATH": "src", "MASTER_ADDR": "a"}
    assert set(plan_of(environ=environ).variables) == own  # on this machine they are inherited


def test_the_first_host_with_ranks_is_the_master() -> None:
    assert plan_of(nproc=8, found=HOSTFILE).variables["MASTER_ADDR"] == "a"
    assert plan_of(found=HOSTFILE, environ={"MASTER_ADDR": "x"}).variables["MASTER_ADDR"] == "x"
    slurm = Found((Host("", 2, 8),) * 2, "the job's tasks", "Slurm job 7", first="node01")
    assert plan_of(found=slurm).variables["MASTER_ADDR"] == "node01"


def test_variables_that_were_given_come_before_all_others() -> None:
    variables = plan_of(environ={"OMP_NUM_THREADS": "2"}, given={"OMP_NUM_THREADS": "3", "X": ""}).variables
    assert (variables["OMP_NUM_THREADS"], variables["X"]) == ("3", "")


@given(st.integers(1, 200), st.lists(st.integers(1, 20), min_size=1, max_size=8))
def test_every_rank_has_a_host_and_slots_fill_first(nproc: int, slots: list[int]) -> None:
    ranks = ranks_per_host(nproc, tuple(slots))
    assert sum(ranks) == nproc
    over = [count - limit for count, limit in zip(ranks, slots, strict=True)]
    if nproc <= sum(slots):
        assert max(over) <= 0
    else:
        assert min(over) >= 0
        assert max(over) - min(over) <= 1


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, "8 ranks (one a core) on 8 cores, 1 thread each (cores / ranks), each bound to 1 core"),
        ({"nproc": 2}, "2 ranks (as asked) on 8 cores, 4 threads each (cores / ranks), each bound to 4 cores"),
        ({"nproc": 1}, "1 rank (as asked) on 8 cores, 8 threads each (cores / ranks), each bound to 8 cores"),
        (
            {"nproc": 9},
            "9 ranks (as asked) on 8 cores, 1 thread each (cores / ranks), oversubscribed and therefore not bound",
        ),
        (
            {"machine": Machine(cores=2, whole=False, limit="control group: 2.5 CPUs"), "as_root": True},
            (
                "2 ranks (one a core) on 2 cores (control group: 2.5 CPUs), 1 thread each (cores / ranks), "
                "not bound because only part of the machine may be used, as root"
            ),
        ),
        (
            {"nproc": 8, "environ": {"OMP_NUM_THREADS": "3"}},
            (
                "8 ranks (as asked) on 8 cores, 1 thread each (cores / ranks) except OMP_NUM_THREADS=3 as set, "
                "each bound to 1 core"
            ),
        ),
        (
            {"found": HOSTFILE},
            "8 ranks (the hostfile's slots) on a: 2, b: 6, 1 thread each (cores / ranks), each bound to 1 core",
        ),
        (
            {"found": Found((Host("", 4, 8),) * 2, "the job's tasks", "Slurm job 7, SLURM_TASKS_PER_NODE")},
            (
                "8 ranks (the job's tasks) on 2 nodes (Slurm job 7, SLURM_TASKS_PER_NODE), 2 threads each "
                "(cores / ranks), each bound to 2 cores"
            ),
        ),
        (
            {"found": Found((Host("a", 4, 8), Host("b", 4, 8)), "the job's slots", "PBS job 9.pbs, PBS_NODEFILE")},
            (
                "8 ranks (the job's slots) on a: 4, b: 4 (PBS job 9.pbs, PBS_NODEFILE), 2 threads each "
                "(cores / ranks), each bound to 2 cores"
            ),
        ),
    ],
)
def test_described(changed: dict[str, Any], words: str) -> None:
    assert describe(plan_of(**changed), changed.get("environ", {})) == words
