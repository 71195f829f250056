"""What has to be tried by all ranks together: sharing memory, sums, worker processes. Every function is collective and
returns the same findings on every rank.
"""

import ctypes
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import engine
from ddp.bench import Figure, measure
from ddp.doctor.facts import Facts
from ddp.doctor.findings import FAIL, OK, WARN, Finding, duration, name_ranks
from ddp.groups.process_group import ProcessGroup
from ddp.transport import TRANSPORTS, choose_transport
from engine.data import DataLoader, TensorDataset
from engine.data.processes import default_context

if TYPE_CHECKING:
    from mpi4py import MPI

_SMALL, _LARGE, _BUCKET = 64 << 10, 4 << 20, 25 << 20  # bytes; the last is a bucket of DistributedDataParallel
_SECONDS = 0.1  # for each figure
_LIBRARY = "mpi_library"  # what ddp.bench calls MPI's own Allreduce
_SLOW_LINK = 0.1  # GB/s: less than Ethernet of 1 Gbit/s carries
_MUCH_SLOWER = 2.0  # than MPI's own Allreduce; less than that may be the load of the moment
_MANY_TIMES = 5.0  # more than what a transport that keeps the order of summation costs on an idle machine
_WORKER_WAIT = 60.0  # seconds
_WITHOUT_WORKERS = (
    "DataLoader(num_workers=0) needs none; with workers see that TMPDIR is short, local and can be written"
)
_WHY = {
    "loopback": "there is nothing to sum on one rank",
    "shared": "all ranks share a host",
    "hierarchical": "some ranks share a host",
    "mpi": "no ranks share a host",
}


def shared_memory(group: ProcessGroup, ranks: Sequence[Facts]) -> list[Finding]:
    """Can the ranks of a host map each other's memory (the transports `shared` and `hierarchical`)?"""
    if len({one.node for one in ranks}) == len(ranks):
        return []
    from ddp.transport.segments import map_segments

    problem = ""
    with _host_of(group) as host:
        try:
            map_segments(host, _SMALL)
        except RuntimeError as error:
            problem = str(error)
    problems = _by_rank(group, problem)
    if not problems:
        return [Finding(OK, "shared memory", "the ranks of a host can map each other's")]
    advice = (
        "sums travel as messages instead; start all ranks of a host as one user in one container (one PID namespace)"
    )
    return [Finding(WARN, "shared memory", problems, advice)]


def single_copies(group: ProcessGroup, ranks: Sequence[Facts]) -> list[Finding]:
    """Can a rank read another's private memory, as MPI does for long messages within a host?

    Read by the system call that MPI libraries use (process_vm_readv), whose rights are those of ptrace.
    """
    if len({one.node for one in ranks}) == len(ranks):
        return []
    own = ctypes.create_string_buffer(str(group.rank).encode())
    with _host_of(group) as host:
        places = host.allgather((os.getpid(), ctypes.addressof(own), own.raw))
        problem = _read_of(*places[(host.rank + 1) % host.size])
        host.Barrier()  # `own` is read until then
    problems = _by_rank(group, problem)
    if not problems:
        return [Finding(OK, "single copies", "MPI can copy from rank to rank within a host (process_vm_readv)")]
    advice = (
        "MPI copies its own long messages twice, and Open MPI may print errors about it; in a container add "
        "--cap-add=SYS_PTRACE, else OMPI_MCA_smsc=^cma (4.x: OMPI_MCA_btl_vader_single_copy_mechanism=none). Sums in "
        "shared memory need none of it"
    )
    return [Finding(WARN, "single copies", problems, advice)]


