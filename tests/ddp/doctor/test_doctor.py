"""The doctor: what it makes of worlds that are as they should be, and of others; and real jobs of both kinds."""

import ctypes
import math
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddp.bench import Figure
from ddp.doctor import judgements, machine, trials
from ddp.doctor.facts import Facts
from ddp.doctor.findings import FAIL, OK, WARN, Finding, as_text, duration, name_ranks
from tests.mpi_job import JobResult, run_job


def world(*masks: set[int], cpus: int = 4, hosts: int = 1, **changes: Any) -> list[Facts]:
    """Ranks with these masks, dealt in turn to hosts of so many cores of one CPU each."""
    return [
        replace(
            Facts(
                rank=rank,
                host=f"host{rank % hosts}",
                node=rank % hosts,
                kernel=f"kernel{rank % hosts}",
                versions={"NumPy": "2.4.0", "CPU": "fast"},
                launcher="Open MPI's mpirun",
                thread_level=3,
                threads=1,
                mask=frozenset(mask),
                usable=frozenset(range(cpus)),
                cores={cpu: cpu for cpu in range(cpus)},
                quota=math.inf,
                load=0.4,
                use=machine.Use(0.05, 0.0),
                memory=8 << 30,
                shared=float(1 << 30),
                temporary="/scratch",
                cache="/cache",
                kernels=12,
                gpu="",
                problems={},
            ),
            **changes,
        )
        for rank, mask in enumerate(masks)
    ]


def only(findings: list[Finding]) -> Finding:
    (finding,) = findings
    return finding


def test_a_world_as_it_should_be_has_nothing_to_complain_about() -> None:
    for ranks in (world({0, 1, 2, 3}), world({0, 1}, {2, 3}), world({0}, {0}, {1}, {1}, cpus=2, hosts=2)):
        findings = [finding for judge in judgements.JUDGEMENTS for finding in judge(ranks)]
        assert [finding for finding in findings if finding.verdict != OK or finding.advice] == []


def test_versions_that_differ_are_named_by_rank() -> None:
    ranks = world({0}, {1}, {2})
    ranks[1] = replace(ranks[1], versions={"NumPy": "2.3.1", "CPU": "fast"})
    numpy, cpu = judgements.versions(ranks)
    assert numpy[:3] == (WARN, "NumPy", "differs: 2.4.0 (ranks 0, 2); 2.3.1 (rank 1)")
    assert cpu == Finding(OK, "CPU", "fast")


def test_mpi_and_its_threads() -> None:
    assert judgements.mpi(world({0}))[1] == Finding(OK, "MPI threads", "MPI_THREAD_MULTIPLE")
    ranks = world({0}, {1})
    ranks[1] = replace(ranks[1], thread_level=1)
    assert judgements.mpi(ranks)[1][:3] == (WARN, "MPI threads", "only MPI_THREAD_FUNNELED was granted")
    launcher, without = judgements.mpi(world({0}, launcher="", thread_level=-1))
    assert launcher.text.startswith("none")
    assert without.verdict == OK
    assert "pip install" in without.text


def test_containers_that_hide_one_machine_from_mpi() -> None:
    assert only(judgements.world(world({0}, {1}, hosts=2))) == Finding(
        OK, "world", "2 ranks on 2 hosts: host0: rank 0; host1: rank 1"
    )
    found = only(judgements.world(world({0}, {1}, hosts=2, kernel="the same")))
    assert found.verdict == WARN
    assert "some are one machine" in found.text
    assert only(judgements.world(world({0}, {1}, hosts=2, kernel=""))).verdict == OK  # hidden: nothing is known


@pytest.mark.parametrize(
    ("masks", "cores", "verdict", "text"),
    [
        ([{0, 1}, {0, 1}], 2, OK, "2 ranks on 2 cores; ranks 0-1: CPU 0-1: not bound"),
        ([{0}, {0}], 2, FAIL, "2 ranks on 2 cores; ranks 0-1: CPU 0: ranks 0-1 have less than one each"),
        ([{0}, {1}, {1}, {2, 3}], 4, FAIL, "ranks 1-2 have less than one each"),
        ([{0, 1}, {0}, {1}, {3}], 4, FAIL, "ranks 0-2 have less than one each"),
        ([{0}, {1}], 4, WARN, "rank 0: CPU 0; rank 1: CPU 1: cores are left unused"),
        ([{0}], 4, WARN, "1 rank on 4 cores; rank 0: CPU 0: cores are left unused"),
        ([{0, 1}, {1, 2}], 4, WARN, "some cores belong to several ranks"),
        ([{0, 1}] * 3, 2, WARN, "3 ranks on 2 cores; ranks 0-2: CPU 0-1"),
    ],
)
def test_ranks_on_cores(masks: list[set[int]], cores: int, verdict: str, text: str) -> None:
    found = only(judgements.placement(world(*masks, cpus=cores)))
    assert found.verdict == verdict
    assert found.text.endswith(text)
    assert bool(found.advice) == (verdict != OK)


