"""How fast ranks sum: every transport, in place and not, beside MPI's own Allreduce.

    ddprun -n 2 -m ddp.bench                        # 1 KiB to 256 MiB, a table as of nccl-tests
    ddprun -n 2 -m ddp.bench --json --max-bytes 64M # one JSON line a figure
    ddprun -n 4 -m ddp.bench --plot bandwidth.png   # log-log; needs matplotlib
    ddprun -n 2 -m ddp.bench --device cuda          # buckets on GPUs, beside NCCL's own all-reduce and a plain copy

A round: each rank rewrites its buffer, all meet in a barrier, each takes the time until it has the sum; the slowest
rank counts. Seconds are the median over the rounds. They come in blocks that take turns with those of the other
transports, so that whatever else the machine does hits all alike (over 64 MiB one transport comes after the other, for
the sake of memory); the first two rounds of a block, which find the caches as the others left them, do not count.

Buffers are the transport's own memory, as DistributedDataParallel's are: in place the sum replaces the addends, out of
place it goes to a second buffer and the addends stay. MPI's own Allreduce has private arrays, with MPI.IN_PLACE or two
of them, and memory management as in a program of its own: what `engine.allocator` does for training is undone (it would
make Open MPI 5.0.11 faster where it takes temporary memory: 64 MiB 23 to 16 ms, in place 16 to 9). Algorithm bandwidth
is bytes / seconds; bus bandwidth is that times 2 (n - 1) / n, what has to travel at least, and does not depend on the
number n of ranks.

On GPUs a round ends when the device is through with it. `device_copy` is a copy from one array to another, by all ranks
at the same time. `memory_GBps` of the JSON lines is what memory has to read and write in all, 2 bytes a byte and rank
for a copy and for `cuda_ipc` alike, so that the two can be compared where ranks share a GPU.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

import ddp
from ddp.group import resolve
from ddp.transport import CUDA_ONLY, TRANSPORTS
from engine.allocator import give_freed_memory_back

_LIBRARY = "mpi_library"  # MPI's own Allreduce
_NCCL_LIBRARY = "nccl_library"  # NCCL's own all-reduce
_COPY = "device_copy"
_SECONDS = 0.5  # to spend on one figure
_ROUNDS = (5, 100)  # of a block
_BLOCKS = 3
_WARM_UP = 2
_LABELS = 10  # of sizes under a plot, at most
_TOGETHER = 64 * 2**20  # bytes of a buffer up to which all transports hold theirs at the same time


class Figure(NamedTuple):
    """One line of the result."""

    transport: str
    bytes: int
    ranks: int
    seconds: float
    in_place: bool

    def as_json(self) -> dict[str, Any]:
        algorithm = self.bytes / self.seconds / 1e9
        memory = 2 * self.ranks * algorithm  # of all ranks together
        bus = memory / self.ranks if self.transport == _COPY else algorithm * 2 * (self.ranks - 1) / self.ranks
        found = {**self._asdict(), "algbw_GBps": round(algorithm, 4), "busbw_GBps": round(bus, 4)}
        return found | ({"memory_GBps": round(memory, 4)} if self.transport in (_COPY, "cuda_ipc") else {})


class Case(NamedTuple):
    """What is timed: `prepare` writes this round's addends and is not timed, `run` is; then `result` holds the sum."""

    transport: str
    in_place: bool
    prepare: Callable[[int], None]
    run: Callable[[], None]
    result: Any


