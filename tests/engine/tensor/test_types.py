"""What type checkers see of Tensor: every method, with its signature."""

import subprocess
import sys
from pathlib import Path

import pytest

from engine.methods.table import Methods
from engine.tensor import Tensor

PROGRAM = """\
import engine

x = engine.ones(2, 3)
reveal_type(x.sum())
reveal_type(x.sum)
reveal_type(x.exp())
reveal_type(x + 1)
reveal_type(x @ x.T)
reveal_type(x.add_(x))
reveal_type(x.float())
reveal_type(x.split(1))
reveal_type(x.backward())
x.summ()
x.exp(1, 2)
"""
SEEN = [
    'Revealed type is "engine.tensor.tensor.Tensor"',
    'Revealed type is "def (',
    *['Revealed type is "engine.tensor.tensor.Tensor"'] * 5,
    'Revealed type is "tuple[engine.tensor.tensor.Tensor, ...]"',
    'Revealed type is "None"',
    '"Tensor" has no attribute "summ"',
    "Too many arguments",
]


def test_every_method_stands_in_the_table_or_the_class() -> None:
    attached = {name for name, value in vars(Methods).items() if vars(Tensor).get(name) is value}
    left = {"__module__", "__dict__", "__weakref__", "__doc__", "__hash__"}
    assert set(vars(Methods)) - attached <= left | {"__firstlineno__", "__static_attributes__"}
    assert not hasattr(Tensor, "__getattr__")


@pytest.mark.full
def test_a_type_checker_sees_signatures(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="mypy comes with the extra dev")
    script = tmp_path / "script.py"
    script.write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--config-file=", "--cache-dir", str(tmp_path / "cache"), str(script)]
    options = ["--follow-imports=silent", "--ignore-missing-imports"]
    done = subprocess.run(
        [*command, *options], capture_output=True, text=True, cwd=Path(__file__).parents[3], timeout=290
    )
    lines = [line.partition(": ")[2] for line in done.stdout.splitlines() if line.startswith(str(script))]
    for line, seen in zip(lines, SEEN, strict=True):
        assert seen in line, done.stdout
