"""PyTorch with `ddp.torch_backend` beside gloo, in turns in one job, so under one load. PyTorch has to be installed.

    ddprun -n 2 benchmarks/torch_backend.py allreduce mlp gpt resnet18

One JSON line each, from rank 0: of a sum of so many KiB, or of a training step under PyTorch's DistributedDataParallel,
the medians over the rounds in milliseconds, those of gloo over ours as ratio, and alone_ms, a step without the wrapper.
"""

import argparse
import copy
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

os.environ["BENCHMARK_LIBRARY"] = "torch"

import workloads

import ddp.torch_backend

KIBIBYTES = (64, 256, 1024, 4096, 16384, 65536)
WARMUP = 2  # steps a round


class Basic(nn.Module):
    """Two convolutions around a shortcut, of ResNet-18."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(out), nn.BatchNorm2d(out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))) + self.shortcut(x))


def resnet18() -> nn.Module:
    """11.7 million parameters."""
    sizes = [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]
    blocks = [block for a, b, stride in sizes for block in (Basic(a, b, stride), Basic(b, b, 1))]
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


def workload(name: str) -> workloads.Workload:
    """A model with inputs of this rank and their classes."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    if name == "resnet18":
        return resnet18(), torch.randn(4, 3, 64, 64, generator=generator), torch.randint(0, 1000, (4,))
    return workloads.WORKLOADS[name](generator)


def training_step(model: nn.Module, inputs: Tensor, targets: Tensor) -> Callable[[], None]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    return step


def in_turns(kinds: dict[str, Callable[[], object]], rounds: int, repeats: int) -> dict[str, float]:
    """Collective: the median time of each kind in milliseconds, of rank 0."""
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(rounds):
        for kind, function in kinds.items():
            for _ in range(WARMUP):
                function()
            dist.barrier()
            began = time.perf_counter()
            for _ in range(repeats):
                function()
            times[kind].append((time.perf_counter() - began) / repeats * 1e3)
    return {f"{kind}_ms": round(statistics.median(each), 4) for kind, each in times.items()}


def say(what: dict[str, Any], figures: dict[str, float]) -> None:
    if dist.get_rank() == 0:
        ratio = round(figures["gloo_ms"] / figures["allstride_ms"], 3)
        print(json.dumps({**what, "ranks": dist.get_world_size(), **figures, "ratio": ratio}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", help="allreduce, resnet18, or one of workloads.py")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    dist.init_process_group(ddp.torch_backend.NAME)
    torch.set_num_threads(1)
    groups = {"allstride": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    for name in options.names:
        if name == "allreduce":
            for kibibytes in KIBIBYTES:
                tensor = torch.ones(kibibytes * 256)
                kinds = {
                    kind: lambda tensor=tensor, group=group: dist.all_reduce(tensor.fill_(1.0), group=group)
                    for kind, group in groups.items()
                }
                say({"what": "allreduce", "kib": kibibytes}, in_turns(kinds, options.rounds, max(3, 4096 // kibibytes)))
            continue
        torch.manual_seed(0)
        model, inputs, targets = workload(name)
        steps = {
            kind: training_step(DistributedDataParallel(copy.deepcopy(model), process_group=group), inputs, targets)
            for kind, group in groups.items()
        }
        steps["alone"] = training_step(copy.deepcopy(model), inputs, targets)
        say({"what": name}, in_turns(steps, options.rounds, 4))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
