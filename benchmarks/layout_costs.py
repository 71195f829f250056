"""Time what layout costs: planning an elementwise call, and the gradient layout contract in a training step.

    python benchmarks/layout_costs.py [--rounds 21] [--only TEXT]

Prints one JSON line a case. `a + b` of small tensors in several layouts: median nanoseconds and the ratio to the bare
NumPy call with `out=` (both measured in turn, round by round), with its spread (10th to 90th percentile). One training
step of a channels-last CNN, alone and in DistributedDataParallel, with the contract on and off: milliseconds, and the
bytes that Reducer and optimizer copied because a gradient was not laid out as its parameter.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

import ddp
import engine
import engine.nn.functional as F
from engine import nn
from engine.optim import laying_out
from engine.reports import layout_report as report

CALLS = 200  # of a small operation in one round: so few that most rounds run without an interruption
ROUNDS_OF_CALLS = 15  # as many rounds for small operations as for training steps


def spread(values: list[float]) -> list[float]:
    """The 10th and the 90th percentile."""
    tenths = statistics.quantiles(values, n=10)
    return [round(tenths[0], 3), round(tenths[-1], 3)]


def seconds(call: Callable[[], object], calls: int) -> float:
    """Time of one call, over `calls` of them."""
    began = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - began) / calls


# --- a + b ------------------------------------------------------------------------------------------------------------


def operands() -> Iterator[tuple[str, engine.Tensor, engine.Tensor]]:
    """Pairs of float32 tensors; 8x16 or as many elements."""
    a, b = engine.randn(8, 16), engine.randn(8, 16)
    yield "contiguous", a, b
    last = engine.channels_last
    yield (
        "channels-last",
        engine.randn(2, 4, 4, 4).to(memory_format=last),
        engine.randn(2, 4, 4, 4).to(memory_format=last),
    )
    yield "channels-last, one value a channel", engine.randn(2, 4, 4, 4).to(memory_format=last), engine.randn(4, 1, 1)
    yield "broadcast row", a, engine.randn(16)
    yield "broadcast column", a, engine.randn(8, 1)
    yield "column-major", engine.randn(16, 8).t(), engine.randn(16, 8).t()
    yield "row-major + column-major", a, engine.randn(16, 8).t()
    yield "column-major + row-major", engine.randn(16, 8).t(), b
    yield "sliced + sliced", engine.randn(8, 32)[:, ::2], engine.randn(8, 32)[:, ::2]
    yield "0-dim", a, engine.tensor(2.0)


def additions(rounds: int) -> Iterator[dict[str, object]]:
    """`a + b`, and `a + 2.0`, against numpy.add(a, b, out)."""
    for name, a, b in operands():
        out = (a + b).numpy()
        x, y = a.numpy(), b.numpy()
        yield compare(name, rounds, lambda a=a, b=b: a + b, lambda x=x, y=y, out=out: np.add(x, y, out))
    a = engine.randn(8, 16)
    x, out = a.numpy(), np.empty((8, 16), np.float32)
    yield compare("Python number", rounds, lambda: a + 2.0, lambda: np.add(x, 2.0, out))


def compare(name: str, rounds: int, ours: Callable[[], object], bare: Callable[[], object]) -> dict[str, object]:
    """One line; the loop and the lambda around both calls are measured and taken off."""
    empty = min(seconds(lambda: None, CALLS) for _ in range(50))
    seconds(ours, CALLS)
    both = [(seconds(ours, CALLS) - empty, seconds(bare, CALLS) - empty) for _ in range(rounds * ROUNDS_OF_CALLS)]
    ratios = [mine / theirs for mine, theirs in both]
    return {
        "case": f"a + b: {name}",
        "nanoseconds": round(statistics.median(mine for mine, _ in both) * 1e9),
        "numpy_nanoseconds": round(statistics.median(theirs for _, theirs in both) * 1e9),
        "ratio": round(statistics.median(ratios), 2),
        "spread": spread(ratios),
    }


# --- a training step --------------------------------------------------------------------------------------------------


class Block(nn.Module):
    """Two convolutions with a shortcut."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, bias=False)

    def forward(self, x: engine.Tensor) -> engine.Tensor:
        return F.relu(self.norm2(self.second(F.relu(self.norm1(self.first(x))))) + self.shortcut(x))


