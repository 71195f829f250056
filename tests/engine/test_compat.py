"""Scripts written for PyTorch, with their import lines changed and nothing else, give PyTorch's losses step by step."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.data import compat_scripts

REFERENCE = json.loads((Path(compat_scripts.__file__).parent / "compat_reference.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", compat_scripts.SCRIPTS, ids=lambda path: path.stem)
def test_script(path: Path) -> None:
    losses = compat_scripts.run(path, compat_scripts.converted)
    np.testing.assert_allclose(
        losses, REFERENCE[path.stem], rtol=3e-4, atol=1e-5
    )  # other orders of summation grow under Adam


def test_every_script_has_numbers() -> None:
    assert {path.stem for path in compat_scripts.SCRIPTS} == REFERENCE.keys() - {"PyTorch"}


def test_only_import_lines_change() -> None:
    lines = {
        "import torch": "import engine as torch",
        "import torch as t": "import engine as t",
        "import torch.nn as nn": "import engine.nn as nn",
        "    from torch.nn.parallel import DistributedDataParallel": "    from ddp import DistributedDataParallel",
        "from torch.utils.data import Subset": "from engine.data import Subset",
        "import torch.distributed as dist": "import ddp as dist",
        "import numpy, torchtext": "import numpy, torchtext",
        "x = torch.ones(2)": "x = torch.ones(2)",
    }
    assert compat_scripts.converted("\n".join(lines)) == "\n".join(lines.values())
