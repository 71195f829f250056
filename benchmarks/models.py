"""How much processor time does a training step of public models take, beside PyTorch, at one thread and at two?

    python benchmarks/models.py --sources DIR --torch-python PYTHON [--threads 1 2] [--rounds 3] [-k WORD ...] [--avx2]
                                [--compile]

DIR has clones of the repositories that `public_models.py` names, each in a folder of its name, and torchvision's wheel
unpacked in `vision`; PYTHON is that of an environment with PyTorch, einops and Pillow. Both sides run one after
another, a few steps each, in processes of their own that live on; each model's figure is the median of the rounds'
ratios, ours over theirs. Each model is a JSON line; the table comes last. ``--avx2`` takes AVX-512
away from both sides; ``--compile`` has both compile what they train.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from figures import WITHOUT_AVX512, surroundings, write

FOLDER = Path(__file__).resolve().parent


class Side:
    """A process with one of the two libraries, that trains what it is told."""

    def __init__(self, python: list[str], sources: Path, threads: int, work: str) -> None:
        threaded = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), str(threads))
        environment = {**os.environ, **threaded, "PUBLIC_MODELS": str(sources.resolve()), "PYTHONWARNINGS": "ignore"}
        self.process = subprocess.Popen(
            [*python, str(FOLDER / "model_steps.py")],
            env=environment,
            cwd=work,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def ask(self, line: str) -> dict[str, Any]:
        """What the process answers. Raises RuntimeError where it has ended."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(line, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{self.process.args}: ended at {line!r}")
        result: dict[str, Any] = json.loads(answer)
        return result

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def measure(name: str, ours: Side, theirs: Side, rounds: int) -> dict[str, Any]:
    """Both sides in turn; milliseconds of a step on each (medians) and the median of the rounds' ratios."""
    first = {"ours": ours.ask(name), "torch": theirs.ask(name)}
    raised = {side: answer["raises"] for side, answer in first.items() if "raises" in answer}
    if raised:
        return {"raises": raised}
    seconds = [(ours.ask("go")["seconds"], theirs.ask("go")["seconds"]) for _ in range(rounds)]
    mine, other = (round(1000 * statistics.median(each), 3) for each in zip(*seconds, strict=True))
    return {"ms": mine, "torch_ms": other, "ratio": round(statistics.median(a / b for a, b in seconds), 3)}


def table(results: dict[str, dict[int, dict[str, Any]]], repositories: dict[str, str], threads: list[int]) -> str:
    """A row a model: milliseconds on both sides and the ratio, for each number of threads; medians at the end."""
    titles = [title for count in threads for title in (f"ms, {count} thread{'s' * (count > 1)}", "PyTorch", "ratio")]
    lines = [f"| model | repository | {' | '.join(titles)} |", f"|---|---|{'---|' * len(titles)}"]
    for name, of_threads in results.items():
        cells = []
        for count in threads:
            found = of_threads[count]
            row = ["", "", "raises"] if "raises" in found else [f"{found[key]:.3g}" for key in ("ms", "torch_ms")]
            cells += row if "raises" in found else [*row, f"{found['ratio']:.2f}"]
        lines.append(f"| {name} | {repositories[name]} | {' | '.join(cells)} |")
    ends = []
    for count in threads:
        ratios = [found[count]["ratio"] for found in results.values() if "ratio" in found[count]]
        ends += [
            "",
            f"{sum(ratio > 1 for ratio in ratios)} of {len(ratios)} above 1",
            f"{statistics.median(ratios):.2f}",
        ]
    return "\n".join([*lines, f"| median | | {' | '.join(ends)} |"])


def listed(python: str, sources: Path) -> dict[str, str]:
    """The repository of each model, by name, as PyTorch's side imports the list."""
    code = "import json, public_models as each; print(json.dumps({name: row[0] for name, row in each.MODELS.items()}))"
    environment = {
        **os.environ,
        "PUBLIC_MODELS": str(sources),
        "PYTHONPATH": f"{FOLDER}:{os.environ.get('PYTHONPATH', '')}",
    }
    done = subprocess.run([python, "-c", code], env=environment, capture_output=True, text=True, check=True)
    names: dict[str, str] = json.loads(done.stdout)
    return names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", type=Path, required=True, help="folder of clones")
    parser.add_argument("--torch-python", required=True, help="the Python of an environment with PyTorch")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="default: 1 2")
    parser.add_argument("--rounds", type=int, default=3, help="default 3")
    parser.add_argument("-k", default=[""], nargs="+", help="only models whose name has one of these in it")
    parser.add_argument("--compile", action="store_true", help="engine.compile here, torch.compile (Inductor) there")
    parser.add_argument("--avx2", action="store_true", help="without AVX-512, for both sides")
    parser.add_argument("--write", type=Path, metavar="FILE", help="also put the table into FILE, between its marks")
    given = parser.parse_args()
    about = surroundings(["python", "benchmarks/models.py", *sys.argv[1:]], given.torch_python)
    repositories = listed(given.torch_python, given.sources)
    results: dict[str, dict[int, dict[str, Any]]] = {
        name: {} for name in repositories if any(each.lower() in name.lower() for each in given.k)
    }
    if given.avx2:
        os.environ.update(WITHOUT_AVX512)
    if given.compile:
        os.environ["MODELS_COMPILED"] = "1"
    with tempfile.TemporaryDirectory() as work:
        for threads in given.threads:
            ours = Side([sys.executable, "-m", "launch", "--torch", "-n", "1"], given.sources, threads, work)
            theirs = Side([given.torch_python], given.sources, threads, work)
            for name in results:
                results[name][threads] = measure(name, ours, theirs, given.rounds)
                line = {"model": name, "repository": repositories[name], "threads": threads, **results[name][threads]}
                print(json.dumps(line), flush=True)
            ours.end()
            theirs.end()
    text = f"{about}\n\n{table(results, repositories, given.threads)}"
    print(f"\n{text}")
    if given.write:
        also = (" beside the compiler" if given.compile else "") + (" without AVX-512" if given.avx2 else "")
        write(given.write, f"models{also}", text)


if __name__ == "__main__":
    main()