def test_cores_are_those_of_each_host_and_hardware_threads_are_none() -> None:
    one, two = judgements.placement(world({0}, {0}, {1}, {0}, cpus=2, hosts=2))
    assert (one.verdict, two.verdict) == (OK, FAIL)
    assert two.text.startswith("host1: 2 ranks on 2 cores")
    hardware_threads = [replace(one, cores={0: 0, 1: 0}) for one in world({0}, {1}, cpus=2)]
    assert only(judgements.placement(hardware_threads)).text.startswith("2 ranks on 1 core;")
    by_quota = only(judgements.placement(world({0, 1}, {0, 1}, cpus=2, quota=1.5)))
    assert by_quota.verdict == WARN
    assert by_quota.text.startswith("2 ranks on 1 core;")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"use": machine.Use(1.7, 0.0)}, "1.7 of the 2 CPUs of rank 0 in use by others"),
        ({"load": 21.3}, "load 21.3 on 4 CPUs"),
        ({"use": machine.Use(0.1, 0.6)}, r"0.6 of the 2 CPUs of rank 0 taken by other virtual machines \(steal\)"),
    ],
    ids=["busy", "load", "steal"],
)
def test_others_that_work_here(changes: dict[str, Any], words: str) -> None:
    finding = only(judgements.other_work(world({0, 1}, {2, 3}, **changes)))
    assert finding.verdict == WARN
    assert re.search(words, finding.text)
    assert "every step waits for the slowest rank" in finding.advice


def test_others_that_work_elsewhere() -> None:
    assert only(judgements.other_work(world({0, 1}, {2, 3}))) == Finding(
        OK, "other work", "0.1 of the 2 CPUs of rank 0 in use by others; load 0.4 on 4 CPUs"
    )
    ranks = world({0, 1}, {0, 1}, hosts=2)
    ranks[1] = replace(ranks[1], use=machine.Use(2.0, 0.0))
    well, busy = judgements.other_work(ranks)
    assert (well.verdict, busy.verdict) == (OK, WARN)
    assert busy.text.startswith("host1: 2.0 of the 2 CPUs of rank 1")


def test_many_hosts_that_are_well_are_one_line() -> None:
    masks = [{0, 1, 2, 3}] * 20
    well, ill = judgements.placement(world(*masks[:18], {0}, masks[0], hosts=20))
    assert well.text.startswith("host0: 1 rank on 4 cores")
    assert well.text.endswith("; well on 18 more hosts")
    assert (ill.verdict, ill.text[:8]) == (WARN, "host18: ")
    assert len(judgements.placement(world(*masks[:8], hosts=8))) == 8


def test_threads_against_cpus() -> None:
    assert only(judgements.blas_threads(world({0, 1}, {2, 3}, threads=2))) == Finding(
        OK, "threads", "2 ranks x 2 = 4 for matrix products, on 4 CPUs"
    )
    found = only(judgements.blas_threads(world(*[{0, 1, 2, 3}] * 4, threads=4)))
    assert found[:3] == (WARN, "threads", "4 ranks x 4 = 16 for matrix products, on 4 CPUs")
    assert "OMP_NUM_THREADS=1 " in found.advice
    assert only(judgements.blas_threads(world({0}, threads=2))).verdict == WARN  # bound to one
    assert only(judgements.blas_threads(world({0, 1, 2, 3}, threads=4, quota=2.0))).verdict == WARN
    # More ranks than CPUs: that is said of cores, fewer than one thread a rank there cannot be.
    assert only(judgements.blas_threads(world({0}, {0}))).verdict == OK
    unknown = world({0}, threads=None, problems={"threads": "neither OpenBLAS nor MKL"})
    assert only(judgements.blas_threads(unknown)) == Finding(WARN, "threads", "unknown", "neither OpenBLAS nor MKL")


