"""The figures of one GPU, as JSON lines: training steps, an optimizer's and an allreduce's share of memory bandwidth.

    python benchmarks/gpu.py                                # engine alone
    python benchmarks/gpu.py --torch-python /path/python    # and PyTorch, directly after it, with ratios
    python benchmarks/gpu.py --only tiny mlp adamw          # some of them

Each figure is measured in a process of its own. A `step` line is the median of many steps, which the host waits for in
blocks, so that neither the launches nor the waiting is left out; its mode is `eager`, `captured` (engine.compile) or
`compiled` (torch.compile). `gpt_large` has 12 layers of width 768, 1024 tokens, batches of 16, and bfloat16 autocast;
`adamw` is the optimizer's step on 100 M parameters, which reads 16 and writes 12 bytes each; `copy` a copy from one
array to another, which reads and writes each byte; `ipc` sums over two ranks that share the GPU (`ddp.bench --device
cuda`). A `ratio` line sets two of these beside each other; `at_most` or `at_least` is what is aimed at.

On a machine without a GPU it says so and ends with exit code 2.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

STEPS = ("mlp", "cnn", "gpt", "tiny", "gpt_large")
ALL = (*STEPS, "adamw", "ipc")
BLOCKS, SECONDS = 15, 0.2  # measurements of a figure, and how long one lasts at least
ROOT = Path(__file__).resolve().parent.parent

# (workload, mode of engine, mode of PyTorch): engine's time as a multiple of PyTorch's that is aimed at.
_TARGETS = {
    ("mlp", "captured", "eager"): 0.5,
    ("tiny", "captured", "eager"): 0.5,
    ("gpt", "captured", "compiled"): 1.0,
    ("cnn", "eager", "eager"): 1.0,
    ("gpt", "eager", "eager"): 1.0,
    ("gpt_large", "eager", "eager"): 1.0,
}

Line = dict[str, Any]


def main() -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch-python", metavar="PATH", help="a Python with PyTorch for this GPU")
    parser.add_argument("--only", nargs="+", choices=ALL, default=ALL, metavar="FIGURE", help=f"of {', '.join(ALL)}")
    parser.add_argument("--toy", action="store_true", help="smallest sizes: whether it runs, not how fast")
    parser.add_argument("--runner", metavar="SCRIPT", help="a script that runs the processes of engine, for tests")
    parser.add_argument("--child", nargs=2, metavar=("FIGURE", "MODE"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(measure(*given.child, toy=given.toy)), flush=True)
        return 0
    missing = missing_gpu(given)
    if missing:
        print(f"benchmarks/gpu.py: {missing}", file=sys.stderr)
        return 2
    figures: list[Line] = []
    for line in lines(given):
        figures.append(line)
        print(json.dumps(line), flush=True)
    for line in ratios(figures):
        print(json.dumps(line), flush=True)
    return 0


def missing_gpu(given: argparse.Namespace) -> str:
    """What a process of engine says is missing; empty where it finds a GPU."""
    asked = "import engine.memory.backend as b\ntry: b.require_cupy()\nexcept RuntimeError as error: print(error)"
    if given.runner:
        return ""
    done = subprocess.run([sys.executable, "-c", asked], env=environment(), capture_output=True, text=True, check=True)
    return done.stdout.strip()


def lines(given: argparse.Namespace) -> Iterator[Line]:
    """All figures, PyTorch's directly after engine's."""
    for name in given.only:
        if name == "ipc":
            yield from ipc_lines(given)
        elif name == "adamw":
            yield child(given, "copy", "engine")
            yield child(given, "adamw", "eager")
            if given.torch_python:
                yield child(given, "adamw", "eager", torch=True)
        else:
            for mode in ("eager", "captured"):
                yield child(given, name, mode)
            for mode in ("eager", "compiled") if given.torch_python else ():
                yield child(given, name, mode, torch=True)


def child(given: argparse.Namespace, figure: str, mode: str, torch: bool = False) -> Line:
    """One figure, from a process of its own. Raises RuntimeError with what it said when it fails."""
    python = [given.torch_python] if torch else [sys.executable, *([given.runner] if given.runner else [])]
    words = [*python, __file__, "--child", figure, mode, *(["--toy"] if given.toy else [])]
    return json.loads(output(words, "torch" if torch else "engine")[-1])  # type: ignore[no-any-return]


def ipc_lines(given: argparse.Namespace) -> Iterator[Line]:
    """What two ranks that share a GPU measure."""
    largest = "4K" if given.toy else "256M"
    words = [sys.executable, "-m", "launch", "-n", "2", *([given.runner] if given.runner else []), "-m", "ddp.bench"]
    words += ["--device", "cuda", "--json", "--min-bytes", "1K" if given.toy else "1M", "--max-bytes", largest]
    words += ["--transport", "cuda_ipc", "--transport", "device_copy"]
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    for line in output(words, "engine", CUDA_VISIBLE_DEVICES=first):
        if line.startswith("{"):
            yield {"figure": "ipc", **json.loads(line)}
        elif line:  # the MPI may speak there, too
            print(line, file=sys.stderr)


def output(words: list[str], library: str, **variables: str) -> list[str]:
    """The lines a process prints. Raises RuntimeError with what it said when it fails."""
    done = subprocess.run(
        words, env=environment(library) | variables, cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)} ended with exit code {done.returncode}:\n{done.stderr}")
    return done.stdout.splitlines()


def environment(library: str = "engine") -> dict[str, str]:
    """Of a process that measures with this library."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "BENCHMARK_LIBRARY": library}


