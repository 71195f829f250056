"""Which transport of device memory is chosen, what happens when one does not work, and the probe of GPU-aware MPI."""

import os
import sys
import textwrap
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import engine
from ddp.transport import check_transport
from ddp.transport.cuda import CUDA_TRANSPORTS, choose_cuda_transport
from ddp.transport.cuda import probe as probing
from tests import cuda_device
from tests.cuda_driver import control
from tests.mpi_job import ROOT, python_path


@pytest.fixture
def no_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "find_verdict", lambda: probing.Verdict(False, "this MPI was not tried"))


@pytest.fixture
def two_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks pass for ranks of two nodes, to cuda_ipc."""
    pytest.importorskip("mpi4py.MPI")
    from ddp.transport.cuda import ipc

    monkeypatch.setattr(ipc, "count_nodes", lambda comm: 2)


def choose_warned(comm: Any, cuda: engine.device, match: str) -> Any:
    """The automatic choice, which rank 0, and nobody else, must be warned of."""
    if comm.rank:
        return choose_cuda_transport(comm, cuda)  # warnings are errors
    with pytest.warns(RuntimeWarning, match=match):
        return choose_cuda_transport(comm, cuda)


@pytest.mark.mpi(ranks=[1, 2])
def test_loopback_for_one_rank_and_mapped_memory_on_one_node(comm, cuda: engine.device) -> None:
    transport, reasons = choose_cuda_transport(comm, cuda)
    assert transport.name == ("loopback" if comm.size == 1 else "cuda_ipc")
    assert reasons == []
    transport.close()


@pytest.mark.mpi(ranks=[2])
@pytest.mark.parametrize("name", ["cuda_ipc", "staged", "shared", "mpi", "hierarchical"])
def test_the_choice_can_be_overridden(comm, cuda: engine.device, name: str) -> None:
    """A transport of host memory means staging with that one in the middle."""
    transport: Any = choose_cuda_transport(comm, cuda, name)[0]
    assert transport.name == ("cuda_ipc" if name == "cuda_ipc" else "staged")
    if name in ("shared", "mpi", "hierarchical"):
        assert transport.inner.name == name
        assert transport.progress.endswith(f"over {name}")
    transport.close()


@pytest.mark.mpi(ranks=[2])
def test_on_several_nodes_without_nccl_it_is_staged_and_says_why(comm, cuda, two_nodes, no_probe) -> None:
    transport, reasons = choose_cuda_transport(comm, cuda)
    assert transport.name == "staged"
    assert "cuda_ipc: its ranks must be on one node, got 2 ranks on 2 nodes" in reasons[0]
    assert "nccl: " in reasons[1]
    assert reasons[2] == "transport gpu_mpi: this MPI was not tried; use 'staged'"
    transport.close()


@pytest.mark.mpi(ranks=[2])
def test_an_mpi_that_was_seen_to_send_device_memory_is_taken(comm, cuda, two_nodes, monkeypatch) -> None:
    if not cuda_device.ours():
        pytest.skip("this MPI may not do it")
    monkeypatch.setattr(probing, "find_verdict", lambda: probing.Verdict(True, "seen"))
    transport, reasons = choose_cuda_transport(comm, cuda)
    assert transport.name == "gpu_mpi"
    assert len(reasons) == 2
    transport.close()


@pytest.mark.mpi(ranks=[2])
def test_nccl_where_each_rank_has_a_gpu(comm, cuda, two_nodes, monkeypatch) -> None:
    if not cuda_device.ours():
        pytest.skip("NCCL wants a GPU for each rank")
    cuda_device.several(monkeypatch, comm.size)
    transport, _ = choose_cuda_transport(comm, engine.device("cuda", comm.rank))
    assert transport.name == "nccl"
    transport.close()
    with pytest.raises(RuntimeError, match=r"transport nccl: ranks 0 and 1 share GPU .* which NCCL refuses"):
        choose_cuda_transport(comm, cuda, "nccl")


@pytest.mark.mpi(ranks=[2])
def test_without_nccl_it_cannot_be_asked_for(comm, cuda: engine.device) -> None:
    if not cuda_device.ours():
        pytest.skip("there may be one")
    with pytest.raises(RuntimeError, match="transport nccl: rank 0 finds no NCCL library; pip install nvidia-nccl"):
        choose_cuda_transport(comm, cuda, "nccl")


@pytest.mark.mpi(ranks=[2])
def test_one_that_sums_wrongly_is_replaced_loudly_or_refused(comm, cuda, no_probe, monkeypatch) -> None:
    from ddp.transport.cuda.ipc import IpcTransport

    sound_wait = IpcTransport.wait

    def wait(self: Any, buffer: Any) -> None:
        sound_wait(self, buffer)
        if self.rank == 1 and buffer.array.size == 1000:
            buffer.array[-1:] += 1

    monkeypatch.setattr(IpcTransport, "wait", wait)
    what = "rank 1, 1000 float32, round 0: 1 differ, element 999: expected 26.5, got 27.5"
    with pytest.raises(RuntimeError, match=f"transport cuda_ipc: its sums differ from MPI's own: {what}"):
        choose_cuda_transport(comm, cuda, "cuda_ipc")
    transport, reasons = choose_warned(comm, cuda, f"'cuda_ipc' does not work here, trying the next one: .*{what}")
    assert transport.name == "staged"
    assert what in reasons[0]
    check_transport(transport, comm)
    transport.close()


@pytest.mark.mpi(ranks=[2])
def test_one_that_only_one_rank_cannot_make_is_replaced_on_all(comm, cuda, no_probe, monkeypatch) -> None:
    def fail_on_the_last(comm: Any, where: engine.device, inner: str | None) -> Any:
        if comm.rank == comm.size - 1:
            raise RuntimeError("peer access is not possible")
        return object()

    monkeypatch.setitem(CUDA_TRANSPORTS, "cuda_ipc", fail_on_the_last)
    transport, _ = choose_warned(comm, cuda, "trying the next one: peer access is not possible")
    assert transport.name == "staged"
    transport.close()


@pytest.mark.mpi(ranks=[2])
def test_memory_that_cannot_be_mapped_is_told_on_every_rank(comm, cuda, no_probe) -> None:
    if not cuda_device.ours():
        pytest.skip("a real GPU is not to fail")
    fault = control.without_mapping() if comm.rank == 1 else nullcontext()
    told = "transport cuda_ipc: rank 1 cannot map the device memory of rank 0"
    with fault, pytest.raises(RuntimeError, match=told):
        choose_cuda_transport(comm, cuda, "cuda_ipc")


@pytest.mark.mpi(ranks=[2])
def test_ranks_without_a_gpu_of_the_launcher_are_refused(comm, cuda, monkeypatch) -> None:
    monkeypatch.setenv("ALLSTRIDE_GPU", "none")
    with pytest.raises(RuntimeError, match=r"ddprun has given no GPU to these ranks.*CUDA_VISIBLE_DEVICES=0 ddprun"):
        choose_cuda_transport(comm, cuda)


def test_transports_between_ranks_need_mpi(cuda: engine.device) -> None:
    assert choose_cuda_transport(None, cuda)[0].name == "loopback"
    for name in ("cuda_ipc", "nccl", "gpu_mpi", "staged"):
        with pytest.raises(RuntimeError, match=f"transport {name}: it needs MPI"):
            choose_cuda_transport(None, cuda, name)


# --- the probe --------------------------------------------------------------------------------------------------------

ON_DRIVER = """
from tests import cuda_device, cuda_driver
if not cuda_device.real():
    cuda_driver.load()
