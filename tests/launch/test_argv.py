"""The command lines, word for word; nothing is started."""

import re
from pathlib import Path

import pytest

from ddp.transport import chunks, hierarchical
from launch.argv import (
    INTEL_MPI,
    KNOWN,
    MPICH,
    OPEN_MPI,
    OPEN_MPI_4,
    Mpi,
    build_argv,
    escape,
    job_variables,
    worker_command,
)
from launch.hosts import Found, Host
from launch.machine import Machine
from launch.plan import Plan, make_plan
from launch.rank import unescape

MPIRUN = Path("/opt/mpi/bin/mpirun")


def plan_of(
    nproc: int = 2, hosts: tuple[Host, ...] = (), whole: bool = True, as_root: bool = False, live: bool = False
) -> Plan:
    plan = make_plan(nproc=nproc, found=Found(hosts), machine=Machine(4, whole), environ={}, as_root=as_root, live=live)
    # One variable is enough to see how variables are passed.

    return plan._replace(variables={"OMP_NUM_THREADS": "2"})


BTL = "-x OMPI_MCA_btl -x OMPI_MCA_btl_tcp_eager_limit -x OMPI_MCA_btl_tcp_max_send_size"
SEVERAL_HOSTS = f"{BTL} -x OMPI_MCA_osc -x OMP_NUM_THREADS -x UCX_DEBUG_SIGNO"  # UCX may serve there
VARIABLES = (
    f"{BTL} -x OMPI_MCA_osc -x OMPI_MCA_pml -x OMP_NUM_THREADS -x PMIX_MCA_ptl_base_if_include -x UCX_DEBUG_SIGNO"
)
CROWDED = (
    f"--map-by slot:OVERSUBSCRIBE --bind-to none {BTL} -x OMPI_MCA_mpi_yield_when_idle -x OMPI_MCA_osc "
    "-x OMPI_MCA_pml -x OMP_NUM_THREADS -x PMIX_MCA_ptl_base_if_include -x UCX_DEBUG_SIGNO"
)
CASES = [
    (
        OPEN_MPI,
        plan_of(),
        f"-n 2 --map-by slot:PE=2 --bind-to core {VARIABLES}",
    ),
    (
        OPEN_MPI,
        plan_of(whole=False),
        f"-n 2 --map-by slot --bind-to none {VARIABLES}",
    ),
    (
        OPEN_MPI,
        plan_of(nproc=5, as_root=True, live=True),
        f"--allow-run-as-root --output :raw -n 5 {CROWDED}",
    ),
    (
        OPEN_MPI,
        plan_of(hosts=(Host("a", 2, 4), Host("b", 3, 4)), nproc=5),
        f"-n 5 --host a:2,b:3 --map-by slot:PE=1 --bind-to core {SEVERAL_HOSTS}",
    ),
    (  # the nodes of a Slurm job are not named: mpirun asks Slurm
        OPEN_MPI,
        plan_of(hosts=(Host("", 2, 4), Host("", 2, 4)), nproc=4),
        f"-n 4 --map-by slot:PE=2 --bind-to core {SEVERAL_HOSTS}",
    ),
    (
        OPEN_MPI_4,
        plan_of(nproc=5, as_root=True, live=True),
        f"--allow-run-as-root -n 5 {CROWDED}",
    ),
    (MPICH, plan_of(as_root=True, live=True), "-n 2 -bind-to core:2"),
    (MPICH, plan_of(whole=False), "-n 2 -bind-to none"),
    (MPICH, plan_of(nproc=5), "-n 5 -bind-to none"),
    (
        MPICH,
        plan_of(hosts=(Host("a", 2, 4), Host("b", 3, 4)), nproc=5),
        "-n 5 -hosts a:2,b:3 -bind-to core:1",
    ),
    (
        INTEL_MPI,
        plan_of(as_root=True, live=True),
        "-n 2 -genv I_MPI_PIN on -genv I_MPI_PIN_DOMAIN auto",
    ),
    (INTEL_MPI, plan_of(whole=False), "-n 2 -genv I_MPI_PIN off"),
    (INTEL_MPI, plan_of(nproc=5), "-n 5 -genv I_MPI_PIN off"),
    (  # a name stands there once for each `-ppn` of its slots
        INTEL_MPI,
        plan_of(hosts=(Host("a", 2, 4), Host("b", 3, 4)), nproc=5),
        "-n 5 -hosts a,a,b,b,b -ppn 1 -genv I_MPI_PIN on -genv I_MPI_PIN_DOMAIN auto",
    ),
    (
        INTEL_MPI,
        plan_of(hosts=(Host("a", 4, 4), Host("b", 2, 4)), nproc=7),
        "-n 7 -hosts a,a,b -ppn 2 -genv I_MPI_PIN off",
    ),
]


@pytest.mark.parametrize(("mpi", "plan", "expected"), CASES)
def test_command_line(mpi: Mpi, plan: Plan, expected: str) -> None:
    argv = build_argv(mpi, MPIRUN, plan, job_variables(mpi, plan, {}), ["python", "x"])
    assert argv == [str(MPIRUN), *expected.split(), "python", "x"]


