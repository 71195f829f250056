"""How a training step's time grows with the work: a sweep each over batch, width, depth, sequence and parameters.

    python benchmarks/growth.py                    # JSON lines: every point, then the fitted exponents of the sweep
    python benchmarks/growth.py --torch-python OTHER/bin/python --plot docs/growth.png --write PERFORMANCE.md
                                                   # each sweep by PyTorch, too; a picture, and a table in a file
    ddprun -n 2 benchmarks/growth.py parameters    # with the gradients summed over two ranks

A point is the fastest of several steps, on one thread a rank; on one rank by processor time, which other processes of a
busy machine add little to. Beside it stands its arithmetic: multiplications and additions of the matrix products and of
AdamW. `exponent` is the slope of log time over log size among the larger half of a sweep's points, where the fixed cost
of a step no longer hides it, `arithmetic_exponent` that of the arithmetic among the same points, and `steepest` the
largest slope between two neighbours less the arithmetic's there. A term of a higher order would show as a slope that
keeps growing; a single rise is where parameters, AdamW's state or activations leave the cache and a step begins to wait
for memory.
"""

import argparse
import itertools
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

import numpy as np
from figures import surroundings, write
from training import DistributedDataParallel, distributed, enter_world, leave_world, training_step
from workloads import GPT, NAME, classified, cnn, layers, library, nn

SECONDS = 1.0  # to spend on a point, within these numbers of steps
STEPS = (3, 50)
ADAMW = 13  # operations of AdamW on one parameter


class Case(NamedTuple):
    """A model with its data, and multiplications and additions of a training step."""

    model: Any
    inputs: Any
    targets: Any
    operations: float


def dense(widths: list[int], batch: int, activation: Callable[[], Any] = nn.ReLU) -> Case:
    """Linear layers: 2 operations a weight and sample forward, 4 backward but for the first layer's input."""
    model = layers(*widths, activation=activation)
    weights = [inputs * outputs for inputs, outputs in itertools.pairwise(widths)]
    operations = batch * (6 * sum(weights) - 2 * weights[0]) + ADAMW * parameters(model)
    return Case(*classified(model, (batch, widths[0]), widths[-1], library.Generator().manual_seed(0)), operations)


def images(batch: int) -> Case:
    """The workload `cnn` at another batch."""
    model, inputs, targets = cnn(library.Generator().manual_seed(0))
    inputs, targets = (each[library.arange(batch) % len(each)] for each in (inputs, targets))
    products = 9 * 32 * 784 * 2 + (9 * 32 * 64 * 196 + 64 * 49 * 128 + 1280) * 3
    return Case(model, inputs, targets, batch * products * 2 + ADAMW * parameters(model))


def sequence(tokens: int) -> Case:
    """The workload `gpt` on one sequence: products with weights, and with keys and values of all earlier tokens."""
    model = GPT(tokens)
    drawn = library.randint(0, 256, (1, tokens + 1), generator=library.Generator().manual_seed(0))
    weights = 4 * 12 * 128**2 + 128 * 256
    attention = 4 * 2 * 128 * tokens / 2
    operations = 6 * tokens * (weights + attention) + ADAMW * parameters(model)
    return Case(model, drawn[:, :-1].contiguous(), drawn[:, 1:].flatten(), operations)


def parameters(model: Any) -> int:
    """Number of floats in the parameters."""
    return sum(parameter.numel() for parameter in model.parameters())


