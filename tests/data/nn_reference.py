"""Writes `nn_reference.json`: what PyTorch computes for the cases of `nn_cases.py`. Run it where PyTorch is installed.

python tests/data/nn_reference.py
"""

import json
import warnings
from pathlib import Path

import torch
from nn_cases import CASES, run

warnings.simplefilter("ignore")
reference = {case.name: run(case, torch, torch.nn) for case in CASES}
target = Path(__file__).with_suffix(".json")
lines = ",\n".join(
    f"{json.dumps(name)}: {json.dumps(entry, separators=(',', ':'))}" for name, entry in reference.items()
)
target.write_text(f'{{\n"PyTorch": "{torch.__version__}",\n{lines}\n}}\n', encoding="utf-8")
