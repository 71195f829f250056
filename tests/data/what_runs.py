"""Runs the programs and models of `what_runs/programs.json` here and by PyTorch, and writes docs/what_runs.md.

    python tests/data/what_runs.py --sources DIR --torch-python PYTHON [-k WORDS]
    python tests/data/what_runs.py                                       (only the page, of the results there are)

DIR has a clone of each repository, in a folder of its name, at the commit of the list. PYTHON is that of an environment
with PyTorch, and with what programs import besides (einops, Pillow, Matplotlib, tqdm, tensorboardX), as the environment
of this script. `what_runs/driver.py` trains models, `what_runs/program.py` runs programs, on either side with one
thread a rank, PyTorch first: it writes the weights from which both begin. Results are kept in
`what_runs/results.json`. A row whose losses differ by more than ROUNDING runs a second time, in float64: what is left
of the difference then is no rounding.
"""

import argparse
import json
import math
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).with_suffix("")
LIST, RESULTS = FOLDER / "programs.json", FOLDER / "results.json"
PAGE = ROOT / "docs/what_runs.md"
ROUNDING = 1e-4

HEAD = """# What runs

Programs and models of public repositories, trained for 20 steps by PyTorch and, without a changed line, by
`ddprun --torch`. `python tests/data/what_runs.py --sources DIR --torch-python PYTHON` makes this page from the list in
`tests/data/what_runs/programs.json`; DIR has clones of the repositories.

*Loss* is the largest relative difference of a step's loss to PyTorch's on any rank. *CPU time* is over PyTorch's,
summed over the ranks, one thread each: one run, and so rough.
"""

PROGRAMS = """
## Whole programs

A program is run as it is, with its own model, data loading, loop, evaluation and saving, and with the arguments in the
list. What it calls `backward` of is compared, for 20 steps (a step of a GAN has two or three) or for as many as it
makes, and then it is ended where it has not come to its end. On 2 ranks the `DistributedDataParallel` is the program's
own. What is put in its place, on both sides alike (`tests/data/what_runs/program.py`): an optimizer's parameters begin
with PyTorch's values; random numbers are NumPy's, from one seed; dropout is off; torchvision's data sets and transforms
are small stand-ins with pictures of noise (`stand_ins/`), and texts are random words, as nothing is downloaded; where a
program wants GPUs (`"gpu"` in the list), the CPU answers for `cuda`, and gloo for `nccl`. CPU time is that from a
quarter of the passes on. The ddp-tutorial-series of pytorch/examples, and what jSwords91 made of it, have a loss of 0,
a cross entropy over one class. Programs that PyTorch 2.13 does not run as they are (old calls, a download that has no
stand-in) are not in the list.

Some carry rounding errors on, with small batches through batch norm, two players of a GAN or high learning rates: where
their weights begin with a relative change of 1e-7, PyTorch's own losses change by up to 3.7e-2 in dcgan, 1.8e-2 in
504_batch_normalization, 1.2e-2 in nlp-tutorial's BERT, 8.1e-3 in its Transformer, 2.6e-3 in deep_residual_network,
7.5e-4 in ebgan and 5.6e-4 in infogan. Adam's first step is the learning rate with the gradient's sign, also where that
is the sign of a rounding error: from one of six seeds 46 weights of dcgan's generator went another way in float32 than
in float64, the same for PyTorch and here; within six steps PyTorch's float32 left float64 from two of the seeds, this
project's from one of these. The last section has such rows in float64.
"""

MODELS = """
## Models

A model is imported from its repository, begins with the same weights (PyTorch writes them with `torch.save`, and
`torch.load` reads them here), and is trained by a loop of this project, `tests/data/what_runs/driver.py`: SGD with
momentum, on noise. On 2 ranks it is wrapped in `DistributedDataParallel`, PyTorch's over gloo. Dropout is off, as its
masks are not PyTorch's. CPU time is that of the 20 steps, kernels compiled. VGG11 with 8 pictures a step is sensitive:
PyTorch's own losses change by up to 4e-2 in these 20 steps where its weights begin with a relative change of 1e-7. The
list has what runs in seconds; the heavier networks of its repositories were not tried.
"""

IN_FLOAT64 = """
## The largest differences, in float64

Rows whose losses differ by more than {rounding:.0e}, run again with every number in float64. A difference that was
rounding, carried on from step to step, is gone then; one of the arithmetic would stay.

| row | loss in float32 | loss in float64 |
|---|---|---|"""


def check(sources: Path, repository: str, commit: str) -> None:
    """Ends the program unless the clone of a repository is at the commit and no file that is there has been changed."""
    folder = sources / repository.partition("/")[2]
    for words, expected in ((["rev-parse", "HEAD"], commit), (["diff", "--name-only", "--diff-filter=M", "HEAD"], "")):
        ended = subprocess.run(["git", "-C", folder, *words], capture_output=True, text=True, check=True)
        if ended.stdout.strip() != expected:
            sys.exit(f"{folder}: expected commit {commit} unchanged, got {ended.stdout.strip()!r}")