def test_ranks_may_be_lost_where_the_mpi_can_go_on() -> None:
    command = build_argv(OPEN_MPI, MPIRUN, plan_of(), [], ["python"], elastic=True)
    assert " ".join(command).startswith("/opt/mpi/bin/mpirun --with-ft ulfm -n 2 ")
    assert [mpi.name for mpi in KNOWN if mpi.elastic] == ["Open MPI"]


def test_an_elastic_job_leaves_out_what_does_not_tell_of_a_loss() -> None:
    variables = job_variables(OPEN_MPI, plan_of(), {"OMPI_MCA_coll": "basic"}, elastic=True)
    assert variables["OMPI_MCA_coll"] == "basic"
    more = job_variables(OPEN_MPI, plan_of(), {}, elastic=True).items() - job_variables(OPEN_MPI, plan_of(), {}).items()
    assert "han" in dict(more)["OMPI_MCA_coll"]


@pytest.mark.parametrize("mpi", [OPEN_MPI, OPEN_MPI_4])
def test_a_transports_longest_message_asks_nobody_over_tcp(mpi: Mpi) -> None:
    longest = max(chunks.CHUNK_BYTES, hierarchical.CHUNK_BYTES)
    assert int(job_variables(mpi, plan_of(), {})["OMPI_MCA_btl_tcp_eager_limit"]) > longest


def test_processes_in_reserve_need_no_cores() -> None:
    command = build_argv(OPEN_MPI, MPIRUN, plan_of()._replace(reserve=2), [], ["python"], elastic=True)
    words = "/opt/mpi/bin/mpirun --with-ft ulfm -n 4 --map-by slot:OVERSUBSCRIBE --bind-to none"
    assert " ".join(command).startswith(words)


def test_every_mpi_has_a_case() -> None:
    assert {id(mpi) for mpi, _, _ in CASES} == {id(mpi) for mpi in KNOWN}


def test_settings_of_the_user_win() -> None:
    variables = job_variables(OPEN_MPI, plan_of(), {"OMPI_MCA_osc": "rdma"})
    assert variables == {
        "OMPI_MCA_osc": "rdma",
        "OMPI_MCA_btl": "^ofi,tcp",
        "OMPI_MCA_btl_tcp_eager_limit": str(2 << 20),
        "OMPI_MCA_btl_tcp_max_send_size": str(2 << 20),
        "OMPI_MCA_pml": "^ucx",
        "OMP_NUM_THREADS": "2",
        "PMIX_MCA_ptl_base_if_include": "lo",
        "UCX_DEBUG_SIGNO": "0",
    }


@pytest.mark.parametrize("mpi", [OPEN_MPI, OPEN_MPI_4])
def test_ranks_use_the_network_where_there_is_another_host(mpi: Mpi) -> None:
    two = plan_of(hosts=(Host("a", 2, 4), Host("b", 2, 4)), nproc=4)
    assert job_variables(mpi, two, {})["OMPI_MCA_btl"] == "^ofi"


@pytest.mark.parametrize("arguments", [[], ["-n", "4", "--help", "--", "", "a b", "$HOME", "-m", "x;y", "ünï"]])
def test_arguments_are_passed_on_untouched(arguments: list[str]) -> None:
    command = worker_command("/venv/bin/python", False, "train.py", arguments)
    python, worker, script, *rest = command
    assert (python, script, rest) == ("/venv/bin/python", "train.py", arguments)
    assert Path(worker).is_file()
    assert build_argv(OPEN_MPI, MPIRUN, plan_of(), [], command)[-len(command) :] == command


@pytest.mark.parametrize("word", ["", ":", "::", ":::", "a:", ":a", "a", "-", "--", ": :", "\n"])
def test_no_argument_is_a_lone_colon_to_mpirun(word: str) -> None:
    assert escape(word) != ":"
    assert unescape(escape(word)) == word


def test_a_module_is_marked() -> None:
    assert worker_command("python", True, "pkg.train", ["-m"])[2:] == ["-m", "pkg.train", "-m"]


@pytest.mark.parametrize(
    ("said", "mpi"),
    [
        ("mpirun (Open MPI) 5.0.11\n\nReport bugs to", OPEN_MPI),
        ("mpirun (Open MPI) 10.0.0", OPEN_MPI),
        ("mpirun (Open MPI) 4.1.6", OPEN_MPI_4),
        ("mpirun.openmpi (OpenRTE) 4.1.4", OPEN_MPI_4),
        ("HYDRA build details:\n    Version:                                 5.0.2\n", MPICH),
        ("mpirun (Open MPI) 3.1.6", None),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.5 Build 20211102 (id: 9279b7d62)", INTEL_MPI),
        ("Intel(R) MPI Library for Linux* OS, Version 2018 Update 3 Build 20180411", INTEL_MPI),
        ("mpiexec (Fast MPI) 7.1", None),
    ],
)
def test_versions_are_told_apart(said: str, mpi: Mpi | None) -> None:
    assert [known for known in KNOWN if re.search(known.mark, said)] == ([] if mpi is None else [mpi])
