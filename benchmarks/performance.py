"""Makes every table of PERFORMANCE.md, one after the other: fifty minutes on a machine that does nothing else.

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
# Words in the names of models that Inductor compiles: twelve, and the workloads.
COMPILED = ["ResNet-18", "GoogLeNet", "MobileNet v", "ShuffleNet", "ConvNeXt", "width 512", "DCGAN of", "nanoGPT"]
COMPILED += ["UNet, bilinear", "workload"]
COMMANDS = (
    "examples/benchmark.py all --rounds 2 PEER",
    "examples/benchmark.py --compile --rounds 2 PEER",
    "benchmarks/models.py --sources SOURCES PEER",
    "benchmarks/models.py --sources SOURCES --threads 1 --rounds 2 --avx2 PEER",
    "benchmarks/models.py --sources SOURCES --threads 1 --rounds 2 --compile -k COMPILED PEER",
    "benchmarks/limit.py PEER",
    "benchmarks/growth.py --plot docs/growth.png PEER",
    "benchmarks/scale.py",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", required=True, metavar="DIR", help="folder of clones")
    parser.add_argument("--torch-python", required=True, metavar="PATH", help="a Python with PyTorch")
    given = parser.parse_args()
    for command in COMMANDS:
        meant = {"SOURCES": [given.sources], "PEER": ["--torch-python", given.torch_python], "COMPILED": COMPILED}
        words = [sys.executable, *(each for word in command.split() for each in meant.get(word, [word]))]
        words += ["--write", "PERFORMANCE.md"]
        print(shlex.join(words), flush=True)
        subprocess.run(words, cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
