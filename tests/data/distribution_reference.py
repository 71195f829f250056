"""Writes `distribution_reference.json`: what PyTorch computes for the cases of `distribution_cases.py`. Run it where
PyTorch is installed.

python tests/data/distribution_reference.py
"""

import json
from pathlib import Path

import torch
import torch.distributions
from distribution_cases import CASES, run

lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(run(name, torch, torch.distributions))}" for name in CASES)
Path(__file__).with_suffix(".json").write_text(
    f'{{\n"PyTorch": "{torch.__version__}",\n{lines}\n}}\n', encoding="utf-8"
)
