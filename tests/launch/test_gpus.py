"""GPUs that the launcher finds, which rank gets which, and what cannot work."""

import os
from pathlib import Path
from typing import Any

import pytest

from launch import LaunchError
from launch.gpus import Gpus, assignment, find_gpus
from launch.hosts import Found, Host
from launch.plan import describe
from launch.rank import _take_gpu
from tests.launch.plans import plan_of


@pytest.fixture
def machine(tmp_path: Path) -> Any:
    """A root folder with so many GPUs in it."""

    def make(count: int) -> Path:
        folder = tmp_path / "dev"
        folder.mkdir()
        for name in (*(f"nvidia{number}" for number in range(count)), "nvidiactl", "nvidia-uvm", "nvidia-caps"):
            (folder / name).touch()
        return tmp_path

    return make


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, Gpus(4, named=False)),
        ("0,2", Gpus(2, named=True)),
        (" 3 ", Gpus(1, named=True)),
        ("", Gpus(0, named=True)),
        ("1,-1,2", Gpus(1, named=True)),
        ("GPU-5a,MIG-7b", Gpus(2, named=True)),
    ],
)
def test_what_cuda_would_show(machine: Any, visible: str | None, expected: Gpus) -> None:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert find_gpus(environ, machine(4)) == expected


def test_a_machine_without_gpus_has_none_whatever_is_named(machine: Any) -> None:
    assert find_gpus({"CUDA_VISIBLE_DEVICES": "0,1"}, machine(0)) == Gpus()


def test_where_the_driver_has_no_device_files_its_tool_is_asked(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "dxg").touch()
    tool = tmp_path / "nvidia-smi"
    tool.write_text(
        "#!/bin/sh\necho 'GPU 0: first (UUID: GPU-a)'\necho '  MIG 1g'\necho 'GPU 1: second (UUID: GPU-b)'\n"
    )
    tool.chmod(0o755)
    assert find_gpus({"PATH": f"{tmp_path}:{os.defpath}"}, tmp_path) == Gpus(2)
    assert find_gpus({"PATH": ""}, tmp_path) == Gpus(0)
    tool.write_text("#!/bin/sh\nexit 9\n")
    assert find_gpus({"PATH": f"{tmp_path}:{os.defpath}"}, tmp_path) == Gpus(0)


@pytest.mark.parametrize(
    ("count", "visible", "message"),
    [
        (2, "0,0", "names GPU 0 twice, which CUDA refuses"),
        (2, "0,2", "names GPU 2, but this machine has GPUs 0 to 1"),
        (1, "1", "names GPU 1, but this machine has only GPU 0"),
    ],
)
def test_what_cannot_work_is_refused(machine: Any, count: int, visible: str, message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        find_gpus({"CUDA_VISIBLE_DEVICES": visible}, machine(count))


@pytest.mark.parametrize(
    ("gpus", "ranks", "given", "words"),
    [
        (Gpus(), 4, "", ""),
        (Gpus(2), 2, "own", "one GPU each"),
        (Gpus(8), 2, "own", "one GPU each of 8"),
        (Gpus(1, named=True), 2, "share", "sharing 1 GPU as CUDA_VISIBLE_DEVICES names fewer than ranks"),
        (
            Gpus(2),
            4,
            "none",
            "no GPU given to any (2 GPUs for 4 ranks; set CUDA_VISIBLE_DEVICES to the GPUs that they are to share)",
        ),
    ],
)
def test_who_gets_one(gpus: Gpus, ranks: int, given: str, words: str) -> None:
    assert assignment(gpus, ranks) == (given, words)


def test_one_rank_a_gpu_by_default_and_the_first_line_says_so() -> None:
    plan = plan_of(gpus=Gpus(2))
    assert (plan.nproc, plan.cores_per_rank) == (2, 4)
    assert plan.variables["ALLSTRIDE_GPUS"] == "own"
    assert describe(plan, {}) == (
        "2 ranks (one a GPU) on 8 cores, 4 threads each (cores / ranks), each bound to 4 cores, one GPU each"
    )


def test_without_gpus_nothing_changes() -> None:
    assert plan_of() == plan_of(gpus=Gpus())
    assert not {"ALLSTRIDE_GPUS", "ALLSTRIDE_GPU_COUNT"} & set(plan_of().variables)
    assert "GPU" not in describe(plan_of(), {})


def test_more_ranks_than_gpus_run_without_unless_asked_to_share() -> None:
    plan = plan_of(nproc=4, gpus=Gpus(2))
    assert plan.variables["ALLSTRIDE_GPUS"] == "none"
    assert "no GPU given to any (2 GPUs for 4 ranks" in describe(plan, {})
    assert plan_of(nproc=4, gpus=Gpus(2, named=True)).variables["ALLSTRIDE_GPUS"] == "share"


def test_in_a_slurm_job_the_ranks_are_the_jobs() -> None:
    plan = plan_of(found=Found((Host("", 4, 8), Host("", 4, 8))), gpus=Gpus(4, named=True))
    assert (plan.nproc, plan.variables["ALLSTRIDE_GPUS"], plan.gpus) == (8, "own", "one GPU each")


@pytest.mark.parametrize(
    ("given", "local", "visible", "expected"),
    [
        ("own", "0", None, "0"),
        ("own", "3", None, "3"),
        ("share", "3", "0,1", "1"),
        ("share", "2", "5", "0"),
        ("own", "3", "6", "0"),  # each task has its own
        ("none", "1", None, "none"),
    ],
)
def test_the_worker_says_which_gpu_it_is(given: str, local: str, visible: str | None, expected: str) -> None:
    environ = {"ALLSTRIDE_GPUS": given, "ALLSTRIDE_GPU_COUNT": "4", "LOCAL_RANK": local}
    if visible is not None:
        environ["CUDA_VISIBLE_DEVICES"] = visible
    _take_gpu(environ)
    assert environ["ALLSTRIDE_GPU"] == expected


def test_without_gpus_the_worker_says_nothing() -> None:
    environ: dict[str, str] = {"LOCAL_RANK": "1"}
    _take_gpu(environ)
    assert environ == {"LOCAL_RANK": "1"}
