"""Measuring sums, and the command; see `ddp.bench`."""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import ddp
from ddp.bench.figures import COPY, HEADING, LIBRARY, NCCL_LIBRARY, Figure, plot, table_row
from ddp.groups.group import resolve
from ddp.transport import CUDA_ONLY, TRANSPORTS
from engine.memory.allocator import give_freed_memory_back

_MEETING = "a measurement of ddp.bench"  # what ranks wait in, for the watchdog
_SECONDS = 0.5  # to spend on one figure
_ROUNDS = (5, 100)  # of a block
_BLOCKS = 3
_WARM_UP = 2
_TOGETHER = 64 * 2**20  # bytes of a buffer up to which all transports hold theirs at the same time


class Case(NamedTuple):
    """What is timed: `prepare` writes this round's addends and is not timed, `run` is; then `result` holds the sum."""

    transport: str
    prepare: Callable[[int], None]
    run: Callable[[], None]
    result: Any


def measure(
    names: list[str],
    sizes: list[int],
    device: str = "cpu",
    seconds_each: float = _SECONDS,
) -> Iterator[Figure]:
    """Collective: the figures, size by size, of sums in place. Every sum is checked once."""
    give_freed_memory_back()
    group = resolve(None)
    comm = group.comm
    if device == "cuda":
        from ddp.bench import cuda as on_device

        with group.meeting(_MEETING):
            make_case = on_device.cases(names, comm)
    else:
        with group.meeting(_MEETING):
            transports = {name: TRANSPORTS[name](comm) for name in names if name != LIBRARY}

        def make_case(name: str, count: int) -> Case:
            if name == LIBRARY:
                return _library_case(comm, count)
            return _transport_case(transports[name], count)

    for nbytes in sizes:
        for batch in [names] if nbytes <= _TOGETHER else [[name] for name in names]:
            with group.meeting(_MEETING):
                cases = [make_case(name, nbytes // 4) for name in batch]
                for case in cases:
                    _check(case, group.size())
                medians = _median_seconds(cases, comm, seconds_each)
            for case, seconds in zip(cases, medians, strict=True):
                yield Figure(case.transport, nbytes, group.size(), seconds)
            del cases, case
    if device == "cpu":
        for transport in transports.values():
            transport.close()


def _transport_case(transport: Any, count: int) -> Case:
    buffer = transport.allocate(count, np.float32)

    def run() -> None:
        transport.start(buffer)
        transport.wait(buffer)

    fill = buffer.array.fill
    return Case(transport.name, lambda round_: fill(round_ + transport.rank), run, buffer.array)


def _library_case(comm: Any, count: int) -> Case:
    from mpi4py import MPI

    array = np.zeros(count, np.float32)

    def run() -> None:
        comm.Allreduce(MPI.IN_PLACE, array)

    return Case(LIBRARY, lambda round_: array.fill(round_ + comm.rank), run, array)


def _check(case: Case, ranks: int) -> None:
    case.prepare(1)
    case.run()
    expected = 1.0 if case.transport == COPY else ranks + ranks * (ranks - 1) / 2
    if not (case.result == expected).all():
        raise RuntimeError(f"ddp.bench: {case.transport} does not sum: expected {expected} everywhere")


def _median_seconds(cases: list[Case], comm: Any, seconds_each: float) -> list[float]:
    """Collective: the slowest rank's time of a round, in the median, of each case; as many rounds as fit."""

    def once(case: Case, round_: int) -> float:
        case.prepare(round_)
        comm.Barrier()
        began = time.perf_counter()
        case.run()
        return max(comm.allgather(time.perf_counter() - began))

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


def main(arguments: list[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m ddp.bench", description="Time sums over the ranks.")
    choices = [*_measurable(), LIBRARY, *CUDA_ONLY, NCCL_LIBRARY, COPY]
    parser.add_argument("--transport", action="append", choices=choices, help="one of them only")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="where the buffers are")
    parser.add_argument("--min-bytes", type=parse_bytes, default="1K")
    parser.add_argument("--max-bytes", type=parse_bytes, default="256M")
    parser.add_argument("--json", action="store_true", help="one JSON line a figure instead of the table")
    parser.add_argument(
        "--plot",
        metavar="FILE",
        help="bus bandwidth over size, as a picture or (.html) a page",
    )
    options = parser.parse_args(arguments)
    ddp.init_process_group()
    group = resolve(None)
    if group.size() < 2:
        parser.error("it takes at least 2 ranks to sum: ddprun -n 2 -m ddp.bench")
    if options.device == "cuda":
        from ddp.bench import cuda as on_device

        with group.meeting(_MEETING):
            names = options.transport or on_device.usable(group.comm)
    else:
        with group.meeting(_MEETING):
            names = options.transport or [*_usable(group.comm), LIBRARY]
    if group.rank == 0 and not options.json:
        print(HEADING)
    figures = []
    for figure in measure(names, sizes_between(options.min_bytes, options.max_bytes), options.device):
        figures.append(figure)
        if group.rank == 0:
            print(json.dumps(figure.as_json()) if options.json else table_row(figure), flush=True)
    if options.plot and group.rank == 0:
        _draw(figures, options.plot)
    ddp.destroy_process_group()


def _draw(figures: list[Figure], path: str) -> None:
    if not path.endswith(".html"):
        plot(figures, path)
        return
    from ddp.bench.page import page

    Path(path).write_text(page(figures, "\n".join([HEADING, *map(table_row, figures)])))


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
