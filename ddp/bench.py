"""How fast ranks sum: every transport, in place and not, beside MPI's own Allreduce.

    ddprun -n 2 -m ddp.bench                        # 1 KiB to 256 MiB, a table as of nccl-tests
    ddprun -n 2 -m ddp.bench --json --max-bytes 64M # one JSON line a figure
    ddprun -n 4 -m ddp.bench --plot bandwidth.png   # log-log; needs matplotlib

A round: all ranks meet in a barrier, then each fills its buffer and takes the time until it has the sum; the slowest
rank counts. Seconds are the median over the rounds, of the sum alone: in place, the buffer is the transport's own
memory and filling it is not timed; out of place, copying the gradients in and the sum out is. Algorithm bandwidth is
bytes / seconds; bus bandwidth is that times 2 (n - 1) / n, what has to travel at least, and does not depend on n.
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
from ddp.transport import TRANSPORTS

_LIBRARY = "mpi_library"  # MPI's own Allreduce
_SECONDS = 0.5  # to spend on one figure
_ROUNDS = (5, 200)


class Figure(NamedTuple):
    """One line of the result."""

    transport: str
    bytes: int
    ranks: int
    seconds: float
    in_place: bool

    def as_json(self) -> dict[str, Any]:
        algorithm = self.bytes / self.seconds / 1e9
        bus = algorithm * 2 * (self.ranks - 1) / self.ranks
        return {**self._asdict(), "algbw_GBps": round(algorithm, 4), "busbw_GBps": round(bus, 4)}


class Case(NamedTuple):
    """What is timed: `prepare` is not, `run` is."""

    prepare: Callable[[int], None]
    run: Callable[[], None]


def measure(names: list[str], sizes: list[int]) -> Iterator[Figure]:
    """Collective: the figures, size by size. Every sum is checked once."""
    group = resolve(None)
    comm = group.comm
    transports = {name: TRANSPORTS[name](comm) for name in names if name != _LIBRARY}
    for nbytes in sizes:
        count = nbytes // 4
        for name in names:
            for in_place in (False, True):
                if name == _LIBRARY:
                    case, result = _library_case(comm, count, in_place)
                else:
                    case, result = _transport_case(transports[name], count, in_place, group.rank)
                _check(case, result, name, group.size())
                yield Figure(name, nbytes, group.size(), _median_seconds(case, comm), in_place)
                del case, result


def _transport_case(transport: Any, count: int, in_place: bool, rank: int) -> tuple[Case, np.ndarray]:
    buffer = transport.allocate(count, np.float32)
    if in_place:

        def run() -> None:
            transport.start(buffer)
            transport.wait(buffer)

        return Case(lambda number: buffer.array.fill(number + rank), run), buffer.array
    source, result = np.empty(count, np.float32), np.empty(count, np.float32)

    def run_with_copies() -> None:
        np.copyto(buffer.array, source)
        transport.start(buffer)
        transport.wait(buffer)
        np.copyto(result, buffer.array)

    return Case(lambda number: source.fill(number + rank), run_with_copies), result


def _library_case(comm: Any, count: int, in_place: bool) -> tuple[Case, np.ndarray]:
    from mpi4py import MPI

    source, result = np.empty(count, np.float32), np.empty(count, np.float32)
    if in_place:
        return Case(
            lambda number: result.fill(number + comm.rank), lambda: comm.Allreduce(MPI.IN_PLACE, result)
        ), result
    return Case(lambda number: source.fill(number + comm.rank), lambda: comm.Allreduce(source, result)), result


def _check(case: Case, result: np.ndarray, name: str, ranks: int) -> None:
    case.prepare(1)
    case.run()
    expected = ranks + ranks * (ranks - 1) / 2
    if not (result == expected).all():
        raise RuntimeError(f"ddp.bench: {name} does not sum: expected {expected} everywhere")


def _median_seconds(case: Case, comm: Any) -> float:
    """Collective: the slowest rank's time of a round, in the median; as many rounds as fit into `_SECONDS`."""
    from mpi4py import MPI

    def once(number: int) -> float:
        case.prepare(number)
        comm.Barrier()
        began = time.perf_counter()
        case.run()
        return comm.allreduce(time.perf_counter() - began, MPI.MAX)

    estimate = min(once(number) for number in range(2))
    rounds = int(min(max(_SECONDS / estimate, _ROUNDS[0]), _ROUNDS[1]))
    return statistics.median(once(number) for number in range(rounds))


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
    """Bus bandwidth over size, log-log, a line for each transport; dashed out of place."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    drawing, axes = plt.subplots(figsize=(8, 5))
    for name in dict.fromkeys(figure.transport for figure in figures):
        for in_place in (True, False):
            line = [figure for figure in figures if (figure.transport, figure.in_place) == (name, in_place)]
            label = f"{name}, in place" if in_place else f"{name}, out of place"
            bandwidth = [figure.as_json()["busbw_GBps"] for figure in line]
            axes.loglog([figure.bytes for figure in line], bandwidth, "o-" if in_place else "o--", label=label)
    axes.set(xlabel="bytes", ylabel="bus bandwidth, GB/s", title=f"allreduce over {figures[0].ranks} ranks")
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend()
    drawing.savefig(path, dpi=120)
    plt.close(drawing)


def main(arguments: list[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m ddp.bench", description="Time sums over the ranks.")
    parser.add_argument("--transport", action="append", choices=[*_measurable(), _LIBRARY], help="one of them only")
    parser.add_argument("--min-bytes", type=parse_bytes, default="1K")
    parser.add_argument("--max-bytes", type=parse_bytes, default="256M")
    parser.add_argument("--json", action="store_true", help="one JSON line a figure instead of the table")
    parser.add_argument("--plot", metavar="FILE", help="a PNG of bus bandwidth over size")
    options = parser.parse_args(arguments)
    ddp.init_process_group()
    group = resolve(None)
    if group.size() < 2:
        parser.error("it takes at least 2 ranks to sum: ddprun -n 2 -m ddp.bench")
    names = options.transport or [*_usable(group.comm), _LIBRARY]
    figures = []
    if group.rank == 0 and not options.json:
        print(f"{'bytes':>12} {'transport':>14} {'in place':>9} {'us':>12} {'algbw GB/s':>11} {'busbw GB/s':>11}")
    for figure in measure(names, sizes_between(options.min_bytes, options.max_bytes)):
        figures.append(figure)
        if group.rank == 0:
            values = figure.as_json()
            print(
                json.dumps(values)
                if options.json
                else f"{figure.bytes:>12} {figure.transport:>14} {'yes' if figure.in_place else 'no':>9} "
                f"{figure.seconds * 1e6:>12.1f} {values['algbw_GBps']:>11.3f} {values['busbw_GBps']:>11.3f}",
                flush=True,
            )
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
