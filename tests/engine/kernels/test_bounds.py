"""No kernel's index lies outside its array: the tests beside this one hold with kernels that look at every index."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.kernels import files

FOLDER = Path(__file__).parent
# test_jit.py is about the cache, and starts processes with caches of their own
OTHERS = [path.name for path in sorted(FOLDER.glob("test_*.py")) if path.stem not in ("test_bounds", "test_jit")]
KERNEL = """
import numpy as np
from engine.kernels.jit import kernel
from engine.kernels.language import Read1


@kernel
def element(array: Read1, index: int) -> float:
    return array[index]


for index in (0, 3, -1, 4):
    try:
        print(element["d"](np.arange(4.0), index))
    except MemoryError:
        print("outside")
"""


def run(command, cache, **options):
    settings = {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(cache)}
    return subprocess.run(
        [sys.executable, *command], env=os.environ | settings, capture_output=True, text=True, check=False, **options
    )


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Where the kernels are kept that look at their indices: of all files together."""
    return tmp_path_factory.mktemp("cache")


def test_an_index_outside_is_seen(cache, tmp_path):
    """What a kernel raises is MemoryError, whatever it was: none of ours raises anything else."""
    script = tmp_path / "outside.py"
    script.write_text(KERNEL)
    done = run([str(script)], cache, timeout=300)
    assert done.stdout.split() == ["0.0", "3.0", "outside", "outside"], done.stderr


def is_compiled(node):
    if not isinstance(node, ast.FunctionDef):
        return False
    names = [each.func if isinstance(each, ast.Call) else each for each in node.decorator_list]
    return any(isinstance(name, ast.Name) and name.id in ("kernel", "helper") for name in names)


def test_no_slice_counts_from_the_end():
    """A negative bound would be taken for 0, and nothing at run time would tell."""
    found = 0
    for path in files.sources():
        for function in filter(is_compiled, ast.walk(ast.parse(path.read_text()))):
            for node in ast.walk(function):
                if isinstance(node, ast.Slice):
                    found += 1
                    bounds = [bound for bound in (node.lower, node.upper) if isinstance(bound, ast.UnaryOp)]
                    assert not bounds, f"{path}:{node.lineno}: {ast.unparse(node)}"
    assert found > 20


@pytest.mark.full
@pytest.mark.parametrize("file", OTHERS)
def test_no_index_lies_outside(file, cache):
    done = run(["-m", "pytest", "-q", "-n0", str(FOLDER / file)], cache, timeout=600, cwd=FOLDER.parents[2])
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
