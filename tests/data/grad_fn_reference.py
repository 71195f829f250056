"""Writes `grad_fn_reference.json`: how PyTorch names the `grad_fn` of the calls of `grad_fn_cases.py`, and the nodes of
all its operators, from the header that it installs. Run it where PyTorch is installed.

python tests/data/grad_fn_reference.py
"""

import json
import re
from pathlib import Path

import torch
from grad_fn_cases import names

header = Path(torch.__file__).parent / "include/torch/csrc/autograd/generated/Functions.h"
nodes = sorted(set(re.findall(r"struct TORCH_API (\w+Backward\d+)", header.read_text(encoding="utf-8"))))
found = {"PyTorch": torch.__version__, "calls": names(torch), "nodes": nodes}
Path(__file__).with_suffix(".json").write_text(json.dumps(found, indent=0) + "\n", encoding="utf-8")