from ddp.transport.cuda import probe
"""


def run_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, timeout: float = 300) -> probing.Verdict:
    """The probe with another program in its two processes."""
    script = tmp_path / "child.py"
    script.write_text(ON_DRIVER + textwrap.dedent(program))
    monkeypatch.setenv("PYTHONPATH", python_path())
    command = [sys.executable, "-m", "launch", "-n", "2", str(script)]
    monkeypatch.chdir(ROOT)
    return probing.probe(command, timeout)


def test_device_memory_that_arrives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = run_probe(tmp_path, monkeypatch, "probe.try_it()")
    assert verdict == (True, "device memory arrived: messages of 8, 70,001, 4,000,003 bytes, both ways")


def test_a_probe_that_crashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device pointer is none for the host: what reads it dies."""
    verdict = run_probe(
        tmp_path, monkeypatch, "import ctypes; probe._pattern = lambda *_: ctypes.string_at(8)\nprobe.try_it()"
    )
    assert not verdict.works
    assert "this MPI does not send device memory (the probe ended with exit code" in verdict.why


def test_a_probe_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "child.py"  # imports nothing of ours: both processes are there in time on a busy machine, too
    script.write_text(
        f"import os, pathlib, time\npathlib.Path({str(tmp_path)!r}, f'pid-{{os.getpid()}}').touch()\ntime.sleep(600)\n"
    )
    monkeypatch.setenv("PYTHONPATH", python_path())
    verdict = probing.probe([sys.executable, "-m", "launch", "-n", "2", str(script)], timeout=15)
    assert verdict == (False, "the probe of this MPI with device memory was not through after 15 s")
    started = list(tmp_path.glob("pid-*"))
    assert len(started) == 2
    end = time.monotonic() + 10
    while any(is_alive(path.name.removeprefix("pid-")) for path in started):
        assert time.monotonic() < end
        time.sleep(0.05)


