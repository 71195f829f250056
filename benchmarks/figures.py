"""From what was measured to the table: a figure has a value a round on each side, ratios, and perhaps a target."""

import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any

STATED = ("mlp", "cnn", "gpt", "tiny")
OTHERS = ("traffic", "wide", "deep", "batch_norm", "recurrent", "long", "gpt_256")
OPTIMIZER = ("adamw_16.8M", "adamw_1.8M_in_18")
START = "start"

# What is made here: no other commit than the one that is measured.
WRITTEN = ("PERFORMANCE.md", "docs/growth.png")

# Targets: samples/s over PyTorch's on two ranks, and how much of a second rank is gained.
THROUGHPUT = {"mlp": 1.5, "cnn": 1.15, "gpt": 1.3, "tiny": 5.0}
SCALING = {"mlp": 0.95, "cnn": 0.95, "gpt": 0.95, "tiny": 0.80}

# What tells both sides that this CPU has AVX2 and no AVX-512: Numba and OpenBLAS here, and ATen, oneDNN and MKL there.
_AVX2 = "+avx2,+avx,+fma,+f16c,+bmi,+bmi2,+lzcnt,+movbe,+popcnt,+sse4.2,+sse4.1,+ssse3,+sse3,+cx16,+fsgsbase"
_NO_AVX512 = ",".join(f"-avx512{part}" for part in ("f", "dq", "cd", "bw", "vl", "ifma", "vbmi", "vbmi2", "vnni"))
WITHOUT_AVX512 = {
    "NUMBA_CPU_NAME": "znver3",
    "NUMBA_CPU_FEATURES": f"{_AVX2},{_NO_AVX512}",
    "OPENBLAS_CORETYPE": "Haswell",
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
}

Key = tuple[str, int, int]  # workload, ranks, threads
Round = dict[Key, dict[str, Any]]  # the lines of one side


@dataclass
class Figure:
    """A line of the table: its value in each round on this side and, if it was measured, on PyTorch's."""

    what: str
    own: list[float]
    peer: list[float]
    at_least: float | None = None
    at_most: float | None = None
    absolute: bool = False  # the target is one for the value itself, not for own / PyTorch

    def ratios(self) -> list[float]:
        """own / PyTorch, round by round."""
        return [own / peer for own, peer in zip(self.own, self.peer, strict=True)] if self.peer else []

    def target(self) -> str:
        """The target in words; empty without one."""
        kind = "" if self.absolute else "x"
        if self.at_least is not None:
            return f"≥ {self.at_least:g}{kind}"
        return f"≤ {self.at_most:g}{kind}" if self.at_most is not None else ""

    def reached(self) -> bool | None:
        """Whether the median meets the target; None without a target, or without a peer to be compared with."""
        values = self.own if self.absolute else self.ratios()
        if not values:
            return None
        if self.at_least is not None:
            return statistics.median(values) >= self.at_least
        return statistics.median(values) <= self.at_most if self.at_most is not None else None

    def as_json(self) -> dict[str, Any]:
        """The figure as an object for one line of JSON."""
        line: dict[str, Any] = {"figure": self.what}
        for name, values in (("own", self.own), ("torch", self.peer), ("ratio", self.ratios())):
            if values:
                middle, least, greatest = (round(f(values), 4) for f in (statistics.median, min, max))
                line |= {name: middle, f"{name}_range": [least, greatest]}
        return {**line, "to_reach": self.target() or None, "reached": self.reached()}


def figures(own: list[Round], peer: list[Round], names: list[str], ranks: int, cores: int) -> Iterator[Figure]:
    """The lines of the table in order, from the rounds of both sides (`peer` may be empty)."""
    models = [name for name in names if name in (*STATED, *OTHERS)]

    def against(what: str, key: Key, peers: Key, field: str, **target: Any) -> Figure:
        return Figure(what, [each[key][field] for each in own], [each[peers][field] for each in peer], **target)

    def figure(what: str, key: Key, field: str, **target: Any) -> Figure:
        return against(what, key, key, field, **target)

    for name in models:
        title = f"`{name}` samples/s, {ranks} ranks"
        yield figure(title, (name, ranks, 1), "samples_s", at_least=THROUGHPUT.get(name))
    for name in models:
        yield figure(f"`{name}` samples/s, one process, {cores} threads", (name, 1, cores), "samples_s")
    for name in models:
        target = {"at_most": 0.25, "absolute": True} if name == "tiny" else {}
        yield figure(f"`{name}` step, 1 rank, ms", (name, 1, 1), "step_ms", **target)
    for name in models:
        title = f"`{name}` samples/s, {ranks} ranks, captured"
        yield against(title, (captured(name), ranks, 1), (name, ranks, 1), "samples_s")
    for name in models:
        yield against(f"`{name}` step, 1 rank, captured, ms", (captured(name), 1, 1), (name, 1, 1), "step_ms")
    if "tiny" in models:
        gained = [each["tiny", 1, 1]["step_ms"] / each[captured("tiny"), 1, 1]["step_ms"] for each in own]
        yield Figure("`tiny` step, 1 rank, plain / captured", gained, [], at_least=2, absolute=True)
    for name in models:
        scaling = _scaling(name, ranks)
        title = f"`{name}` scaling, 1 to {ranks} ranks"
        yield Figure(title, [*map(scaling, own)], [*map(scaling, peer)], at_least=SCALING.get(name), absolute=True)
    for name in models:
        yield figure(f"`{name}` peak memory a rank, MB", (name, ranks, 1), "peak_MB", at_most=1.0)
    if set(OPTIMIZER) <= set(names):
        one, many = OPTIMIZER
        yield figure("AdamW, 16.8 M floats, one thread, ms", (one, 1, 1), "step_ms", at_most=1.1)
        yield figure("AdamW, 1.8 M floats in 18 tensors, one thread, ms", (many, 1, 1), "step_ms", at_most=1.0)
    if START in names:
        key = (START, 1, 1)
        yield figure("import, s", key, "import_s", at_most=0.15, absolute=True)
        cold = [each[key]["cold_s"] for each in own]
        yield Figure("start to first step, no kernel compiled yet, s", cold, [], at_most=10, absolute=True)
        yield figure("start to first step, later, s", key, "warm_s", at_most=1, absolute=True)


