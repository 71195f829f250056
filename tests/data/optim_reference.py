"""Writes `optim_reference.json`: what PyTorch computes for the cases of `optim_cases.py`. Run it where PyTorch is
installed.

python tests/data/optim_reference.py
"""

import json
import warnings
from pathlib import Path

import torch
from optim_cases import LBFGS, OPTIMIZERS, SCHEDULERS, optimizer_name, run_lbfgs, run_optimizer, run_scheduler

warnings.simplefilter("ignore")
Parameter = torch.nn.Parameter
sections = {
    "optimizers": {optimizer_name(case): run_optimizer(case, torch, Parameter) for case in OPTIMIZERS},
    "lbfgs": {str(options): run_lbfgs(options, torch, Parameter) for options in LBFGS},
    "schedulers": {name: run_scheduler(name, torch, Parameter) for name in SCHEDULERS},
    "schedulers with Adam": {
        name: run_scheduler(name, torch, Parameter, "Adam")
        for name in SCHEDULERS
        if name.startswith(("Cyclic", "OneCycle"))
    },
}
parts = []
for section, entries in sections.items():
    lines = ",\n".join(
        f"{json.dumps(name)}: {json.dumps(entry, separators=(',', ':'))}" for name, entry in entries.items()
    )
    parts.append(f"{json.dumps(section)}: {{\n{lines}\n}}")
target = Path(__file__).with_suffix(".json")
target.write_text(f'{{\n"PyTorch": "{torch.__version__}",\n' + ",\n".join(parts) + "\n}\n", encoding="utf-8")
