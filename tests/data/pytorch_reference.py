"""Writes pytorch_reference.json, the numbers that the engine is compared with. Needs PyTorch; no test runs it.

    OMP_NUM_THREADS=1 python tests/data/pytorch_reference.py

Run it in an environment with CPU PyTorch and what the examples import, where this project need not be installed:
PyTorch takes the engine's name here, so that both sides run the same reference_models.py and the same examples.
"""

import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
import torch.nn.functional
import torch.optim.lr_scheduler
import torch.utils.data.distributed

FOLDER = Path(__file__).resolve().parent


def alias_torch() -> None:
    """Let `import engine` and `import ddp` find PyTorch's modules of the same content."""
    ddp = ModuleType("ddp")
    vars(ddp).update(vars(torch.distributed))
    vars(ddp).update(
        DistributedDataParallel=torch.nn.parallel.DistributedDataParallel,
        DistributedSampler=torch.utils.data.distributed.DistributedSampler,
    )
    modules = {
        "engine": torch,
        "engine.nn": torch.nn,
        "engine.nn.functional": torch.nn.functional,
        "engine.optim": torch.optim,
        "engine.optim.lr_scheduler": torch.optim.lr_scheduler,
        "engine.data": torch.utils.data,
        "ddp": ddp,
    }
    sys.modules.update(modules)


def main() -> None:
    torch.set_num_threads(1)
    alias_torch()
    import reference_models  # found beside this script, after the names exist

    dtypes = {"float32": torch.float32, "float64": torch.float64}
    optimizers = {}
    for name in reference_models.OPTIMIZERS:
        losses, parameters = reference_models.optimizer_trajectory(name)
        optimizers[name] = {"losses": losses, "parameters": parameters}
    numbers = {
        "made_with": {"torch": torch.__version__, "numpy": np.__version__, "device": "cpu", "threads": 1},
        "digits": {name: reference_models.digits_losses(dtype) for name, dtype in dtypes.items()},
        "gpt": {name: reference_models.gpt_losses(dtype) for name, dtype in dtypes.items()},
        "optimizers": optimizers,
    }
    (FOLDER / "pytorch_reference.json").write_text(json.dumps(numbers, indent=1) + "\n")


if __name__ == "__main__":
    main()
