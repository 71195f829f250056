"""How far a training step is from what this machine can do: its products at the fastest product there is, its memory
traffic at the speed of memory, and nothing else.

    python benchmarks/limit.py                     # JSON lines: the peak, then every workload
    python benchmarks/limit.py --torch-python OTHER/bin/python --write PERFORMANCE.md mlp gpt wide cnn

One rank, one thread. `products_ms` are multiplications and additions of all products (linear layers, convolutions,
LSTMs, attention's), forward and for both gradients, at `peak_GFLOP_s`: that of the fastest of several square products,
by the engine and by NumPy's BLAS. `traffic_ms` are bytes that a step moves even if everything between two products came
for free, at the speed of adding two arrays to a third, all of them together as large as what the step touches: what
stays in a cache is faster than memory. Counted are: parameters, read forward and backward; their gradients, written and
read; parameters and both moments of AdamW, read and written; what goes into each product, read forward and backward,
with its gradient written; what comes out of it, written, with its gradient read. `over` is the step over both together,
for PyTorch, too, where it is asked for.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

import numpy as np
from figures import surroundings, write
from training import MANY, STEPS, WARMUP, step_times, training_step
from workloads import WORKLOADS, Block, library, nn

FLOAT = 4  # bytes
SIDES = (256, 512, 768, 1024)  # of the square products
AT_LEAST = 64 << 10  # bytes of the arrays that are added: fewer are over before a clock sees them
SECONDS = 0.2  # to spend on a speed
# Floats that a step moves for each parameter: read forward and backward, its gradient written and read, and itself and
# two moments read and written.
FOR_A_PARAMETER = 2 + 2 + 6
INTO, OUT_OF = 3, 2  # the same for what goes into a product, and what comes out of one

HEADS = {
    "GFLOP": "products, GFLOP",
    "products_ms": "at the peak, ms",
    "MB": "traffic, MB",
    "traffic_ms": "at its speed, ms",
    "step_ms": "step, ms",
    "over": "over",
    "torch_ms": "PyTorch, ms",
    "torch_over": "over",
}


class Work(NamedTuple):
    """Of a training step: operations of its products, bytes that it moves, and bytes that it touches."""

    operations: int
    moved: int
    touched: int


def work_of(model: Any, inputs: Any) -> Work:
    """Counts it in one forward pass. The first product has no gradient of its input.

    Raises TypeError for a model with matrices in a module of which nothing is counted.
    """
    counted: list[tuple[int, int, int]] = []  # of each product: multiplications, floats into it, and out of it
    with_inputs: list[int] = []  # multiplications of the model's inputs, and of what each later module is given

    def count(module: Any, given: Any, result: Any) -> None:
        (x,) = given
        if isinstance(module, Block):
            # Attention's two products, half of them masked: its layers count themselves.
            batch, tokens, width = x.shape
            counted.append((batch * tokens * tokens * width, 0, 0))
            return
        out = result[0] if isinstance(result, tuple) else result
        places = out.numel() // out.shape[1 if isinstance(module, nn.Conv2d) else -1]
        weights = sum(each.numel() for name, each in module.named_parameters() if "weight" in name)
        counted.append((places * weights, x.numel(), out.numel()))
        with_inputs.append(places * (module.weight_ih_l0.numel() if isinstance(module, nn.LSTM) else weights))

    kinds = (nn.Linear, nn.Conv2d, nn.LSTM, Block)
    for each in model.modules():
        if not isinstance(each, (*kinds, nn.Embedding)) and any(own.ndim > 1 for own in each.parameters(recurse=False)):
            raise TypeError(f"the products of {type(each).__name__} are not counted; those of {kinds} are")
    hooks = [each.register_forward_hook(count) for each in model.modules() if isinstance(each, kinds)]
    with library.no_grad():
        model(inputs)
    for hook in hooks:
        hook.remove()
    parameters = sum(each.numel() for each in model.parameters())
    multiplications = 3 * sum(each for each, _, _ in counted)
    if inputs.is_floating_point():
        multiplications -= with_inputs[0]
    into, out_of = (sum(each[at] for each in counted) for at in (1, 2))
    moved = FOR_A_PARAMETER * parameters + INTO * into + OUT_OF * out_of
    return Work(2 * multiplications, FLOAT * moved, FLOAT * (4 * parameters + into + out_of))


def fastest(run: Callable[[], object]) -> float:
    """Seconds of the fastest of many runs."""
    run()
    until, best = time.perf_counter() + SECONDS, float("inf")
    while (began := time.perf_counter()) < until:
        run()
        best = min(best, time.perf_counter() - began)
    return best


def peak() -> float:
    """Operations a second of the fastest product there is here."""
    best = 0.0
    for side in SIDES:
        a, b = (np.random.default_rng(seed).standard_normal((side, side), np.float32) for seed in (0, 1))
        out = np.empty_like(a)
        x, y = library.tensor(a), library.tensor(b)
        for run in (lambda a=a, b=b, out=out: np.matmul(a, b, out=out), lambda x=x, y=y: x @ y):
            best = max(best, 2 * side**3 / fastest(run))
    return best


def bandwidth(touched: int) -> float:
    """Bytes a second, read and written, where so many are touched again and again."""
    a, b, out = (np.ones(max(touched, AT_LEAST) // FLOAT // 3, np.float32) for _ in range(3))
    return 3 * a.nbytes / fastest(lambda: np.add(a, b, out=out))


def measure(name: str, operations_a_second: float) -> dict[str, Any]:
    """The line of one workload, without PyTorch."""
    library.manual_seed(0)
    model, inputs, targets = WORKLOADS[name](library.Generator().manual_seed(0))
    work = work_of(model, inputs)
    step = training_step(model)
    times, _ = step_times(lambda: step(inputs, targets), WARMUP, MANY.get(name, STEPS))
    products, traffic = work.operations / operations_a_second, work.moved / bandwidth(work.touched)
    step_ms = statistics.median(times) * 1e3
    return {
        "workload": name,
        "GFLOP": round(work.operations / 1e9, 4),
        "products_ms": round(products * 1e3, 4),
        "MB": round(work.moved / 1e6, 2),
        "traffic_ms": round(traffic * 1e3, 4),
        "step_ms": round(step_ms, 4),
        "over": round(step_ms / 1e3 / (products + traffic), 3),
    }


def of_pytorch(python: str, name: str) -> float:
    """Milliseconds of the same step there."""
    program = Path(__file__).with_name("training.py")
    done = subprocess.run(
        [python, str(program), name],
        env={**os.environ, "BENCHMARK_LIBRARY": "torch"},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(json.loads(done.stdout.splitlines()[-1])["step_ms"])


def table(lines: list[dict[str, Any]]) -> str:
    """Markdown, with a column for PyTorch where it was measured."""
    columns = [(name, head) for name, head in HEADS.items() if name in lines[0]]
    rows = [f"| | {' | '.join(head for _, head in columns)} |", "|" + "---|" * (1 + len(columns))]
    for line in lines:
        cells = [f"{line[name]:.2f}" if "over" in name else f"{line[name]:.3g}" for name, _ in columns]
        rows.append(f"| `{line['workload']}` | {' | '.join(cells)} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="WORKLOAD", help=f"of {', '.join(WORKLOADS)}; default all")
    parser.add_argument("--torch-python", metavar="PATH", help="a Python with PyTorch")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table into FILE, between its marks")
    given = parser.parse_args()
    if unknown := [name for name in given.names if name not in WORKLOADS]:
        parser.error(f"unknown workload {unknown[0]!r}: choose from {', '.join(WORKLOADS)}")
    about = surroundings(["python", "benchmarks/limit.py", *sys.argv[1:]], given.torch_python)
    operations_a_second = peak()
    print(json.dumps({"peak_GFLOP_s": round(operations_a_second / 1e9, 1)}), flush=True)
    lines = []
    for name in given.names or WORKLOADS:
        line = measure(name, operations_a_second)
        if given.torch_python:
            line["torch_ms"] = of_pytorch(given.torch_python, name)
            line["torch_over"] = round(line["torch_ms"] / (line["products_ms"] + line["traffic_ms"]), 3)
        lines.append(line)
        print(json.dumps(line), flush=True)
    if given.write:
        speed = f"The fastest product: {operations_a_second / 1e9:.0f} GFLOP/s."
        write(given.write, "limit", f"{about} {speed}\n\n{table(lines)}")


if __name__ == "__main__":
    main()
