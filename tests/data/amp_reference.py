"""Writes `amp_reference.json`: what PyTorch gives for the cases of `amp_cases.py`. Run it where PyTorch is installed.

python tests/data/amp_reference.py
"""

import json
from pathlib import Path

import torch
from amp_cases import NETWORKS, expressions, scale, train

KINDS = ("bfloat16", "float16")
found = {
    "PyTorch": torch.__version__,
    "expressions": {f"{kind} {low}": expressions(torch, kind, low) for kind in KINDS for low in (True, False)},
    "networks": {f"{name} {kind}": train(torch, name, kind) for name in NETWORKS for kind in KINDS},
    "scaler": scale(torch),
}
target = Path(__file__).with_suffix(".json")
target.write_text(json.dumps(found, indent=0) + "\n", encoding="utf-8")