# What changes, its values, and the case at a value.
SWEEPS: dict[str, tuple[str, list[int], Callable[[int], Case]]] = {
    "batch": (
        "batch of the MLP 784-1024-1024-10",
        [8 << n for n in range(8)],
        lambda n: dense([784, 1024, 1024, 10], n),
    ),
    "images": ("batch of the CNN", [8 << n for n in range(8)], images),
    "width": ("width of 4 layers, batch 32", [64 << n for n in range(7)], lambda n: dense([n] * 5, 32)),
    "depth": ("layers of width 16, batch 8", [2, 5, 10, 20, 50, 100, 200], lambda n: dense([16] * (n + 1), 8, nn.Tanh)),
    "depth_256": ("layers of width 256, batch 32", [2, 5, 10, 20, 50, 100, 200], lambda n: dense([256] * (n + 1), 32)),
    "sequence": ("tokens of the GPT, batch 1", [64 << n for n in range(6)], sequence),
    "parameters": (
        "parameters in 12 layers, batch 8",
        [12 * width * (width + 1) for width in (32, 64, 128, 256, 512, 1024, 2048, 4096)],
        lambda n: dense([math.isqrt(n // 12)] * 13, 8),
    ),
}


def step_seconds(case: Case, world: int) -> tuple[float, int]:
    """Collective: seconds of the fastest training step, and how many were timed."""
    clock = time.process_time if world == 1 else time.perf_counter
    net = DistributedDataParallel(case.model, gradient_as_bucket_view=True) if world > 1 else case.model
    step = training_step(net)

    def seconds() -> float:
        began = clock()
        step(case.inputs, case.targets)
        return clock() - began

    seconds()  # compiles, allocates
    second: list[Any] = [seconds()] * world
    if world > 1:
        distributed.all_gather_object(second, second[0])  # the ranks take the same number of steps
    steps = int(min(max(SECONDS / max(second), STEPS[0]), STEPS[1]))
    return min(seconds() for _ in range(steps)), steps


def slope(sizes: list[int], values: list[float]) -> float:
    """The exponent of a power law through these points, by least squares."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def sweep(name: str, points: int | None, world: int) -> Iterator[dict[str, Any]]:
    """Collective: a line for each point, and the line with the exponents."""
    what, sizes, make = SWEEPS[name]
    sizes, seconds, operations = sizes[:points], [], []
    about = {"sweep": name, "library": NAME, "ranks": world}
    for size in sizes:
        case = make(size)
        fastest, steps = step_seconds(case, world)
        seconds.append(fastest)
        operations.append(case.operations)
        yield {
            **about,
            "size": size,
            "step_ms": round(fastest * 1e3, 4),
            "steps": steps,
            "GFLOP": round(case.operations / 1e9, 6),
            "GFLOP_s": round(case.operations / fastest / 1e9, 2),
            "params_M": round(parameters(case.model) / 1e6, 3),
        }
        del case
    late = slice(len(sizes) // 2, None)
    pairs = [slice(n, n + 2) for n in range(len(sizes) - 1)]
    excess = {
        n: slope(sizes[pair], seconds[pair]) - slope(sizes[pair], operations[pair]) for n, pair in enumerate(pairs)
    }
    steepest = max(excess, key=lambda n: excess[n])
    yield {
        **about,
        "what": what,
        "exponent": round(slope(sizes[late], seconds[late]), 3),
        "arithmetic_exponent": round(slope(sizes[late], operations[late]), 3),
        "steepest": round(excess[steepest], 3),
        "steepest_between": sizes[pairs[steepest]],
    }


def of_pytorch(python: str, name: str, points: int | None) -> Iterator[dict[str, Any]]:
    """The lines of the same sweep from the Python that has PyTorch."""
    words = [python, __file__, name, *([f"--points={points}"] if points else [])]
    environment = {**os.environ, "BENCHMARK_LIBRARY": "torch"}
    done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    yield from map(json.loads, done.stdout.splitlines())


def plot(lines: list[dict[str, Any]], path: str) -> None:
    """A panel for each sweep, log-log: milliseconds of a step, and the arithmetic at the speed of the largest point."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    names = list(dict.fromkeys(line["sweep"] for line in lines))
    libraries = list(dict.fromkeys(line["library"] for line in lines))
    columns = min(4, len(names))
    rows = -(-len(names) // columns)
    drawing, panels = plt.subplots(rows, columns, figsize=(3.6 * columns, 3.2 * rows), squeeze=False)
    for panel in panels.flat[len(names) :]:
        panel.set_axis_off()
    for name, panel in zip(names, panels.flat, strict=False):
        for library_name in libraries:
            mine = [line for line in lines if (line["sweep"], line["library"]) == (name, library_name)]
            *points, fit = mine
            sizes = [point["size"] for point in points]
            label = f"{library_name}: {fit['exponent']:.2f}"
            panel.loglog(sizes, [point["step_ms"] for point in points], "o-", markersize=3, label=label)
            if library_name == libraries[0]:
                scale = points[-1]["step_ms"] / points[-1]["GFLOP"]
                label = f"arithmetic: {fit['arithmetic_exponent']:.2f}"
                panel.loglog(sizes, [point["GFLOP"] * scale for point in points], ":", color="grey", label=label)
        panel.set(xlabel=fit["what"], ylabel="ms a step")
        panel.grid(visible=True, which="major", alpha=0.3)
        panel.legend(fontsize=8, title="exponents", title_fontsize=8)
    drawing.tight_layout()
    drawing.savefig(path, dpi=100)
    plt.close(drawing)


def table(lines: list[dict[str, Any]]) -> str:
    """A row for each sweep and library."""
    rows = ["| time over | from | to | library | exponent | of the arithmetic | steepest excess |", "|" + "---|" * 7]
    points: list[int] = []
    for line in lines:
        if "size" in line:
            points.append(line["size"])
            continue
        cells = [line["what"], f"{points[0]:,}", f"{points[-1]:,}", line["library"], f"{line['exponent']:.2f}"]
        excess = f"{line['steepest']:+.2f} ({line['steepest_between'][0]:,} to {line['steepest_between'][1]:,})"
        rows.append(f"| {' | '.join([*cells, format(line['arithmetic_exponent'], '.2f'), excess])} |")
        points = []
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweeps", nargs="*", metavar="SWEEP", help=f"any of {', '.join(SWEEPS)}; default all")
    parser.add_argument("--torch-python", metavar="PATH", help="a Python with PyTorch; one rank only")
    parser.add_argument("--plot", metavar="FILE", help="draw the sweeps into a PNG; needs matplotlib")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the exponents into FILE, between its marks")
    parser.add_argument("--points", type=int, help="only the first so many points of each sweep, 2 or more")
    given = parser.parse_args()
    if unknown := [name for name in given.sweeps if name not in SWEEPS]:
        parser.error(f"unknown sweep {unknown[0]!r}: choose from {', '.join(SWEEPS)}")
    # A Python with PyTorch, which is started by this one to print lines, need not have what is told of here.
    about = surroundings(["python", "benchmarks/growth.py", *sys.argv[1:]], given.torch_python) if given.write else ""
    rank, world = enter_world()
    library.manual_seed(0)
    lines = []
    for name in given.sweeps or SWEEPS:
        peer = of_pytorch(given.torch_python, name, given.points) if given.torch_python else ()
        for line in itertools.chain(sweep(name, given.points, world), peer):
            lines.append(line)
            if rank == 0:
                print(json.dumps(line), flush=True)
    if given.plot and rank == 0:
        plot(lines, given.plot)
    if given.write and rank == 0:
        write(given.write, "growth", f"{about}\n\n{table(lines)}")
    leave_world()


if __name__ == "__main__":
    main()
