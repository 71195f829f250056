"""What mpirun starts on every rank: `python launch/worker.py [-m] TARGET ARGUMENTS...`. The work is in rank.py.

Python compiles the file that it is started with anew each time, and keeps what it compiled of the others: 3 ms a rank.
They are loaded by their paths, under names that no script uses: `launch` may be a file of the user's.
"""

import importlib.util
import os
import sys
from types import ModuleType


def load(name: str) -> ModuleType:
    """The file `name`.py beside this one, as a module that nobody else can import."""
    path = os.path.join(os.path.dirname(__file__), f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"_ddprun_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    report = load("report")
    load("rank").main(report.connect, lambda: load("place").join(report.open_line), load("output").open_output)
