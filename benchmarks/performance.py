"""Makes every table of PERFORMANCE.md that is measured, one after the other: forty minutes on a machine that does
nothing else.

    python benchmarks/performance.py --sources DIR --torch-python OTHER/bin/python

DIR is as `models.py` wants it, OTHER an environment with PyTorch. Each command is printed before it runs; the first
that fails ends this one.
"""

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = (
    "examples/benchmark.py all --rounds 2",
    "examples/benchmark.py --compile --rounds 2",
    "benchmarks/models.py --sources SOURCES",
    "benchmarks/models.py --sources SOURCES --threads 1 --rounds 2 --avx2",
    "benchmarks/limit.py",
    "benchmarks/growth.py --plot docs/growth.png",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", required=True, metavar="DIR", help="folder of clones")
    parser.add_argument("--torch-python", required=True, metavar="PATH", help="a Python with PyTorch")
    given = parser.parse_args()
    for command in COMMANDS:
        words = [given.sources if word == "SOURCES" else word for word in command.split()]
        words = [sys.executable, *words, "--torch-python", given.torch_python, "--write", "PERFORMANCE.md"]
        print(shlex.join(words), flush=True)
        subprocess.run(words, cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