def train(command: list[str], sources: Path, rows: list[dict[str, Any]], work: Path, side: str) -> list[dict[str, Any]]:
    """Runs the driver; returns the results of each rank, by the rows' names."""
    ranks = rows[0]["ranks"]
    (work / "rows.json").write_text(json.dumps(rows))
    words = [FOLDER / "driver.py", sources.resolve(), work / "rows.json", work, side]
    environ = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    subprocess.run([*command, *map(str, words)], cwd=work, env=environ, check=True)
    return [json.loads((work / f"{side}.{rank}.json").read_text()) for rank in range(ranks)]


def compare(sources: Path, rows: list[dict[str, Any]], torch_python: str) -> dict[str, Any]:
    """What came of each model: loss difference and CPU time, or what was raised. All are for one number of ranks."""
    ranks = str(rows[0]["ranks"])
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks != "1" else []
    with tempfile.TemporaryDirectory() as work:
        theirs = train([torch_python, *launcher], sources, rows, Path(work), "torch")
        here = [sys.executable, "-m", "launch", "--torch", "-n", ranks]
        ours = train(here, sources, rows, Path(work), "here")
    return {row["name"]: outcome(*([rank[row["name"]] for rank in side] for side in (ours, theirs))) for row in rows}


def compare_models(sources: Path, rows: list[dict[str, Any]], torch_python: str) -> dict[str, Any]:
    """The same, and in float64 where that is asked."""
    results = compare(sources, rows, torch_python)
    again = [row | {"float64": True} for row in rows if results[row["name"]].get("loss", 0.0) > ROUNDING]
    for name, result in (compare(sources, again, torch_python) if again else {}).items():
        results[name]["float64"] = result["loss"]
    return results


def compare_program(sources: Path, row: dict[str, Any], torch_python: str) -> dict[str, Any]:
    """What came of one program, in float64, too, where that is asked."""
    result = run_on_both(sources, row, torch_python)
    if result.get("loss", 0.0) > ROUNDING:
        result["float64"] = run_on_both(sources, row | {"float64": True}, torch_python)["loss"]
    return result


def run_on_both(sources: Path, row: dict[str, Any], torch_python: str) -> dict[str, Any]:
    """What came of one program, run by PyTorch and here, each in its own copy of the folder in which it lies."""
    with tempfile.TemporaryDirectory() as work:
        theirs = run_program([torch_python], "torch", sources, row, Path(work))
        ours = run_program([sys.executable, "-P", "-m", "launch", "--torch"], "here", sources, row, Path(work))
    return outcome(ours, theirs)


def run_program(python: list[str], side: str, sources: Path, row: dict[str, Any], work: Path) -> list[dict[str, Any]]:
    """Runs `what_runs/program.py` on the row's ranks; returns the result of each."""
    folder, ranks = work / side, row["ranks"]
    shutil.copytree(sources / row["repository"].partition("/")[2] / row.get("path", ""), folder, symlinks=True)
    for name, (kind, count) in row.get("files", {}).items():
        write(folder / name, kind, count)
    (work / "row.json").write_text(json.dumps(row))
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    launcher = torchrun if side == "torch" else ["-n", str(ranks)]
    paths = [*filter(None, [os.environ.get("PYTHONPATH")]), str(FOLDER / "stand_ins")]
    environ = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONHASHSEED": "0",
    }
    environ |= {"STAND_IN_EXAMPLES": str(row.get("examples", 1280)), "MPLBACKEND": "agg"}
    words = [*python, *launcher, FOLDER / "program.py", work / "row.json", work, side]
    ended = subprocess.run(list(map(str, words)), cwd=folder, env=environ, capture_output=True, text=True, timeout=900)
    results = [work / f"{side}.{rank}.json" for rank in range(ranks)]
    if ended.returncode or not all(result.exists() for result in results):
        sys.exit(f"{row['name']}, {side}: ended with {ended.returncode}\n{ended.stdout[-2000:]}{ended.stderr[-4000:]}")
    return [json.loads(result.read_text()) for result in results]


def write(file: Path, kind: str, count: int) -> None:
    """Makes a file of random data: `count` lines of text, or as many numbers below 64 in 16 bits each."""
    file.parent.mkdir(parents=True, exist_ok=True)
    numbers = np.random.default_rng(0)
    if kind == "uint16":
        file.write_bytes(numbers.integers(0, 64, count, np.uint16).tobytes())
        return
    assert kind in ("lines", "words"), kind
    words = ["".join(numbers.choice(list("abcdefghijklmnopqrstuvwxyz"), 4)) for _ in range(200)]
    length = 12 if kind == "lines" else 1
    file.write_text("".join(" ".join(numbers.choice(words, length)) + "\n" for _ in range(count)))