def test_memory_is_shared_by_the_ranks_of_a_host() -> None:
    assert only(judgements.memory(world({0}, {1}))).text.startswith("4.0 GiB for each of 2 ranks")
    assert only(judgements.memory(world(*[{0}] * 9))).verdict == WARN


def test_room_for_the_messages_of_mpi() -> None:
    few = world({0}, {1}, shared=64e6)
    assert only(judgements.shared_files(few)) == Finding(
        OK, "/dev/shm", "61 MiB free, for up to 32 MiB of MPI's messages"
    )
    many = only(judgements.shared_files(world(*[{0}] * 4, shared=64e6)))  # the 64 MB of a container
    assert many.verdict == WARN
    assert "--shm-size" in many.advice
    assert judgements.shared_files(world({0}, shared=math.inf)) == []


def test_kernel_cache_and_temporary_files() -> None:
    cold = only(judgements.kernel_cache(world({0}, kernels=0)))
    assert cold.verdict == OK
    assert "ddprun --warm-cache" in cold.text
    readable = {"problems": {"cache": "/cache: Read-only file system"}}
    assert only(judgements.kernel_cache(world({0}, **readable))).verdict == OK
    lost = world({0}, {1})
    lost[1] = replace(lost[1], kernels=0, **readable)
    good, bad = judgements.kernel_cache(lost)
    assert good == Finding(OK, "kernel cache", "/cache, 12 kernels (rank 0)")
    assert bad[:3] == (WARN, "kernel cache", "/cache, empty (rank 1); not writable: /cache: Read-only file system")
    assert only(judgements.temporary_directory(world({0}, problems={"temporary": "no usable one"}))).verdict == FAIL


def test_a_gpu_that_cannot_be_used_is_a_warning_and_none_is_not() -> None:
    assert only(judgements.gpus(world({0}))) == Finding(OK, "GPU", "none")
    assert only(judgements.gpus(world({0}, gpu="2 of H100"))) == Finding(OK, "GPU", "2 of H100")
    found = only(judgements.gpus(world({0}, problems={"gpu": "it needs CuPy"})))
    assert (found.verdict, found.advice) == (WARN, "it needs CuPy")


def test_what_a_step_costs() -> None:
    seconds = {("shared", 4 << 20): 2e-3, ("shared", 25 << 20): 50e-3, ("mpi_library", 4 << 20): 4e-3}
    assert trials.expected(10**6, "shared", seconds) == pytest.approx(2e-3 * 4e6 / 2**22)
    assert trials.expected(10**8, "shared", seconds) == pytest.approx(50e-3 * 4e8 / (25 * 2**20))
    choice, costs = trials.judge_choice("shared", "all ranks share a host", seconds)
    assert choice == Finding(OK, "transport", "shared is taken: all ranks share a host")
    assert costs.text.startswith("of 1 M float32 parameters are summed in 1.91 ms, of 100 M in 763 ms")
    slow, _ = trials.judge_choice("shared", "why", seconds | {("mpi_library", 4 << 20): 0.5e-3})
    assert slow.verdict == WARN
    assert "4.0 times as long" in slow.text


def test_a_transport_that_is_many_times_slower_than_mpi() -> None:
    sizes = {size: {("mpi", size): 1e-3, ("mpi_library", size): 1e-3} for size in (64 << 10, 4 << 20)}
    seconds = sizes[64 << 10] | sizes[4 << 20]
    assert trials.judge_transport("mpi", seconds).verdict == OK
    for size, words in ((64 << 10, "64 KiB"), (4 << 20, "4 MiB")):
        finding = trials.judge_transport("mpi", seconds | {("mpi", size): 12e-3})
        assert finding.verdict == WARN
        assert finding.text.endswith(f": 12 times as long as MPI's Allreduce of {words}")
        assert "other work" in finding.advice


def test_a_slow_network() -> None:
    figures = [Figure("mpi_library", 4 << 20, 2, seconds) for seconds in (0.004, 0.4)]
    assert trials.judge_link(figures, 1) == []
    assert only(trials.judge_link(figures[:1], 2)).text.startswith("1.05 GB/s between 2 hosts")
    assert only(trials.judge_link(figures[1:], 2)).verdict == WARN