class _Vector(ctypes.Structure):
    """struct iovec of uio.h."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def _read_of(pid: int, address: int, expected: bytes) -> str:
    """What is wrong with reading another process's memory; empty where it works."""
    read = getattr(ctypes.CDLL(None, use_errno=True), "process_vm_readv", None)
    if read is None:
        return "this C library has no process_vm_readv"
    read.restype = ctypes.c_ssize_t
    result = ctypes.create_string_buffer(len(expected))
    here, there = _Vector(ctypes.addressof(result), len(expected)), _Vector(address, len(expected))
    number = ctypes.c_ulong(1)
    if read(pid, ctypes.byref(here), number, ctypes.byref(there), number, ctypes.c_ulong(0)) != len(expected):
        return f"process_vm_readv: {os.strerror(ctypes.get_errno())}"
    return "" if result.raw == expected else "process_vm_readv reads another process than the rank"


def transports(group: ProcessGroup, ranks: Sequence[Facts]) -> list[Finding]:
    """Does each transport agree with MPI's own sum, how fast is it, which one is chosen, and what will a step cost?"""
    if group.size() == 1:
        return [Finding(OK, "transport", f"{group.transport.name}: {_WHY[group.transport.name]}")]
    nodes = len({one.node for one in ranks})
    found: list[Finding] = []
    usable: list[str] = []
    for name in TRANSPORTS:
        if name == "loopback" or (name == "shared" and nodes > 1):
            continue
        try:
            choose_transport(group.comm, name).close()  # which compares its sums with MPI's
            usable.append(name)
        except RuntimeError as error:
            found.append(_refused(name, str(error)))
    if "mpi" not in usable:
        return found
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # that it is not the best one: said above
        chosen = group.transport
    figures = [*measure([*usable, _LIBRARY], [_SMALL, _LARGE], seconds_each=_SECONDS)]
    figures += measure([chosen.name], [_BUCKET], seconds_each=_SECONDS)
    seconds = {(one.transport, one.bytes): one.seconds for one in figures}
    found += [judge_transport(name, seconds) for name in usable]
    found.append(Finding(OK, "MPI's Allreduce", _both(seconds, _LIBRARY)))
    best = "shared" if nodes == 1 else "hierarchical" if nodes < len(ranks) else "mpi"
    why = _WHY[best] if chosen.name == best else f"{best} does not work here"
    return [*found, *judge_choice(chosen.name, f"{why}; {chosen.progress}", seconds), *judge_link(figures, nodes)]


def _refused(name: str, problem: str) -> Finding:
    """A transport that cannot be made, or that sums wrongly."""
    if name == "mpi":
        advice = "MPI itself does not sum here, nothing can be taken instead; try another MPI, or network of it"
        return Finding(FAIL, name, problem, advice)
    return Finding(WARN, name, problem, "mpi is taken instead, which is slower within a host")


def judge_transport(name: str, seconds: dict[tuple[str, int], float]) -> Finding:
    """A transport that sums rightly: how long it takes, beside MPI's own Allreduce of as many bytes."""
    text = f"sums as MPI does; {_both(seconds, name)}"
    slower = {size: seconds[name, size] / seconds[_LIBRARY, size] for size in (_SMALL, _LARGE)}
    worst = max(slower, key=lambda size: slower[size])
    if slower[worst] < _MANY_TIMES:
        return Finding(OK, name, text)
    advice = (
        "look whether it stays so when nothing else runs here (see other work); if it does and this one is taken, name "
        "another one: ddp.init_process_group(transport=...)"
    )
    size = "64 KiB" if worst == _SMALL else "4 MiB"
    return Finding(WARN, name, f"{text}: {slower[worst]:.0f} times as long as MPI's Allreduce of {size}", advice)