# --- in the processes that measure ------------------------------------------------------------------------------------


def measure(figure: str, mode: str, toy: bool) -> Line:
    """The line of one figure."""
    import workloads

    library: Any = workloads.library
    library.manual_seed(0)
    if figure == "copy":
        step, line = copy_step(1 << 12 if toy else 1 << 28)
    elif figure == "adamw":
        step, line = adamw_step(library, 1000 if toy else 100_000_000)
    else:
        step, line = training_step(workloads, figure, mode, toy), {}
    times = step_times(step, library.cuda.synchronize, 3 if toy else BLOCKS, 0.0 if toy else SECONDS)
    lower, median, upper = statistics.quantiles(times, n=4, method="inclusive")
    line = {
        "figure": figure if figure in ("copy", "adamw") else "step",
        **({} if figure in ("copy", "adamw") else {"workload": figure}),
        "library": workloads.NAME,
        "mode": mode,
        "ms": round(median * 1e3, 5),
        "quartiles_ms": [round(lower * 1e3, 5), round(upper * 1e3, 5)],
        **line,
        "device": library.cuda.get_device_name(),
        "peak_MB": round(library.cuda.max_memory_allocated() / 2**20, 1),
    }
    if "bytes" in line:
        line["memory_GBps"] = round(line["bytes"] / median / 1e9, 3)
    return line


def step_times(step: Callable[[], object], wait: Callable[[], object], blocks: int, seconds: float) -> list[float]:
    """Seconds of a step, in each block of as many steps as fill `seconds`."""
    for _ in range(3):  # what is compiled or captured is so by the third
        step()
    wait()
    began = time.perf_counter()
    step()
    wait()
    count = max(1, int(seconds / (time.perf_counter() - began)))
    times = []
    for _ in range(blocks):
        began = time.perf_counter()
        for _ in range(count):
            step()
        wait()
        times.append((time.perf_counter() - began) / count)
    return times


