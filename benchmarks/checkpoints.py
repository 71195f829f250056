"""What a checkpoint costs: beside one `write` of the same bytes, beside PyTorch, and in a training that goes on.

    ddprun -n 2 benchmarks/checkpoints.py --megabytes 256 --folder /tmp/checkpoints

Every rank holds the same state, as in data parallel training, so much a rank that each rank's part is --megabytes. A
line of JSON a figure, the medians of --rounds that take turns: seconds of the slowest rank, and ratios. With PyTorch
on the path, `torch.save` of the state by rank 0 and `torch.distributed.checkpoint` are measured in the same rounds;
all of them sync what they write. `memory` is a checkpoint in the hosts' memory, and going on from it. `stalled / copy`
is the time that training waits for a save beside copying the same tensors with NumPy, both into memory that was
written before. `stall` is what saving adds to a training that saves every 100 steps, beside the same training with the
same manager that saves nothing, in turns: to the time in `Manager.step` and in the optimizer's, the seconds of a save
and as `part` of 100 steps; and as `loss` to the whole time, with what another training without a save differs as
`noise`. An optimizer changes some of the tensors in each step, as much of them as takes less than 50 ms, and the rest
of these 50 ms a step sleeps, or multiplies matrices. With `all tensors` it changes all of them, and a step takes 50 ms
and as long as that takes. `overlap` is with `Manager(overlap=True)`.
"""

import argparse
import contextlib
import ctypes
import json
import os
import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import ddp
import engine
from ddp import checkpoint
from engine.optim import SGD

PIECE = 4 << 20  # floats of each tensor
SOME = 4  # tensors that an optimizer changes in each step of 50 ms
EVERY = 100  # steps from one save to the next
EARLY = 5  # of them, the one that is saved: what was begun then ends before the last


def timed(action: Callable[[], Any]) -> float:
    """Seconds until the slowest rank is through, with memory from the system, as where a job begins: what the last one
    has freed and this process has kept goes back before.
    """
    with contextlib.suppress(AttributeError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)
    ddp.barrier()
    started = time.perf_counter()
    action()
    ddp.barrier()
    return time.perf_counter() - started


def write(path: Path, content: np.ndarray) -> None:
    with path.open("wb", buffering=0) as file:
        left = memoryview(content)
        while left:
            left = left[file.write(left) :]
        os.fsync(file.fileno())


def read(paths: list[Path]) -> list[np.ndarray]:
    found = []
    for path in paths:
        found.append(np.empty(path.stat().st_size, np.uint8))
        with path.open("rb", buffering=0) as file:
            left = memoryview(found[-1])
            while left:
                left = left[file.readinto(left) :]
    return found


def rounds(folder: Path, arrays: dict[str, np.ndarray], count: int) -> dict[str, list[float]]:
    """Seconds of each way, round by round."""
    rank, world = ddp.get_rank(), ddp.get_world_size()
    state = {"state": {name: engine.from_numpy(array) for name, array in arrays.items()}}
    own = np.concatenate([array.view(np.uint8) for array in list(arrays.values())[rank::world]])
    files = [folder / f"plain-{other}" for other in range(world)]
    torch = torch_of(folder)
    seconds: dict[str, list[float]] = {}

    def note(what: str, action: Callable[[], Any]) -> None:
        seconds.setdefault(what, []).append(timed(action))

    for number in range(count):
        generation = folder / f"generation-{number}"
        note("write", lambda: write(files[rank], own))
        note("save", lambda path=generation: checkpoint.save(state, path))
        note("read", lambda: read(files))
        note("load", lambda path=generation: checkpoint.load({"state": None}, path))
        if torch is not None:
            import torch.distributed.checkpoint as dcp

            tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
            path = folder / "torch.pt"

            def save_with_torch(tensors: Any = tensors, path: Path = path) -> None:
                if rank == 0:
                    with path.open("wb") as file:
                        torch.save(tensors, file)
                        file.flush()
                        os.fsync(file.fileno())

            note("torch.save", save_with_torch)
            note("torch.load", lambda path=path: torch.load(path))
            note("dcp.save", lambda tensors=tensors: dcp.save(tensors, checkpoint_id=folder / "dcp"))
            note("dcp.load", lambda tensors=tensors: dcp.load(tensors, checkpoint_id=folder / "dcp"))
        if rank == 0:
            for left in (generation, folder / "dcp"):
                shutil.rmtree(left, ignore_errors=True)
        ddp.barrier()
    return seconds


