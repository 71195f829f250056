"""Writes `printing_reference.json`: how PyTorch prints the tensors of `printing_cases.py`. Run it where PyTorch is
installed.

python tests/data/printing_reference.py
"""

import json
from pathlib import Path

import torch
from printing_cases import texts

lines = ",\n".join(f"{json.dumps(case)}: {json.dumps(text)}" for case, text in texts(torch).items())
Path(__file__).with_suffix(".json").write_text(
    f'{{\n"PyTorch": "{torch.__version__}",\n{lines}\n}}\n', encoding="utf-8"
)
