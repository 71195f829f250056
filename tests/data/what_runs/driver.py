"""Trains models of public repositories for 20 steps, and writes the losses of this rank and their CPU time.

    driver.py SOURCES ROWS FOLDER SIDE

ROWS is a file with entries of `programs.json`, all for one number of ranks; SOURCES has the repositories. Whoever
answers `import torch` trains: PyTorch, or allstride by `ddprun --torch`. FOLDER gets a row's weights where it has none
of them yet, and `SIDE.RANK.json`, the results.
"""

import json
import os
import sys
import time
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 20
RANK = int(os.environ.get("RANK", 0))
RANKS = int(os.environ.get("WORLD_SIZE", 1))


def build(sources: Path, row: dict[str, Any]) -> Any:
    """The model that a row says: the expression `build` after the statements `import`, in the folder `path`; in float64
    where it says that.
    """
    folder = str(sources / row["repository"].partition("/")[2] / row.get("path", ""))
    module = types.ModuleType("row")
    module.nn = nn  # type: ignore[attr-defined]
    sys.modules["row"] = module  # where classes that the statements make look for it
    vars(module)["__name__"] = "row"
    sys.path.insert(0, folder)
    try:
        exec(row["import"], vars(module))
        torch.manual_seed(0)
        model = eval(row["build"], vars(module))
        return model.double() if row.get("float64") else model
    finally:
        sys.path.remove(folder)


def train(model: Any, row: dict[str, Any]) -> list[float]:
    """Teaches the model, with SGD, classes of noise; returns the loss of each step on this rank."""
    if RANKS > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    random = np.random.default_rng(RANK)
    losses = []
    for _ in range(STEPS):
        if "tokens" in row:
            inputs = torch.from_numpy(random.integers(0, row["tokens"], row["input"]))
        else:
            kind = np.float64 if row.get("float64") else np.float32
            inputs = torch.from_numpy(random.standard_normal(row["input"]).astype(kind))
        outputs = model(inputs)
        outputs = outputs[0] if isinstance(outputs, tuple) else outputs  # logits, and a loss
        outputs = outputs.reshape(-1, outputs.shape[-1])
        loss = nn.functional.cross_entropy(
            outputs, torch.from_numpy(random.integers(0, outputs.shape[-1], outputs.shape[0]))
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def run(sources: Path, row: dict[str, Any], weights: Path) -> dict[str, Any]:
    """Trains twice: the CPU time is that of the second time, when kernels are compiled."""
    for _ in range(2):
        model = build(sources, row)
        if RANK == 0 and not weights.exists():
            torch.save(model.state_dict(), weights)
        if RANKS > 1:
            dist.barrier()
        model.load_state_dict(torch.load(weights))
        began = time.process_time()
        losses = train(model, row)
        seconds = time.process_time() - began
    return {"losses": losses, "seconds": seconds}


def main() -> None:
    sources, rows, folder, side = sys.argv[1:]
    torch.set_num_threads(1)
    if RANKS > 1:
        dist.init_process_group("gloo")
    results = {}
    for place, row in enumerate(json.loads(Path(rows).read_text())):
        try:
            results[row["name"]] = run(Path(sources), row, Path(folder) / f"{RANKS}.{place}.pt")
        except Exception as error:  # noqa: BLE001 - what a model does not do is its result
            results[row["name"]] = {"raises": f"{type(error).__name__}: {error}".partition("\n")[0][:200]}
    if RANKS > 1:
        dist.destroy_process_group()
    (Path(folder) / f"{side}.{RANK}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
