"""What a step would take on up to 8,192 nodes, beside what others have published, and what grows with the ranks.

    python benchmarks/scale.py                             # JSON lines; a minute or two of one core, and 2 GB
    python benchmarks/scale.py --write PERFORMANCE.md

Three kinds of lines. `predicted`: efficiency by `ddp.forecast`, with the buckets that would be chosen there for a
model's parameters. Its own time and its link are stated; a third of the own time is forward, gradients come evenly
over the rest, ranks have no noise, and each node is one rank, whose thread posts, adds up and works. `rehearsed`: a
backward of a small model with the real Reducer on so many ranks in virtual time (`ddp.forecast.rehearse`), beside the
formula, with the real processor time and peak memory of that. `growth`: of the same, what a rank posts and keeps. What
messages cost in software is as measured between two ranks of one host, by what `ddp.forecast` measures with.
"""

import argparse
import json
import math
import resource
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from figures import surroundings, write

from ddp.forecast import Rehearsal, Software, Workload, parse_link, predict, rehearse
from ddp.forecast.filling import fill, limits_between
from ddp.forecast.prediction import NO_TIME, exposed_seconds
from ddp.watching.board import PAGE_TEXT
from ddp.watching.record import Record, Waiting, to_text

SOFTWARE = Software(6e-6, 1.9e-10, 1.45e-6)  # two ranks on two cores of an EPYC (Zen 4), Open MPI 5.0.11
FLOAT = 4  # bytes
FORWARD = 1 / 3  # of the own time
NODES = (1, 8, 64, 256, 512, 1024, 8192)
REHEARSED = (2, 64, 256, 1024)
SMALL = [4096] * 12  # elements of each parameter of the model that is rehearsed, in buckets of four
SMALL_SECONDS = 1e-3  # own work before each gradient
SMALL_LINK = "10gbit,10us"

Shape = tuple[int, ...]


def resnet(*blocks: int) -> list[Shape]:
    """Parameters of a ResNet of bottlenecks, in the order in which it uses them.

    Source: K. He et al., Deep Residual Learning for Image Recognition, 2015, in torchvision's form.
    """
    shapes: list[Shape] = [(64, 3, 7, 7), (64,), (64,)]
    channels = 64
    for width, count in zip((64, 128, 256, 512), blocks, strict=True):
        for place in range(count):
            for shape in ((width, channels, 1, 1), (width, width, 3, 3), (4 * width, width, 1, 1)):
                shapes += [shape, shape[:1], shape[:1]]  # a convolution, and the two of its batch norm
            if place == 0:
                shapes += [(4 * width, channels, 1, 1), (4 * width,), (4 * width,)]
            channels = 4 * width
    return [*shapes, (1000, channels), (1000,)]


def gpt(layers: int, width: int, words: int, context: int) -> list[Shape]:
    """Parameters of a GPT-2, in the order in which it uses them; the first matrix is also the last.

    Source: A. Radford et al., Language Models are Unsupervised Multitask Learners, 2019.
    """
    block: list[Shape] = [(width,), (width,), (3 * width, width), (3 * width,), (width, width), (width,)]
    block += [(width,), (width,), (4 * width, width), (4 * width,), (width, 4 * width), (width,)]
    return [(words, width), (context, width), *block * layers, (width,), (width,)]


class Case(NamedTuple):
    """A training: what it is, its shapes, seconds of own time a step, a node's link, and whose settings these are."""

    what: str
    shapes: list[Shape]
    own: float
    link: str
    settings: str


class Published(NamedTuple):
    """A training of others: what resembles it here, on how many nodes, and the efficiency that was told."""

    case: Case
    nodes: int
    told: str


RESNET_50 = resnet(3, 4, 6, 3)
GPT_2 = gpt(12, 768, 50257, 1024)
CASES = (
    Case("ResNet-50, a fast node", RESNET_50, 0.2, "25gbit,2us", "assumed"),
    Case("ResNet-50, a slower one", RESNET_50, 1.0, "25gbit,2us", "assumed"),
    Case("GPT-2 small, a fast node", GPT_2, 0.5, "100gbit,2us", "assumed"),
    Case("GPT-2 small, a slower one", GPT_2, 2.5, "100gbit,2us", "assumed"),
)
# A. Mathuriya et al., CosmoFlow: Using Deep Learning to Learn the Universe at Scale, SC18, arXiv 1808.04728: 77 % on
# 8,192 nodes of Cori, with reading. 28 MB of gradients; how they are spread over tensors is assumed.
COSMOFLOW = Case("CosmoFlow", [(352_000,)] * 20, 0.13, "80gbit,2us", "bytes theirs; own time, link of Aries assumed")
# docs/benchmarks.rst of horovod/horovod: 90 % for ResNet-101 on 128 servers with 4 Pascal GPUs each and RoCE of 25
# Gbit/s; and 1656.82 images a second on 16 GPUs, 64 on each, which has the sums of those in it.
HOROVOD = Case(
    *("Horovod, ResNet-101", resnet(3, 4, 23, 3), 64 * 16 / 1656.82, "25gbit,2us"),
    "own time, bandwidth theirs; latency, 4 GPUs as one rank assumed",
)
# S. Li et al., PyTorch Distributed: Experiences on Accelerating Data Parallel Training, VLDB 2020, arXiv 2006.15704:
# "near-linear scalability using 256 GPUs".
PYTORCH = Case("PyTorch DDP, ResNet-50", RESNET_50, 0.2, "100gbit,2us", "assumed, and 8 GPUs as one rank")
PUBLISHED = (
    Published(COSMOFLOW, 8192, "77 % (8,192 nodes)"),
    Published(HOROVOD, 128, "90 % (512 GPUs)"),
    Published(PYTORCH, 32, "near-linear (256 GPUs)"),
)