def outcome(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> dict[str, Any]:
    """What the two sides' ranks made of one row."""
    for rank in theirs:
        assert "raises" not in rank, f"PyTorch does not run it either: {rank['raises']}"
    about = {"made": datetime.now(UTC).date().isoformat(), "load": round(os.getloadavg()[0])}
    if raised := [rank["raises"] for rank in ours if "raises" in rank]:
        return about | {"raises": raised[0]}
    both = [
        pair
        for one, other in zip(ours, theirs, strict=True)
        for pair in zip(one["losses"], other["losses"], strict=True)
    ]
    seconds = [sum(rank["seconds"] for rank in side) for side in (ours, theirs)]
    if not all(math.isfinite(mine) for mine, _ in both):
        return about | {"raises": "losses that are not finite"}
    loss = max(abs(mine - other) / abs(other) if mine != other else 0.0 for mine, other in both)
    return about | {"loss": float(f"{loss:.1e}"), "cpu": round(seconds[0] / seconds[1], 2)}


def machine(torch_python: str, before: str) -> dict[str, str]:
    """The CPU, beside those that other rows were run on before, and the versions of what was run on it."""
    cpu = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name"))
    version = [torch_python, "-c", "import torch; print(torch.__version__)"]
    torch = subprocess.run(version, capture_output=True, text=True, check=True).stdout.strip()
    cores = f"{cpu.partition(': ')[2]}, {os.cpu_count()} cores"
    cores = before if cores in before else " and ".join(filter(None, (before, cores)))
    return {"CPU": cores, "Python": platform.python_version(), "PyTorch": torch}


def page() -> str:
    """The page, of the list and the results."""
    listed, results = json.loads(LIST.read_text()), json.loads(RESULTS.read_text())
    done = [(row, results["rows"][row["name"]]) for row in listed["programs"]]
    good = [(row, result) for row, result in done if "raises" not in result]
    failed = [(row, result) for row, result in done if "raises" in result]
    on_two = sum(row["ranks"] > 1 for row, _ in good)
    days = " and ".join(sorted({result["made"] for _, result in done}))
    loads = [result["load"] for _, result in done]
    about = ", ".join(version if name == "CPU" else f"{name} {version}" for name, version in results["machine"].items())
    programs = [row for row, _ in good if "program" in row]
    whole = sum(row["ranks"] > 1 for row in programs)
    lines = [
        HEAD,
        f"{len(good)} rows, {on_two} on 2 ranks, of which {len(programs)} are whole programs, {whole} on 2 ranks.",
        f"Made on {days}: {about}.",
        f"Others worked on the machine, too: its load average was {min(loads)} to {max(loads)}.",
    ]
    for text, are in ((PROGRAMS, True), (MODELS, False)):
        lines += [text, f"| {'program' if are else 'model'} | repository | ranks | lines changed | loss | CPU time |"]
        lines += ["|---|---|---|---|---|---|"]
        lines += [
            f"| {row['name']} | {row['repository']} | {row['ranks']} | 0 | {result['loss']:.1e} | {result['cpu']:.2f} |"
            for row, result in good
            if ("program" in row) is are
        ]
    again = [(row["name"], result) for row, result in good if "float64" in result]
    if again:
        lines.append(IN_FLOAT64.format(rounding=ROUNDING))
        lines += [f"| {name} | {result['loss']:.1e} | {result['float64']:.1e} |" for name, result in again]
        left = [row["name"] for row, result in good if result["loss"] > ROUNDING and "float64" not in result]
        lines += ["", f"Not run again yet: {'; '.join(left)}."] if left else []
    if failed:
        lines += ["", "What does not run, and what it raises:", "", "| row | repository | raises |", "|---|---|---|"]
        lines += [f"| {row['name']} | {row['repository']} | `{result['raises']}` |" for row, result in failed]
    lines += ["", "| repository | commit |", "|---|---|"]
    lines += [f"| {repository} | `{commit}` |" for repository, commit in listed["repositories"].items()]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sources", type=Path, help="folder of clones; without it nothing is run")
    parser.add_argument("--torch-python", help="the Python of an environment with PyTorch")
    parser.add_argument("-k", default="", help="only rows whose name has this in it")
    words = parser.parse_args()
    if words.sources is not None:
        if words.torch_python is None:
            parser.error("--sources needs --torch-python")
        listed = json.loads(LIST.read_text())
        for repository, commit in listed["repositories"].items():
            check(words.sources, repository, commit)
        results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"rows": {}}
        results["machine"] = machine(words.torch_python, results.get("machine", {}).get("CPU", ""))
        for ranks in sorted({row["ranks"] for row in listed["programs"]}):
            rows = [row for row in listed["programs"] if words.k in row["name"] and row["ranks"] == ranks]
            models = [row for row in rows if "program" not in row]
            if models:
                results["rows"] |= compare_models(words.sources, models, words.torch_python)
            for row in rows:
                if "program" in row:
                    results["rows"][row["name"]] = compare_program(words.sources, row, words.torch_python)
                    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
                    print(row["name"], results["rows"][row["name"]], flush=True)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