def judge_choice(name: str, why: str, seconds: dict[tuple[str, int], float]) -> list[Finding]:
    """The transport that is taken, and the seconds that it takes for models of two sizes."""
    slower = seconds[name, _LARGE] / seconds[_LIBRARY, _LARGE]
    choice = Finding(OK, "transport", f"{name} is taken: {why}")
    if name != "mpi" and slower > _MUCH_SLOWER:
        advice = 'ddp.init_process_group(transport="mpi"), if it stays so on an idle machine'
        choice = choice._replace(
            verdict=WARN, text=f"{choice.text}; {slower:.1f} times as long as MPI's Allreduce", advice=advice
        )
    small, large = (duration(expected(parameters, name, seconds)) for parameters in (10**6, 10**8))
    text = f"of 1 M float32 parameters are summed in {small}, of 100 M in {large}, less what backward hides"
    return [choice, Finding(OK, "gradients", text)]


def expected(parameters: int, name: str, seconds: dict[tuple[str, int], float]) -> float:
    """Seconds to sum the gradients of so many float32 parameters, as fast as buckets of the size next to them."""
    nbytes = 4 * parameters
    measured = _LARGE if nbytes <= _LARGE else _BUCKET
    return seconds[name, measured] * nbytes / measured


def judge_link(figures: Sequence[Figure], nodes: int) -> list[Finding]:
    """Between hosts: the bandwidth of MPI's own Allreduce."""
    if nodes == 1:
        return []
    bandwidth = next(one.as_json()["busbw_GBps"] for one in figures if (one.transport, one.bytes) == (_LIBRARY, _LARGE))
    text = f"{bandwidth:.3g} GB/s between {nodes} hosts (bus bandwidth of MPI's Allreduce)"
    if bandwidth >= _SLOW_LINK:
        return [Finding(OK, "link", text)]
    advice = (
        "that is less than Ethernet of 1 Gbit/s; name the fast network to MPI: OMPI_MCA_btl_tcp_if_include=eth0 (Open "
        "MPI), UCX_NET_DEVICES, FI_PROVIDER"
    )
    return [Finding(WARN, "link", text, advice)]


def data_workers(group: ProcessGroup, ranks: Sequence[Facts]) -> list[Finding]:
    """Can a DataLoader start a worker process beside this MPI, which does not survive a fork? One rank a host tries."""
    began, problem = time.monotonic(), ""
    if group.rank in {one.node for one in ranks}:
        try:
            dataset = TensorDataset(engine.arange(4))
            (batch,) = DataLoader(dataset, batch_size=4, num_workers=1, timeout=_WORKER_WAIT)
            assert batch[0].tolist() == [0, 1, 2, 3]
        except (RuntimeError, OSError) as error:
            problem = str(error)
    taken = max(group.exchange(time.monotonic() - began))
    problems = _by_rank(group, problem)
    if problems:
        return [Finding(FAIL, "data workers", problems, _WITHOUT_WORKERS)]
    method = default_context().get_start_method()
    return [
        Finding(OK, "data workers", f"a DataLoader's first worker had its batch after {duration(taken)} ({method})")
    ]


Trial = Callable[[ProcessGroup, Sequence[Facts]], list[Finding]]
TRIALS: tuple[Trial, ...] = (shared_memory, single_copies, transports, data_workers)


@contextmanager
def _host_of(group: ProcessGroup) -> "Iterator[MPI.Intracomm]":
    """Collective: the ranks with which this one can share memory, as MPI has it."""
    from mpi4py import MPI

    assert group.comm is not None
    host = group.comm.Split_type(MPI.COMM_TYPE_SHARED, group.rank)
    assert isinstance(host, MPI.Intracomm)
    yield host
    host.Free()


def _by_rank(group: ProcessGroup, problem: str) -> str:
    """Collective: the ranks' problems in words; empty where nobody has one."""
    found: dict[str, list[int]] = {}
    for rank, text in enumerate(group.exchange(problem)):
        if text:
            found.setdefault(text, []).append(rank)
    return "; ".join(f"{name_ranks(who)}: {text}" for text, who in found.items())


def _both(seconds: dict[tuple[str, int], float], name: str) -> str:
    return f"64 KiB {duration(seconds[name, _SMALL])}, 4 MiB {duration(seconds[name, _LARGE])}"