def network(kind: str) -> nn.Module:
    """A channels-last CNN of 1.9 M parameters.

    "row-major": its convolutions' weight gradients come row-major, as from an operator that knows no channels-last.
    """
    engine.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1),
        nn.ReLU(),
        Block(64, 128),
        nn.MaxPool2d(2),
        Block(128, 256),
        nn.MaxPool2d(2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(256, 10),
    ).to(memory_format=engine.channels_last)
    if kind == "row-major":
        for parameter in model.parameters():
            if parameter.ndim == 4:
                parameter.register_hook(lambda gradient: gradient.contiguous())
    return model


class Setting:
    """A model, its optimizer and a batch, ready to take steps."""

    def __init__(self, kind: str, distributed: bool, contract: bool) -> None:
        self.contract = contract
        model = network(kind)
        self.optimizer = engine.optim.AdamW(model.parameters(), lr=1e-3)
        # Buckets as `.grad` leave nothing to steal: to show what the contract saves, gradients are copied in and out.
        self.wrapped = ddp.DistributedDataParallel(model, gradient_as_bucket_view=False) if distributed else None
        self.model = self.wrapped or model
        self.images = engine.randn(8, 3, 8, 8).to(memory_format=engine.channels_last)
        self.labels = engine.randint(0, 10, (8,))
        self.times: dict[str, list[float]] = {"backward": [], "optimizer": [], "step": []}
        self.copied = [0, 0]

    def step(self) -> None:
        """One step, timed, with the bytes copied."""
        self.optimizer.zero_grad()
        reducer = None if self.wrapped is None else self.wrapped.reducer
        before = (0 if reducer is None else reducer.buckets.layout_bytes, laying_out.layout_bytes)
        began = time.perf_counter()
        loss = F.cross_entropy(self.model(self.images), self.labels)
        forward = time.perf_counter()
        with engine.autograd.set_layout_contract(self.contract):
            loss.backward()
        backward = time.perf_counter()
        self.optimizer.step()
        ended = time.perf_counter()
        self.times["backward"].append(backward - forward)
        self.times["optimizer"].append(ended - backward)
        self.times["step"].append(ended - began)
        after = (0 if reducer is None else reducer.buckets.layout_bytes, laying_out.layout_bytes)
        self.copied = [new - old for new, old in zip(after, before, strict=True)]


def training(rounds: int) -> Iterator[dict[str, object]]:
    """The contract on against off, in turn, for each model alone and in DistributedDataParallel."""
    engine.set_layout_report("off")
    ddp.init_process_group()
    for kind in ("as they come", "row-major"):
        for distributed in (False, True):
            report.layout_report(clear=True)
            on, off = Setting(kind, distributed, True), Setting(kind, distributed, False)
            for setting in (on, off):
                setting.step()
                setting.step()
                for times in setting.times.values():
                    times.clear()
            for _ in range(rounds):
                on.step()
                off.step()
            laid_out = sum(each.bytes_per_step for each in report.layout_report() if each.operator != report.ASSIGNED)
            yield {
                "case": f"step of a channels-last CNN, gradients {kind}" + (", DDP" if distributed else ""),
                **{
                    f"{part}_ms_{name}": round(statistics.median(setting.times[part]) * 1e3, 2)
                    for part in on.times
                    for name, setting in (("on", on), ("off", off))
                },
                "ratio_off_to_on": round(
                    statistics.median(b / a for a, b in zip(on.times["step"], off.times["step"], strict=True)), 3
                ),
                "gradient_bytes": sum(p.nbytes for p in on.model.parameters()),
                "bytes_laid_out_by_AccumulateGrad_on": laid_out,
                "bytes_copied_by_reducer": {"on": on.copied[0], "off": off.copied[0]},
                "bytes_copied_by_optimizer": {"on": on.copied[1], "off": off.copied[1]},
            }
    ddp.destroy_process_group()


def main() -> None:
    """Reads the command line, prints the lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--only", choices=("additions", "training"), help="one of the two parts")
    options = parser.parse_args()
    for name, part in (("additions", additions), ("training", training)):
        if options.only in (None, name):
            for line in part(options.rounds):
                print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