def measure(
    names: list[str],
    sizes: list[int],
    device: str = "cpu",
    ways: tuple[bool, ...] = (False, True),
    seconds_each: float = _SECONDS,
) -> Iterator[Figure]:
    """Collective: the figures, size by size, out of place and in place (`ways`). Every sum is checked once."""
    give_freed_memory_back()
    group = resolve(None)
    comm = group.comm
    if device == "cuda":
        from ddp import bench_cuda as on_device

        make_case = on_device.cases(names, comm)
    else:
        transports = {name: TRANSPORTS[name](comm) for name in names if name != _LIBRARY}

        def make_case(name: str, count: int, in_place: bool) -> Case:
            if name == _LIBRARY:
                return _library_case(comm, count, in_place)
            return _transport_case(transports[name], count, in_place)

    kinds = [(name, in_place) for name in names for in_place in ways]
    for nbytes in sizes:
        for batch in [kinds] if nbytes <= _TOGETHER else [[kind] for kind in kinds]:
            cases = [make_case(name, nbytes // 4, in_place) for name, in_place in batch]
            for case in cases:
                _check(case, group.size())
            for case, seconds in zip(cases, _median_seconds(cases, comm, seconds_each), strict=True):
                yield Figure(case.transport, nbytes, group.size(), seconds, case.in_place)
            del cases, case
    if device == "cpu":
        for transport in transports.values():
            transport.close()


def _transport_case(transport: Any, count: int, in_place: bool) -> Case:
    buffer = transport.allocate(count, np.float32, out_of_place=not in_place)

    def run() -> None:
        transport.start(buffer)
        transport.wait(buffer)

    fill = buffer.array.fill
    return Case(transport.name, in_place, lambda round_: fill(round_ + transport.rank), run, buffer.result)


def _library_case(comm: Any, count: int, in_place: bool) -> Case:
    from mpi4py import MPI

    result = np.zeros(count, np.float32)
    source = result if in_place else np.zeros(count, np.float32)
    given = MPI.IN_PLACE if in_place else source

    def run() -> None:
        comm.Allreduce(given, result)

    return Case(_LIBRARY, in_place, lambda round_: source.fill(round_ + comm.rank), run, result)


def _check(case: Case, ranks: int) -> None:
    case.prepare(1)
    case.run()
    expected = 1.0 if case.transport == _COPY else ranks + ranks * (ranks - 1) / 2
    if not (case.result == expected).all():
        raise RuntimeError(f"ddp.bench: {case.transport} does not sum: expected {expected} everywhere")


def _median_seconds(cases: list[Case], comm: Any, seconds_each: float) -> list[float]:
    """Collective: the slowest rank's time of a round, in the median, of each case; as many rounds as fit."""
    from mpi4py import MPI

    def once(case: Case, round_: int) -> float:
        case.prepare(round_)
        comm.Barrier()
        began = time.perf_counter()
        case.run()
        return comm.allreduce(time.perf_counter() - began, MPI.MAX)

    times: list[list[float]] = [[] for _ in cases]
    for _ in range(_BLOCKS):
        for case, of_case in zip(cases, times, strict=True):
            for round_ in range(_WARM_UP):
                once(case, round_)
            left = seconds_each / _BLOCKS  # the same on all ranks, as what `once` returns
            for round_ in range(_ROUNDS[1]):
                if round_ >= _ROUNDS[0] and left <= 0:
                    break
                of_case.append(once(case, round_))
                left -= of_case[-1]
    return [statistics.median(of_case) for of_case in times]


def sizes_between(smallest: int, largest: int) -> list[int]:
    """Powers of four bytes from one to the other, and the largest itself."""
    sizes = []
    while smallest < largest:
        sizes.append(smallest)
        smallest *= 4
    return [*sizes, largest]


def parse_bytes(text: str) -> int:
    """1024, 64K, 16M or 1G as a number of bytes. Raises argparse.ArgumentTypeError for anything else."""
    factor = {"K": 2**10, "M": 2**20, "G": 2**30}.get(text[-1:].upper(), 1)
    digits = text[:-1] if factor > 1 else text
    if not digits.isdecimal() or int(digits) * factor < 4 or int(digits) * factor % 4:
        raise argparse.ArgumentTypeError(f"expected a size like 1024, 64K or 16M, whole float32 numbers, got {text!r}")
    return int(digits) * factor


def plot(figures: list[Figure], path: str) -> None:
    """Bus bandwidth over size, log-log: a colour for each transport, lighter and dashed out of place."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    drawing, axes = plt.subplots(figsize=(9, 5), layout="constrained")
    for number, name in enumerate(dict.fromkeys(figure.transport for figure in figures)):
        for in_place in (True, False):
            line = [figure for figure in figures if (figure.transport, figure.in_place) == (name, in_place)]
            style: dict[str, Any] = {"linestyle": "-"} if in_place else {"linestyle": "--", "alpha": 0.5}
            axes.loglog(
                [figure.bytes for figure in line],
                [figure.as_json()["busbw_GBps"] for figure in line],
                marker="o",
                markersize=4,
                color=f"C{number}",
                label=f"{name}, {'in place' if in_place else 'out of place'}",
                **style,
            )
    sizes = sorted({figure.bytes for figure in figures})
    shown = sizes[:: -(-len(sizes) // _LABELS)]
    axes.set_xscale("log", base=2)
    axes.set_xticks(shown, [size_in_words(size) for size in shown])
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set(xlabel="size", ylabel="bus bandwidth, GB/s", title=f"allreduce over {figures[0].ranks} ranks")
    axes.grid(visible=True, which="both", alpha=0.3)
    drawing.legend(loc="outside right upper", frameon=False)
    drawing.savefig(path, dpi=120)
    plt.close(drawing)


def size_in_words(nbytes: int) -> str:
    """In the largest unit that divides it: 64 KiB, 25 MiB, 1000 B."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes % factor == 0:
            return f"{nbytes // factor} {unit}"
    return f"{nbytes} B"


_HEADING = """\
#                                                   out-of-place                       in-place
#      size       count    transport     time   algbw   busbw     time   algbw   busbw
#       (B)  (elements)                  (us)  (GB/s)  (GB/s)     (us)  (GB/s)  (GB/s)"""


def table_row(out_of_place: Figure, in_place: Figure) -> str:
    """Two figures of one size and transport as a line of the table, in the order of nccl-tests."""
    columns = [f"{in_place.bytes:>11}  {in_place.bytes // 4:>10}  {in_place.transport:>11}"]
    for figure in (out_of_place, in_place):
        values = figure.as_json()
        columns.append(f"{figure.seconds * 1e6:>9.1f}  {values['algbw_GBps']:>6.2f}  {values['busbw_GBps']:>6.2f}")
    return "".join(columns)


def main(arguments: list[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m ddp.bench", description="Time sums over the ranks.")
    choices = [*_measurable(), _LIBRARY, *CUDA_ONLY, _NCCL_LIBRARY, _COPY]
    parser.add_argument("--transport", action="append", choices=choices, help="one of them only")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="where the buffers are")
    parser.add_argument("--min-bytes", type=parse_bytes, default="1K")
    parser.add_argument("--max-bytes", type=parse_bytes, default="256M")
    parser.add_argument("--json", action="store_true", help="one JSON line a figure instead of the table")
    parser.add_argument("--plot", metavar="FILE", help="a PNG of bus bandwidth over size")
    options = parser.parse_args(arguments)
    ddp.init_process_group()
    group = resolve(None)
    if group.size() < 2:
        parser.error("it takes at least 2 ranks to sum: ddprun -n 2 -m ddp.bench")
    if options.device == "cuda":
        from ddp import bench_cuda as on_device

        names = options.transport or on_device.usable(group.comm)
    else:
        names = options.transport or [*_usable(group.comm), _LIBRARY]
    if group.rank == 0 and not options.json:
        print(_HEADING)
    figures, row = [], []
    for figure in measure(names, sizes_between(options.min_bytes, options.max_bytes), options.device):
        figures.append(figure)
        row.append(figure)
        if group.rank == 0 and options.json:
            print(json.dumps(figure.as_json()), flush=True)
        if len(row) == 2:
            if group.rank == 0 and not options.json:
                print(table_row(*row), flush=True)
            row.clear()
    if options.plot and group.rank == 0:
        plot(figures, options.plot)
    ddp.destroy_process_group()


def _measurable() -> list[str]:
    return [name for name in TRANSPORTS if name != "loopback"]


def _usable(comm: Any) -> list[str]:
    """Collective: the transports that serve these ranks; of the others rank 0 says why not."""
    found = []
    for name in _measurable():
        try:
            TRANSPORTS[name](comm).close()
        except RuntimeError as error:
            if comm.rank == 0:
                print(f"not measured: {error}", file=sys.stderr)
        else:
            found.append(name)
    return found


if __name__ == "__main__":
    main()
