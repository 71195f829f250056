"""Every kernel there is compiles from its annotations, and every public function of a kernel module is tested here."""

import importlib
import inspect
import re
from pathlib import Path

import pytest

from engine.kernels import files, jit

MODULES = ["engine.kernels.tiling", *files.modules()]


def public(module: str) -> list[str]:
    """Functions defined in a kernel module that others call."""
    found = importlib.import_module(module)
    return [
        name
        for name, value in vars(found).items()
        if not name.startswith("_")
        and (inspect.isfunction(inspect.unwrap(value)) if callable(value) else False)
        and value.__module__ == found.__name__
    ]


# reached through engine.ops.conv.direct, planes and winograd in the tests of these names
INDIRECT = {
    "engine.ops.conv.kernels.correlate": {"correlate", "weight_sums"},
    "engine.ops.conv.kernels.depthwise": {"pack", "unpack", "correlate", "weight_sums", "total"},
    "engine.ops.conv.kernels.planes": {"correlate", "weight_sums"},
    "engine.ops.conv.kernels.winograd": {"widen", "correlate"},
    "engine.ops.conv.kernels.packing": {"pack", "unpack", "lanes", "blocks"},
    "engine.ops.pooling.kernels.layout": {"is_planes", "laid_out"},  # through max_pool and avg_pool
}


@pytest.mark.parametrize("module", MODULES)
def test_every_function_is_called_by_a_test(module: str) -> None:
    folders = Path(__file__).parent, Path(__file__).parents[1] / "sharing"
    paths = [path for folder in folders for path in folder.glob("test_*.py") if path != Path(__file__)]
    texts = "\n".join(path.read_text() for path in paths)
    missing = [
        name for name in public(module) if not re.search(rf"\b{name}\b", texts) and name not in INDIRECT.get(module, ())
    ]
    assert not missing, f"add tests of {module}.{missing} to {Path(__file__).parent}"
    assert vars(importlib.import_module(module)).keys() >= INDIRECT.get(module, set())


def test_every_kernel_is_known_to_warm() -> None:
    for module in MODULES:
        importlib.import_module(module)
    names = [kernel.name for kernel in jit.registered()]
    assert len(names) == len(set(names)), "two kernels of one name would share a file of the cache"
    assert len(names) >= 70
    for kernel in jit.registered():
        for char in jit.DTYPES:
            assert all(kernel.argument_types(char)), kernel.name
