"""Runs a public program, unchanged, and writes the losses of its first backward passes on this rank and their CPU time.

    program.py ROW FOLDER SIDE

ROW is a file with one entry of `programs.json`; the program lies in the folder from which this is started. Whoever
answers `import torch` trains. So that both sides can be compared they begin with the same weights, those of PyTorch,
draw the same numbers, NumPy's (`same_numbers.py`), and leave dropout out. Where a row says "gpu", the CPU stands for
the GPU that the program names (`no_gpu.py`). Where it says "float64", that is what the program computes in. FOLDER gets
PyTorch's weights and `SIDE.RANK.json`, the result.
"""

import json
import os
import random
import runpy
import sys
import time
from pathlib import Path
from typing import Any

import no_gpu
import numpy as np
import same_numbers
import torch

RANK = int(os.environ.get("RANK", 0))


class Seen:
    """What a program has done so far: the loss of each backward pass, and the CPU time when it was over."""

    def __init__(self, passes: int) -> None:
        self.passes = passes
        self.losses: list[float] = []
        self.times: list[float] = []

    def watch(self) -> None:
        """From now on backward passes are written down, and the one after the last of them ends the program."""
        backward = torch.Tensor.backward

        def watched(loss: Any, *args: Any, **keywords: Any) -> None:
            if len(self.losses) == self.passes:
                raise SystemExit(0)
            backward(loss, *args, **keywords)
            self.losses.append(float(loss.detach().sum()))
            self.times.append(time.process_time())

        torch.Tensor.backward = watched  # type: ignore[method-assign, assignment]

    def result(self) -> dict[str, Any]:
        """The CPU time is that from a quarter of the passes on, when kernels are there."""
        assert self.losses, "the program has ended without a backward pass"
        return {"losses": self.losses, "seconds": self.times[-1] - self.times[len(self.times) // 4]}


def same_weights(folder: Path) -> None:
    """An optimizer's parameters begin as PyTorch's did, which makes them first; random numbers begin anew with it."""
    made = torch.optim.Optimizer.__init__
    count = 0

    def begin(self: Any, *args: Any, **keywords: Any) -> None:
        nonlocal count
        made(self, *args, **keywords)
        file = folder / f"weights.{RANK}.{count}.npz"
        parameters = [each for group in self.param_groups for each in group["params"]]
        if file.exists():
            with np.load(file) as weights, torch.no_grad():
                for place, parameter in enumerate(parameters):
                    parameter.copy_(torch.from_numpy(weights[str(place)]))
        else:
            np.savez(file, **{str(place): each.detach().numpy() for place, each in enumerate(parameters)})
        count += 1
        same_numbers.begin(count)

    torch.optim.Optimizer.__init__ = begin  # type: ignore[method-assign]


def compute_in_float64() -> None:
    """What a program makes as float32 without saying so is float64 from now on, and so is what it names FloatTensor."""
    torch.set_default_dtype(torch.float64)
    torch.FloatTensor = torch.DoubleTensor  # type: ignore[misc]
    torch.Tensor.float = torch.Tensor.double  # type: ignore[method-assign]


def _filled(word: str) -> str:
    """A word of the list, with this rank for RANK."""
    return word.replace("RANK", str(RANK))


def main() -> None:
    row, folder, side = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]).resolve(), sys.argv[3]
    torch.set_num_threads(1)
    seen = Seen(row.get("passes", 20))
    seen.watch()
    same_weights(folder)
    same_numbers.install()
    random.seed(0)
    np.random.seed(0)  # the programs' own calls draw from it
    if row.get("gpu"):
        no_gpu.install()
    if row.get("float64"):
        compute_in_float64()
    os.environ |= {name: _filled(word) for name, word in row.get("environment", {}).items()}
    sys.argv = [row["program"], *map(_filled, row.get("arguments", []))]
    sys.path[0] = str(Path(row["program"]).resolve().parent)
    result: dict[str, Any] = {}
    try:
        runpy.run_path(row["program"], run_name="__main__")
    except SystemExit as ended:
        if ended.code not in (0, None):
            result = {"raises": f"SystemExit: {ended.code}"}
    except Exception as error:  # noqa: BLE001 - what a program does not do is its result
        result = {"raises": f"{type(error).__name__}: {error}".partition("\n")[0][:200]}
    (folder / f"{side}.{RANK}.json").write_text(json.dumps(result or seen.result()))


if __name__ == "__main__":
    main()