def test_words() -> None:
    assert name_ranks([3]) == "rank 3"
    assert name_ranks([0, 1, 2, 5, 8, 7]) == "ranks 0-2, 5, 7-8"
    assert [duration(seconds) for seconds in (1.234e-5, 0.00456, 1.25)] == ["12.3 us", "4.56 ms", "1.25 s"]
    lines = as_text(Finding(WARN, "cores", "found", "do")).splitlines()
    assert lines == ["warn  cores             found", "                        -> do"]


def test_what_linux_says(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": "MemTotal: 9000 kB\nMemAvailable: 8000 kB\n",
        "proc/self/cgroup": "4:memory:/job\n3:cpu,cpuacct:/elsewhere\n0::/slice/job\n",
        "proc/cpuinfo": "processor : 0\nmodel name\t: Fast CPU @ 3 GHz\n",
        "proc/self/maps": "7f00-7f01 r-xp 0 00:00 1 /opt/my mpi/lib/libmpi.so.40\n7f02-7f03 rw-p 0 00:00 0 \n",
        "sys/devices/system/cpu/cpu3/topology/thread_siblings_list": "1,3\n",
        "sys/devices/system/cpu/cpu5/topology/thread_siblings_list": "4-5\n",
        "sys/fs/cgroup/slice/cpu.max": "250000 100000\n",
        "sys/fs/cgroup/slice/job/cpu.max": "max 100000\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/slice/memory.max": "6000000\n",
        "sys/fs/cgroup/slice/memory.current": "2000000\n",
        "sys/fs/cgroup/slice/memory.stat": "anon 1\ninactive_file 500000\n",
        "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/memory/job/memory.usage_in_bytes": "1000\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert machine.cpu_quota(tmp_path) == 2.5
    assert machine.available_memory(tmp_path) == 4_500_000
    (tmp_path / "sys/fs/cgroup/slice/memory.max").write_text("max\n")
    assert machine.available_memory(tmp_path) == 8000 * 1024
    assert machine.cpu_model(tmp_path) == "Fast CPU @ 3 GHz"
    assert [machine.core_of(cpu, tmp_path) for cpu in (3, 5, 7)] == [1, 4, 7]
    assert machine.loaded_library("libmpi", tmp_path) == "/opt/my mpi/lib/libmpi.so.40"
    assert machine.loaded_library("libfabric", tmp_path) == ""
    assert not machine.has_nvidia_gpu(tmp_path)
    assert machine.free_shared_memory(tmp_path) == math.inf
    (tmp_path / "dev/shm").mkdir(parents=True)
    assert 0 < machine.free_shared_memory(tmp_path) < math.inf
    assert machine.kernel_identity(tmp_path) == ""
    assert machine.use_of([0], 0.0, tmp_path) == (0, 0)


def test_use_of_cpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that are asked for; idle times and guests (which are in user already) do not count."""
    clock = [10.0]
    stat = tmp_path / "proc/stat"
    stat.parent.mkdir()
    hertz = os.sysconf("SC_CLK_TCK")
    stat.write_text(
        "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 1 2 3 4 5 6 7 8 9 9\ncpu1 0 0 0 0 0 0 0 0 0 0\ncpu2 0 0 0 0 0 0 0 0\n"
    )

    def sleep(seconds: float) -> None:
        clock[0] += seconds
        half, tenth = hertz // 2, hertz // 10
        stat.write_text(
            f"cpu0 {1 + half} 2 3 {4 + half} 5 6 7 8 {9 + half} 9\ncpu1 0 0 {tenth} 0 0 0 0 {tenth} 0 0\n"
            f"cpu2 {hertz} 0 0 0 0 0 0 0\nintr 7\n"
        )

    monkeypatch.setattr(machine.time, "sleep", sleep)
    monkeypatch.setattr(machine.time, "monotonic", lambda: clock[0])
    assert machine.use_of([0, 1], 1.0, tmp_path) == pytest.approx((0.6, 0.1))


def test_the_mask_stays_when_the_usable_cpus_are_asked_for() -> None:
    mask = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(mask)})
        assert machine.usable_cpus() >= mask
        assert os.sched_getaffinity(0) == {min(mask)}
    finally:
        os.sched_setaffinity(0, mask)


# --- real jobs --------------------------------------------------------------------------------------------------------

START = "if __name__ == '__main__':\n    sys.exit(doctor.main())\n"


def verdicts(result: JobResult) -> dict[str, str]:
    """Subject and verdict of every line."""
    lines = [line for line in result.stdout.splitlines() if line[:4].strip() in (OK, WARN, FAIL)]
    return {line[6:22].strip(): line[:4].strip() for line in lines}


@pytest.mark.full
def test_two_ranks_are_examined() -> None:
    program = "import sys\nimport ddp.doctor.__main__ as doctor\nfrom ddp.doctor import trials\ntrials._SECONDS = 0.0\n"
    result = run_job(program + START, 2, timeout=200, runner=())
    assert result.returncode == 0, result.stdout + result.stderr
    found = verdicts(result)
    assert {"Python", "NumPy", "BLAS", "MPI", "world", "cores", "threads", "memory", "kernel cache", "GPU"} <= set(
        found
    )
    assert {"shared memory", "shared", "mpi", "hierarchical", "gradients", "data workers"} <= set(found)
    assert FAIL not in found.values()
    lines = result.stdout.splitlines()
    assert any("shared is taken: all ranks share a host" in line for line in lines)
    assert lines[-1].endswith(" 0 failed")
    assert sum("MPI_THREAD_" in line for line in lines) == 1  # rank 0 alone reports


@pytest.mark.full
def test_one_rank_needs_no_launcher() -> None:
    result = run_job("import sys\nimport ddp.doctor.__main__ as doctor\n" + START, 1, timeout=120, runner=())
    assert result.returncode == 0, result.stdout + result.stderr
    assert "loopback: there is nothing to sum on one rank" in result.stdout
    assert verdicts(result)["data workers"] == OK


@pytest.mark.full
@pytest.mark.skipif(len(machine.usable_cpus()) < 2, reason="one CPU only: ranks cannot but share it")
def test_ranks_on_one_core_without_memory_to_share() -> None:
    program = """
import errno, os, sys
import ddp.doctor.__main__ as doctor
from ddp.doctor import machine, trials

def no_memory(name):
    raise OSError(errno.EPERM, "Operation not permitted")

os.memfd_create = no_memory  # as in a sandbox
os.sched_setaffinity(0, {min(machine.usable_cpus())})
trials._SECONDS = 0.0
doctor.TRIALS = (trials.shared_memory, trials.single_copies, trials.transports)
"""
    result = run_job(program + START, 2, timeout=200, runner=())
    assert result.returncode == 1, result.stdout + result.stderr
    found = verdicts(result)
    assert (found["cores"], found["shared memory"], found["shared"]) == (FAIL, WARN, WARN)  # mpi: as fast as it is
    assert "ranks 0-1 have less than one each" in result.stdout
    assert "rank 0 cannot create a memory file" in result.stdout
    assert "mpi is taken: shared does not work here" in result.stdout
    assert result.stdout.splitlines()[-1].endswith(" 1 failed")


def test_a_wrong_number_of_ranks_is_a_line_and_not_a_traceback() -> None:
    program = "import sys\nimport ddp.doctor.__main__ as doctor\n" + START
    result = run_job(program, 1, timeout=120, runner=(), environment={"ALLSTRIDE_NPROC": "3"})
    assert result.returncode == 1
    assert result.stdout.startswith("FAIL  MPI")
    assert "asked for 3 ranks, but MPI sees 1" in result.stdout
    assert "Traceback" not in result.stderr


@pytest.mark.full
def test_it_ends_where_a_rank_hangs() -> None:
    program = """
import sys, time
import ddp.doctor.__main__ as doctor

def trial(group, ranks):
    if group.rank == 1:
        time.sleep(1000)  # before it meets the others
    return group.exchange([])

doctor._LIMIT = 4.0
doctor.TRIALS = (trial,)
"""
    result = run_job(program + START, 2, timeout=120, runner=())
    assert result.returncode != 0
    assert "Timeout (0:00:04)!" in result.stderr


def test_reading_the_memory_of_a_process() -> None:
    own = ctypes.create_string_buffer(b"here")
    assert trials._read_of(os.getpid(), ctypes.addressof(own), own.raw) == ""
    assert "another process" in trials._read_of(os.getpid(), ctypes.addressof(own), b"there")
    assert "process_vm_readv: " in trials._read_of(2**22 + 1, ctypes.addressof(own), own.raw)