def torch_of(folder: Path) -> Any:
    """PyTorch with its process group, where it is installed."""
    try:
        import torch
        import torch.distributed
    except ImportError:
        return None
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=int(ddp.get_rank()), world_size=ddp.get_world_size()
    )
    return torch


def in_memory(folder: Path, arrays: dict[str, np.ndarray], count: int) -> dict[str, list[float]]:
    """Seconds, round by round, to keep a checkpoint in the hosts' memory, and to go on from it."""
    state: dict[str, Any] = {"state": {name: engine.from_numpy(array) for name, array in arrays.items()}}
    seconds: dict[str, list[float]] = {"memory.save": [], "memory.load": []}
    with checkpoint.Manager(folder / "remembered", state, every=1 << 60, memory_every=1) as manager:
        for number in range(1, count + 2):

            def save(number: int = number) -> None:
                manager.step(number)
                manager.wait()

            seconds["memory.save"].append(timed(save))
            seconds["memory.load"].append(timed(manager.restore))
    return {what: values[1:] for what, values in seconds.items()}  # without the first: its memory is new


def stalls(manager: checkpoint.Manager, arrays: dict[str, np.ndarray], count: int) -> dict[str, list[float]]:
    """Seconds, round by round, of a plain copy of this rank's part, and of what a save keeps training from going on."""
    own = list(arrays.values())[ddp.get_rank() :: ddp.get_world_size()]
    copies = [np.ones_like(array) for array in own]
    seconds: dict[str, list[float]] = {"copy": [], "stalled": []}

    def copy() -> None:
        for target, array in zip(copies, own, strict=True):
            np.copyto(target, array)

    for number in range(2, count + 3):
        seconds["copy"].append(timed(copy))
        seconds["stalled"].append(timed(lambda number=number: manager.save(number)))
        manager.wait()
    return {what: values[1:] for what, values in seconds.items()}


def machine(folder: Path) -> dict[str, Any]:
    """What the figures are of."""
    mounts = [line.split()[1:3] for line in Path("/proc/self/mounts").read_text().splitlines()]
    _, kind = max(
        ((where, kind) for where, kind in mounts if folder.is_relative_to(where)), key=lambda one: len(one[0])
    )
    return {"file system": kind, "cpus": os.cpu_count(), "load": round(os.getloadavg()[0], 1)}


def train(
    step: Callable[[], Any], optimizer: Any, manager: checkpoint.Manager, count: int, saved: int | None
) -> tuple[float, float]:
    """Seconds of a training of so many steps, and those in the steps of an optimizer and of a manager.

    saved: a number of steps, divisible by `EVERY`, with which the manager saves in the midst of it.
    """
    waited = 0.0

    def body() -> None:
        nonlocal waited
        for number in range(count):
            step()
            started = time.perf_counter()
            optimizer.step()
            manager.step(saved if saved is not None and number == EARLY else 1)
            waited += time.perf_counter() - started

    return timed(body), waited


def cost_of_saves(
    step: Callable[[], Any], optimizer: Any, manager: checkpoint.Manager, count: int, numbers: range
) -> dict[str, list[float]]:
    """Of trainings of so many steps with a save and without, in turns: by how many seconds the first wait longer, and
    what part of `EVERY` steps without that and the whole difference are, and the one between two without.
    """
    found: dict[str, list[float]] = {"seconds": [], "part": [], "loss": [], "noise": [], "seconds a step": []}
    for number in numbers:
        plain, usual = train(step, optimizer, manager, count, None)
        whole, waited = train(step, optimizer, manager, count, number * EVERY)
        manager.wait()
        every = plain / count * EVERY
        found["seconds"].append(waited - usual)
        found["part"].append((waited - usual) / every)
        found["loss"].append((whole - plain) / every)
        again, _ = train(step, optimizer, manager, count, None)
        found["noise"].append((again - plain) / every)
        found["seconds a step"].append(plain / count)
    return found


def multiplications(seconds: float) -> Callable[[], Any]:
    """Matrix products for about so long."""
    matrix = np.ones((640, 640), np.float32)
    started = time.perf_counter()
    for _ in range(5):
        matrix @ matrix
    count = max(1, round(seconds * 5 / (time.perf_counter() - started)))
    return lambda: [matrix @ matrix for _ in range(count)]