def beside_compiler(own: list[Round], peer: list[Round], names: list[str], ranks: int) -> Iterator[Figure]:
    """The same of steps that `engine.compile` replays, and of models that `torch.compile` has compiled."""
    for count, field, what in ((ranks, "samples_s", f"samples/s, {ranks} ranks"), (1, "step_ms", "step, 1 rank, ms")):
        for name in names:
            key = captured(name), count, 1
            yield Figure(f"`{name}` {what}", [each[key][field] for each in own], [each[key][field] for each in peer])


def captured(name: str) -> str:
    """The name of a workload whose step `engine.compile` replays, or whose model `torch.compile` has compiled."""
    return f"{name}, captured"


def _scaling(name: str, ranks: int) -> Callable[[Round], float]:
    """What a rank of several does of what one alone does."""
    return lambda lines: lines[name, ranks, 1]["samples_s"] / lines[name, 1, 1]["samples_s"] / ranks


def _shown(values: list[float]) -> str:
    """Median and range with three digits that count."""

    def digits(value: float) -> str:
        return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"

    if not values:
        return ""
    middle = digits(statistics.median(values))
    return middle if len(values) == 1 else f"{middle} ({digits(min(values))} … {digits(max(values))})"


def table(lines: list[Figure]) -> str:
    """The figures as Markdown: those with a target, then the others."""
    stated = ["| what | own | PyTorch | own / PyTorch | to reach | reached |", "|---|---|---|---|---|---|"]
    others = ["| what | own | PyTorch | own / PyTorch |", "|---|---|---|---|"]
    for line in lines:
        cells = [line.what, _shown(line.own), _shown(line.peer), _shown(line.ratios())]
        if line.target():
            verdict = {True: "yes", False: "**no**", None: ""}[line.reached()]
            stated.append(f"| {' | '.join([*cells, line.target(), verdict])} |")
        else:
            others.append(f"| {' | '.join(cells)} |")
    return "\n\n".join("\n".join(rows) for rows in (stated, others) if len(rows) > 2)


def commit() -> str:
    """The commit that is measured, with a plus sign where files differ from it, but for what is written here; "unknown"
    outside a checkout.
    """

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    known = git("describe", "--always", "--exclude=*")
    changed = git("status", "--porcelain", "--", *(f":(top,exclude){name}" for name in WRITTEN))
    return known + ("+" if changed else "") if known else "unknown"


def versions(torch_python: str | None) -> str:
    """Python and the packages that do the arithmetic, here and on PyTorch's side, if there is one; "unknown" where that
    is not installed as a package.
    """
    found = [f"Python {platform.python_version()}"]
    found += [f"{name} {metadata.version(name.lower())}" for name in ("NumPy", "Numba")]
    if torch_python is not None:
        code = "import importlib.metadata as each; print(each.version('torch'))"
        done = subprocess.run([torch_python, "-c", code], capture_output=True, text=True, check=False)
        found.append(f"PyTorch {done.stdout.strip() or 'unknown'}")
    return ", ".join(found)


def surroundings(command: list[str], torch_python: str | None = None) -> str:
    """When, where and of what this is measured, and by which command, in one sentence, without paths of this disk."""
    places = {"--torch-python": "OTHER/bin/python", "--sources": "DIR", "--write": "PERFORMANCE.md"}
    command = [places.get(before, word) for before, word in pairwise(["", *command])]
    return (
        f"{time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}: {len(os.sched_getaffinity(0))} CPUs ({cpu()}), load "
        f"{os.getloadavg()[0]:.1f} before, commit {commit()}, {versions(torch_python)}, `{' '.join(command)}`."
    )


def cpu() -> str:
    """Name, family and model, and the vectors it has: names of virtual CPUs say little."""
    lines = (line.partition(":") for line in Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines())
    known = {name.strip(): value.strip() for name, _, value in lines}
    flags = known.get("flags", "").split()
    vectors = "AVX-512" if "avx512f" in flags else "AVX2" if "avx2" in flags else "no AVX2"
    name, family, model = (known.get(each, "unknown") for each in ("model name", "cpu family", "model"))
    return f"{name}, family {family}, model {model}, {vectors}"


def write(path: Path, part: str, text: str) -> None:
    """Puts `text` between the two marks of a part of a file. Raises ValueError where they are missing."""
    marks = f"<!-- {part}: begin -->", f"<!-- {part}: end -->"
    before, begin, rest = path.read_text().partition(marks[0])
    _, end, after = rest.partition(marks[1])
    if not (begin and end):
        raise ValueError(f"{path}: expected the lines {marks[0]} and {marks[1]}, between which the table goes")
    path.write_text(f"{before}{begin}\n{text}\n{end}{after}")
