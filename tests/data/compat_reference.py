"""Writes `compat_reference.json`: the losses of the scripts of `compat/` under PyTorch. Run it where PyTorch is
installed.

python tests/data/compat_reference.py
"""

import json
import sys
import warnings
from pathlib import Path

import torch
from compat_scripts import SCRIPTS, run

warnings.simplefilter("ignore")
torch.set_num_threads(1)
losses = {path.stem: run(path, lambda source: source) for path in SCRIPTS}
lines = ",\n".join(
    f"{json.dumps(name)}: {json.dumps([float(f'{each:.9g}') for each in numbers])}" for name, numbers in losses.items()
)
Path(__file__).with_suffix(".json").write_text(
    f'{{\n"PyTorch": "{torch.__version__}",\n{lines}\n}}\n', encoding="utf-8"
)
sys.stdout.write(f"{sum(map(len, losses.values()))} losses of {len(losses)} scripts\n")