def tell_stalls(
    folder: Path, arrays: dict[str, np.ndarray], count: int, tell: Callable[..., None], compare: Callable[..., None]
) -> None:
    """What saving costs trainings of some of the tensors and of all."""
    tensors = {name: engine.from_numpy(array) for name, array in arrays.items()}
    parameters = [engine.nn.Parameter(tensor) for tensor in tensors.values()]
    gradient = engine.ones(PIECE)
    optimizer = SGD(parameters, lr=1e-3)
    state: dict[str, Any] = {"state": tensors, "optimizer": optimizer}
    for overlap in (False, True):
        words = ", overlap" if overlap else ""
        with checkpoint.Manager(folder / "runs", state, every=EVERY, keep=1, overlap=overlap) as manager:
            manager.save(1)  # memory for the copy is made once
            manager.wait()
            if not overlap:
                compare(stalls(manager, arrays, count), ("stalled", "copy"))
            optimizer.zero_grad()
            for parameter in parameters[:SOME]:
                parameter.grad = gradient
            optimizer.step()
            left = max(0.0, 0.05 - statistics.median(timed(optimizer.step) for _ in range(5)))
            kinds = [
                ("sleep", lambda left=left: time.sleep(left), EVERY),
                ("matmul", multiplications(left), EVERY),
                ("sleep, all tensors", lambda: time.sleep(0.05), 4 * EARLY),
            ]
            for number, (kind, step, steps) in enumerate(kinds):
                if steps < EVERY:  # they are long
                    for parameter in parameters:
                        parameter.grad = gradient
                    optimizer.step()
                first = 1 + number * count
                found = cost_of_saves(step, optimizer, manager, steps, range(first, first + count))
                medians = {what: round(statistics.median(values), 4) for what, values in found.items()}
                spread = [round(bound(found["part"]), 4) for bound in (min, max)]
                tell(figure=f"stall, {kind}{words}", **medians, range=spread)
        if ddp.get_rank() == 0:
            shutil.rmtree(folder / "runs", ignore_errors=True)
        ddp.barrier()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=256, help="of each rank's part")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("out/checkpoint_figures"))
    parser.add_argument("--only", choices=["speed", "stall"])
    args = parser.parse_args()
    ddp.init_process_group()
    rank, world = ddp.get_rank(), ddp.get_world_size()
    if rank == 0:
        shutil.rmtree(args.folder, ignore_errors=True)
        args.folder.mkdir(parents=True)
    ddp.barrier()
    folder = args.folder.resolve()
    pieces = max(world, world * args.megabytes * 1_000_000 // (4 * PIECE))
    arrays = {f"w{number}": np.full(PIECE, number, np.float32) for number in range(pieces)}

    size = pieces * 4 * PIECE // world

    def tell(**figure: Any) -> None:
        if rank == 0:
            print(json.dumps({"ranks": world, "megabytes a rank": size // 1_000_000, **figure}), flush=True)

    def compare(seconds: dict[str, list[float]], *pairs: tuple[str, str]) -> None:
        for what, values in seconds.items():
            tell(figure=what, seconds=round(statistics.median(values), 3))
        for what, beside in pairs:
            if what in seconds:
                ratios = [one / other for one, other in zip(seconds[what], seconds[beside], strict=True)]
                tell(figure=f"{what} / {beside}", ratio=round(statistics.median(ratios), 3),
                     range=[round(min(ratios), 3), round(max(ratios), 3)])  # fmt: skip

    tell(figure="machine", **machine(folder))
    if args.only != "stall":
        compare(
            rounds(folder, arrays, args.rounds) | in_memory(folder, arrays, args.rounds),
            *(("save", "write"), ("load", "read"), ("torch.save", "save"), ("torch.load", "load")),
            *(("dcp.save", "save"), ("dcp.load", "load"), ("memory.save", "save"), ("memory.load", "load")),
        )
    if args.only != "speed":
        tell_stalls(folder, arrays, args.rounds, tell, compare)
    with contextlib.suppress(FileNotFoundError):
        if rank == 0:
            shutil.rmtree(folder)
    ddp.destroy_process_group()


if __name__ == "__main__":
    main()
