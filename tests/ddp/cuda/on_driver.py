"""Runs a script, or a module after -m, on the CPU driver: `python on_driver.py SCRIPT [ARGUMENT ...]`."""

import os
import runpy
import sys

from tests import cuda_driver
from tests.cuda_driver import control

if __name__ == "__main__":
    cuda_driver.load()
    module = sys.argv[1] == "-m"
    sys.argv = sys.argv[2 if module else 1 :]
    if module:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, os.path.dirname(os.path.realpath(sys.argv[0])))
        runpy.run_path(sys.argv[0], run_name="__main__")
    control.raise_problems()  # races that were found are errors