def is_alive(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_probe_whose_bytes_are_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = """
    from mpi4py import MPI
    whole = MPI.buffer.fromaddress
    MPI.buffer = type("buffer", (), dict(fromaddress=lambda address, size: whole(address, size)))
    pattern = probe._pattern
    def lying(nbytes, rank):
        values = pattern(nbytes, rank)
        if nbytes > 70_000 and rank == MPI.COMM_WORLD.rank:
            values[-1:] += 1  # as if the last piece had not arrived
        return values
    probe._pattern = lying
    probe.try_it()
    """
    verdict = run_probe(tmp_path, monkeypatch, program)
    assert not verdict.works
    assert "exit code 1" in verdict.why


def test_a_probe_that_ends_well_and_has_seen_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not run_probe(tmp_path, monkeypatch, "pass").works


def test_a_probe_that_cannot_be_started(cuda: engine.device) -> None:
    assert not probing.probe([sys.executable, "-c", "raise SystemExit(3)"]).works


def test_verdicts_are_remembered_for_each_library(cuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mpi4py.MPI")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    runs: list[int] = []

    def run(command: Any, timeout: float) -> probing.Verdict:
        runs.append(1)
        return probing.Verdict(True, f"run {len(runs)}")

    monkeypatch.setattr(probing, "_run", run)
    assert probing.find_verdict() == probing.find_verdict() == (True, "run 1")
    monkeypatch.setattr(probing, "_key", lambda: "another MPI")
    assert probing.find_verdict() == (True, "run 2")
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert probing.find_verdict() == (True, "run 1")
    (tmp_path / "allstride" / "gpu_mpi.json").write_text("damaged")
    monkeypatch.setattr(probing, "_run", run)
    assert probing.find_verdict() == (True, "run 3")


def test_the_children_are_a_job_of_their_own() -> None:
    environ = {"OMPI_COMM_WORLD_RANK": "1", "PMIX_RANK": "1", "SLURM_JOB_ID": "7", "ALLSTRIDE_NPROC": "4"}
    kept = {"PATH": os.defpath, "OMPI_MCA_pml": "ob1", "CUDA_VISIBLE_DEVICES": "0", "PRTE_MCA_x": "1"}
    assert probing._environment(environ | kept) == kept
