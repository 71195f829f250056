"""What mpirun starts on each rank: pytest with the command line and the import path of the process that reports."""

import json
import os
import sys
from pathlib import Path


def main(folder: Path) -> int:
    """Runs tests until the process that reports lets this one go. Returns pytest's exit code."""
    settings = json.loads((folder / "settings").read_text())
    sys.path[:] = settings["path"]
    for name in list(os.environ):
        if name.startswith(("PYTEST_XDIST_", "PYTEST_CURRENT_TEST")):
            del os.environ[name]  # a rank is none of its workers
    import pytest

    # By name and in this order: what pytest imports itself it can instrument, and it complains of what it cannot.
    return pytest.main(["-p", "launch.testing", "-p", "launch.testing.rank", *settings["arguments"]])


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