def training_step(workloads: Any, name: str, mode: str, toy: bool) -> Callable[[], object]:
    """A step of a training loop as a user writes it."""
    library, functional = workloads.library, workloads.F
    generator = library.Generator().manual_seed(0)
    model, inputs, targets = (toy_workload if toy else workload)(workloads, name, generator)
    model, inputs, targets = model.to("cuda"), inputs.to("cuda"), targets.to("cuda")
    half = name == "gpt_large"
    optimizer = library.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    net = library.compile(model) if mode == "compiled" else model

    def step(inputs: Any, targets: Any) -> None:
        optimizer.zero_grad(set_to_none=True)
        with library.autocast("cuda", dtype=library.bfloat16, enabled=half):
            loss = functional.cross_entropy(net(inputs), targets)
        loss.backward()
        optimizer.step()

    return partial(library.compile(step) if mode == "captured" else step, inputs, targets)


def workload(workloads: Any, name: str, generator: Any) -> Any:
    """Model, inputs and targets of a figure."""
    if name != "gpt_large":
        return workloads.STATED[name](generator)
    return language_model(workloads, generator, batch=16, tokens=1024, blocks=12, width=768, heads=12)


def toy_workload(workloads: Any, name: str, generator: Any) -> Any:
    """The same of a few numbers."""
    nn = workloads.nn
    if name.startswith("gpt"):
        return language_model(workloads, generator, batch=2, tokens=4, blocks=1, width=16, heads=2)
    if name == "cnn":
        parts = [nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3)]
        return workloads.classified(nn.Sequential(*parts), (2, 1, 4, 4), 3, generator)
    return workloads.classified(workloads.layers(8, 8, 3), (4, 8), 3, generator)


def language_model(workloads: Any, generator: Any, batch: int, tokens: int, **sizes: int) -> Any:
    drawn = workloads.library.randint(0, 256, (batch, tokens + 1), generator=generator)
    return workloads.GPT(tokens, **sizes), drawn[:, :-1].contiguous(), drawn[:, 1:].flatten()


def adamw_step(library: Any, count: int) -> tuple[Callable[[], object], Line]:
    """The optimizer's step alone: parameter, gradient and both averages are read, all but the gradient written."""
    parameter = library.nn.Parameter(library.randn(count, device="cuda"))
    parameter.grad = library.randn(count, device="cuda")
    step = library.optim.AdamW([parameter], lr=1e-3, fused=True).step
    return step, {"parameters": count, "bytes": 28 * count}


def copy_step(count: int) -> tuple[Callable[[], object], Line]:
    """A copy of float32 numbers by the device."""
    import engine

    source, target = engine.randn(count, device="cuda"), engine.zeros(count, device="cuda")
    return partial(target.copy_, source), {"bytes": 8 * count}


# --- what was measured, side by side ----------------------------------------------------------------------------------


def ratios(figures: list[Line]) -> Iterator[Line]:
    """Ratio lines of all pairs that were measured."""
    steps = {(line["workload"], line["library"], line["mode"]): line["ms"] for line in figures if "workload" in line}
    for (name, library, mode), mine in steps.items():
        for other in ("eager", "compiled") if library == "engine" else ():
            theirs = steps.get((name, "torch", other))
            if theirs:
                aim = _TARGETS.get((name, mode, other))
                yield {
                    "figure": "ratio",
                    "workload": name,
                    "engine": mode,
                    "torch": other,
                    "ratio": round(mine / theirs, 3),
                    **({"at_most": aim} if aim else {}),
                }
    bandwidth = {(line["figure"], line["library"]): line["memory_GBps"] for line in figures if "parameters" in line}
    copies = [line["memory_GBps"] for line in figures if line["figure"] == "copy"]
    for (_, library), found in bandwidth.items():
        aim = {"at_least": 0.85} if library == "engine" else {}
        yield {"figure": "ratio", "adamw": library, "of_copy": round(found / copies[0], 3), **aim}
    summed = {(line["bytes"], line["transport"]): line for line in figures if line["figure"] == "ipc"}
    for (nbytes, transport), line in summed.items():
        if transport == "cuda_ipc":
            share = line["memory_GBps"] / summed[nbytes, "device_copy"]["memory_GBps"]
            yield {"figure": "ratio", "ipc": nbytes, "of_copy": round(share, 3), "at_least": 0.8}


if __name__ == "__main__":
    sys.exit(main())