def workload(case: Case, nodes: int) -> Workload:
    """With the buckets that are chosen there, and filled in the order in which gradients come: the last one first."""
    sizes = [FLOAT * math.prod(shape) for shape in reversed(case.shapes)]
    gradients = [
        (case.own * (FORWARD + (1 - FORWARD) * came / len(sizes)), nbytes) for came, nbytes in enumerate(sizes, 1)
    ]
    limits = limits_between(nodes, 1, parse_link(case.link), SOFTWARE, sum(sizes))
    return Workload(case.own, [0.0], fill(gradients, limits), NO_TIME, 1, case.own)


def predicted(case: Case, nodes: int) -> dict[str, Any]:
    """The line of a training on so many nodes."""
    found = predict(workload(case, nodes), nodes, parse_link(case.link), SOFTWARE)
    line: dict[str, Any] = {"predicted": case.what, "link": case.link, "own_ms": round(1e3 * case.own, 1)}
    line |= {"MB": round(FLOAT * sum(map(math.prod, case.shapes)) / 1e6), "nodes": nodes}
    return line | {"efficiency": round(found.efficiency, 4), "limit": found.limit}


def rehearsed(ranks: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The two lines of a small model on so many ranks in virtual time."""
    link, began = parse_link(SMALL_LINK), time.process_time()
    cap = 4 * FLOAT * SMALL[0] / 2**20
    everyones = rehearse(SMALL, SMALL_SECONDS, ranks, link, SOFTWARE, cap)
    found = max(everyones, key=lambda found: found.seconds)
    own = SMALL_SECONDS * len(SMALL)
    formula = own + exposed_seconds(Workload(own, [0.0], found.buckets, NO_TIME, 1, own), ranks, link, SOFTWARE)
    line: dict[str, Any] = {
        "rehearsed": ranks,
        "virtual_ms": round(1e3 * found.seconds, 4),
        "formula_ms": round(1e3 * formula, 4),
    }
    line["processor_s"] = round(time.process_time() - began, 1)
    line["peak_MB"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3)
    return line, growth(ranks, found)


def growth(ranks: int, found: Rehearsal) -> dict[str, Any]:
    """What a rank has posted and keeps."""
    waiting = Waiting("the gradients of model 1", 1, "gradient bucket 1 of 3", 0.0, tuple(range(ranks)), 1800.0)
    return {
        "growth": ranks,
        "making_calls": sum(count.calls for count in found.making.values()),
        "making_objects_B": found.making["allgather"].received,
        "planning_objects_B": found.first["allgather"].received,
        "step_calls": sum(count.calls for count in found.another.values()),
        "step_headers_B": found.another["Allgather"].received,
        "step_slices_B": sum(found.another[name].received for name in ("Alltoallv", "Allgatherv")),
        "memory_B": found.memory,
        "page_B": len(to_text(Record(0.0, {}, waiting, (), ""), PAGE_TEXT)),
    }


HEADS = {
    "growth": "ranks",
    "making_calls": "collectives, wrapping",
    "making_objects_B": "objects received, wrapping",
    "planning_objects_B": "objects received, planning",
    "step_calls": "collectives and messages, step",
    "step_headers_B": "headers received, step",
    "step_slices_B": "slices received, step",
    "memory_B": "kept",
    "page_B": "watchdog's page",
}


def rows(heads: list[str], lines: list[list[Any]]) -> str:
    """Markdown."""
    cells = [heads, ["---"] * len(heads), *([str(cell) for cell in line] for line in lines)]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the tables into FILE, between their marks")
    given = parser.parse_args()
    about = surroundings(["python", "benchmarks/scale.py", *sys.argv[1:]])
    many, beside, fake, grown = [], [], [], []
    for case in CASES:
        lines = [predicted(case, nodes) for nodes in NODES]
        print(*map(json.dumps, lines), sep="\n", flush=True)
        efficiencies = [f"{line['efficiency']:.0%}" for line in lines]
        many.append(
            [case.what, lines[0]["MB"], case.link, f"{lines[0]['own_ms']:g}", *efficiencies, lines[-1]["limit"]]
        )
    for case, nodes, told in PUBLISHED:
        line = predicted(case, nodes)
        print(json.dumps(line), flush=True)
        settings = [line["MB"], case.link, f"{line['own_ms']:.0f}", case.settings, f"{nodes:,}"]
        beside.append([case.what, *settings, told, f"{line['efficiency']:.0%}", line["limit"]])
    for ranks in REHEARSED:
        line, grows = rehearsed(ranks)
        print(json.dumps(line), json.dumps(grows), sep="\n", flush=True)
        fake.append([f"{value:,}" for value in line.values()])
        grown.append([f"{grows[name]:,}" for name in HEADS])
    if given.write:
        nodes = [f"{count:,}" for count in NODES]
        tables = (
            rows(["efficiency on nodes", "MB", "link", "own, ms", *nodes, "limited on the last by"], many),
            rows(
                ["published", "MB", "link", "own, ms", "settings", "nodes", "told", "predicted", "limited by"], beside
            ),
            rows(["ranks in virtual time", "backward, ms", "formula, ms", "processor, s", "peak memory, MB"], fake),
            rows([*HEADS.values()], grown),
        )
        write(given.write, "scale", "\n\n".join((about, *tables)))


if __name__ == "__main__":
    main()
