"""Trains the models of `public_models.py` on one side, a few steps whenever it is asked: what `models.py` starts.

A line `NAME` builds the model and takes the steps that warm it up; a line `go` takes steps for about half a second.
Answers are JSON lines with `seconds`, the processor time of a step of all threads of this process, and its loss.
"""

import json
import os
import sys
import time
from typing import Any

import torch
from public_models import MODELS

OURS = "allstride" in torch.__version__
COMPILED = "MODELS_COMPILED" in os.environ
WARM_UP, LEAST, LONGEST = 4 if COMPILED else 2, 2, 0.25  # steps, steps, seconds


def trained(name: str) -> Any:
    """A function that takes one training step of the model, with Adam, and returns the loss."""
    torch.manual_seed(0)
    modules, loss = MODELS[name][1]()
    optimizer = torch.optim.Adam([each for module in modules for each in module.parameters()], lr=1e-4)
    if COMPILED and not OURS:
        loss = torch.compile(loss)  # what PyTorch's users compile: the model; its backward with it

    def step() -> Any:
        optimizer.zero_grad()
        result = loss()
        result.backward()
        optimizer.step()
        return result.detach()

    return torch.compile(step) if COMPILED and OURS else step  # ours records the whole step


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what models print is no answer
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    step: Any = None
    for line in sys.stdin:
        answer: dict[str, Any] = {}
        try:
            if line.strip() != "go":
                step = trained(line.strip())
                for _ in range(WARM_UP):
                    answer["loss"] = float(step())
            else:
                steps, began = 0, time.process_time()
                while steps < LEAST or time.process_time() - began < LONGEST:
                    step()
                    steps += 1
                answer["seconds"] = (time.process_time() - began) / steps
        except Exception as error:  # noqa: BLE001 - what a model does not do is its result
            answer["raises"] = f"{type(error).__name__}: {error}".partition("\n")[0][:200]
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
