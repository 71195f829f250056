"""What is to be started, decided from settings and surroundings: ranks, threads, binding. Pure functions."""

from collections.abc import Mapping
from typing import NamedTuple

from launch.environment import forwarded
from launch.gpus import Gpus, assignment
from launch.hosts import Found, Host, one_host
from launch.machine import Machine

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


class Plan(NamedTuple):
    """Everything there is to say to mpirun, whichever it is."""

    nproc: int
    chosen: str  # why so many, in words
    hosts: tuple[Host, ...]
    source: str  # where the hosts were read, in words; empty for this machine alone, and where `chosen` has said it
    ranks: tuple[int, ...]  # on each host
    one_host: bool  # and that is this one
    cores_per_rank: int
    limit: str  # what leaves fewer cores than there are, in words
    bound: bool  # each rank keeps to its own cores
    oversubscribed: bool  # more ranks than cores, or than the hosts take
    as_root: bool
    live: bool  # somebody watches a terminal: output is shown as it comes, not line by line
    variables: Mapping[str, str]  # set on every rank
    gpus: str = ""  # what each rank gets of them, in words; empty where there are none
    reserve: int = 0  # processes more, which wait until a rank is lost, and so need no cores


def make_plan(
    *,
    nproc: int | None,
    found: Found,
    machine: Machine,
    environ: Mapping[str, str],
    as_root: bool,
    live: bool,
    gpus: Gpus | None = None,
    given: Mapping[str, str] | None = None,
) -> Plan:
    """Ranks, threads and binding for `nproc` ranks (None: all that the hosts take) on the hosts found (none: this one).

    given: variables for all ranks by `-x`, which come before all others.

    On this machine alone, None is one rank a GPU where there are GPUs. A rank gets an equal share of the cores of its
    host and as many threads; variables that `environ` has are kept.
    """
    gpus = gpus or Gpus()
    hosts = found.hosts
    places = hosts or (Host("", machine.cores, machine.cores),)
    slots = sum(host.slots for host in places)
    if not hosts and gpus.number and nproc is None:
        nproc, by_gpus = gpus.number, True
    else:
        by_gpus = False
    chosen = "one a GPU" if by_gpus else "as asked" if nproc else found.slots or "one a core"
    nproc = nproc or slots
    ranks = ranks_per_host(nproc, tuple(host.slots for host in places))
    used = [(host, count) for host, count in zip(places, ranks, strict=True) if count]
    oversubscribed = nproc > slots or any(count > host.cores for host, count in used)
    cores_per_rank = max(1, min(host.cores // count for host, count in used))
    variables = {name: environ.get(name, str(cores_per_rank)) for name in THREAD_VARIABLES}
    shares, words = assignment(gpus, max(ranks))
    if shares:
        variables |= {"ALLSTRIDE_GPUS": shares, "ALLSTRIDE_GPU_COUNT": str(gpus.number)}
    variables["ALLSTRIDE_NPROC"] = str(nproc)  # ddp compares it with the world that MPI reports
    here = one_host(places, environ)
    if not here:
        first = next(host.name for host, count in used) or found.first
        # What torchrun's scripts read; ranks of one host call it localhost.
        variables |= {"MASTER_ADDR": environ.get("MASTER_ADDR", first)} if first else {}
        variables |= {k: v for k, v in forwarded(environ).items() if k not in variables}
    variables |= given or {}
    return Plan(
        nproc=nproc,
        chosen=chosen,
        hosts=places,
        source=found.source,
        ranks=ranks,
        one_host=here,
        cores_per_rank=cores_per_rank,
        limit=machine.limit,
        bound=machine.whole and not oversubscribed,
        oversubscribed=oversubscribed,
        as_root=as_root,
        live=live,
        variables=variables,
        gpus=words,
    )


def ranks_per_host(nproc: int, slots: tuple[int, ...]) -> tuple[int, ...]:
    """How mpirun deals ranks by slot: it fills host after host; what is left over goes round."""
    ranks: list[int] = []
    for limit in slots:
        ranks.append(min(limit, nproc - sum(ranks)))
    rounds, odd = divmod(nproc - sum(ranks), len(slots))
    return tuple(count + rounds + (place < odd) for place, count in enumerate(ranks))


def expected_hosts(plan: Plan) -> dict[int, str]:
    """On which host each rank is to be, for jobs whose hosts have names and are not oversubscribed."""
    if sum(host.slots for host in plan.hosts) < plan.nproc or not plan.hosts[0].name:
        return {}
    names = [host.name for host, count in zip(plan.hosts, plan.ranks, strict=True) for _ in range(count)]
    return dict(enumerate(names))


def describe(plan: Plan, environ: Mapping[str, str]) -> str:
    """The plan in one line, in words: ranks on cores, threads each, binding, and in brackets where each is from."""
    if len(plan.hosts) == 1 and not plan.hosts[0].name:
        where = _count(plan.hosts[0].cores, "core") + (f" ({plan.limit})" if plan.limit else "")
    elif plan.hosts[0].name:
        where = ", ".join(f"{host.name}: {count}" for host, count in zip(plan.hosts, plan.ranks, strict=True))
    else:
        where = _count(len(plan.hosts), "node")
    where += f" ({plan.source})" if plan.source else ""
    own = [f"{name}={environ[name]}" for name in THREAD_VARIABLES if name in environ]
    parts = [
        f"{_count(plan.nproc, 'rank')} ({plan.chosen}) on {where}",
        f"{_count(plan.cores_per_rank, 'thread')} each (cores / ranks)"
        + (f" except {' '.join(own)} as set" if own else ""),
    ]
    if plan.reserve:
        parts.append(f"not bound, {plan.reserve} more in reserve")
    elif plan.bound:
        parts.append(f"each bound to {_count(plan.cores_per_rank, 'core')}")
    elif plan.oversubscribed:
        parts.append("oversubscribed and therefore not bound")
    else:
        parts.append("not bound because only part of the machine may be used")
    if plan.gpus:
        parts.append(plan.gpus)
    if plan.as_root:
        parts.append("as root")
    return ", ".join(parts)


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"
