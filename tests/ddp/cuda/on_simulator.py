"""Runs a script, or a module after -m, with a GPU of ours: `python on_simulator.py SCRIPT [ARGUMENT ...]`."""

import os
import runpy
import sys

from tests import cuda_device

if __name__ == "__main__":
    cuda_device.install()
    module = sys.argv[1] == "-m"
    sys.argv = sys.argv[2 if module else 1 :]
    if module:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, os.path.dirname(os.path.realpath(sys.argv[0])))
        runpy.run_path(sys.argv[0], run_name="__main__")
    cuda_device.uninstall()  # races that were found are errors
