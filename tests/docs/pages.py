"""The code blocks of a page of docs/, and how they are run.

A block that begins with a comment of a file's name (`# train.py`, or a line below `#!`) is that file. Of the others
those in `python` are one program, run first; then those in `bash` are run in the order of the page, with the tools
below beside the real ones. What readers need not see but a block needs stands before it, in a comment that begins with
the language: `<!-- python`. A block of another language is text.
"""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

_FENCE = re.compile(r"^(?:```|<!-- )(\w+)\n(.*?)^(?:```|-->)$", re.MULTILINE | re.DOTALL)
_NAME = re.compile(r"^(?:#![^\n]*\n)?# ([\w.-]+\.\w+)\n")
LIMIT = 120  # seconds a block

# In place of what a site has. Each is its name and the rest of a shell script.
_TOOLS = {
    "python": f'exec {sys.executable} "$@"',
    "ddprun": f'exec {sys.executable} -P -m launch "$@"',
    "pytest": f'exec {sys.executable} -m pytest -p no:cacheprovider -o addopts= "$@"',
    # The extras that are named must exist.
    "pip": f'exec {sys.executable} {Path(__file__).with_name("extras.py")} "$@"',
    "module": "exit 0",
    # A batch system that has a job of 2 ranks on this host, at once; options are in the script.
    "sbatch": "export SLURM_JOB_ID=7 SLURM_NTASKS=2 SLURM_TASKS_PER_NODE=2 SLURM_NNODES=1 SLURMD_NODENAME=$(hostname)\n"
    'export SLURM_JOB_NODELIST=$(hostname) SLURM_NODELIST=$(hostname)\nexec bash -e "${@: -1}"',
    "srun": 'while [[ $1 == -* ]]; do shift; done\nenv -u SLURM_JOB_ID mpirun -n 2 "$@"',
    "qsub": "export PBS_JOBID=7.pbs PBS_O_WORKDIR=$PWD PBS_NODEFILE=$PWD/nodes\n"
    'printf "localhost\\nlocalhost\\n" >nodes\nexec bash -e "$1"',
    "bsub": 'export LSB_JOBID=7 LSB_MCPU_HOSTS="localhost 2"\nexec bash -e',
    # A container is this machine: what follows the image runs.
    "apptainer": 'while [[ $1 != *.sif ]]; do shift; done\nshift; exec "$@"',
}


class Block(NamedTuple):
    """One code block."""

    language: str
    file: str  # its name; empty for one that is run
    text: str


def blocks(page: Path) -> list[Block]:
    """The code blocks of a page, in its order."""
    found = []
    for language, text in _FENCE.findall(page.read_text()):
        named = _NAME.match(text)
        found.append(Block(language, named[1] if named else "", text))
    return found


def write_tools(folder: Path) -> None:
    """Makes a folder of what stands in for a site's programs."""
    folder.mkdir()
    for name, text in _TOOLS.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)


def run_page(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Runs what the page shows in an empty folder; returns what was printed. Fails with the block that does."""
    for name in list(os.environ):
        if name.startswith(("SLURM_", "OMPI_", "PMIX_", "PRTE_", "ALLSTRIDE_", "PBS_", "LSB_")):
            monkeypatch.delenv(name)
    tools = folder / "tools"
    write_tools(tools)
    work = folder / "work"
    work.mkdir()
    parts = blocks(page)
    for block in parts:
        if block.file:
            (work / block.file).write_text(block.text)
    environ = os.environ | {
        "PATH": f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "error",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "HOSTNAME": socket.gethostname(),
    }
    printed = ""
    programs = [["bash", "-euc", block.text] for block in parts if block.language == "bash" and not block.file]
    if program := "".join(block.text for block in parts if block.language == "python" and not block.file):
        programs.insert(0, [sys.executable, "-c", program])
    for command in programs:
        try:
            ended = subprocess.run(command, cwd=work, env=environ, capture_output=True, text=True, timeout=LIMIT)
        except subprocess.TimeoutExpired as late:
            raise AssertionError(f"{page.name}:\n{command[-1]}\nwas not done after {LIMIT} s:\n{late.stderr}") from late
        assert ended.returncode == 0, f"{page.name}:\n{command[-1]}\nended with {ended.returncode}:\n{ended.stderr}"
        printed += ended.stdout + ended.stderr
    return printed
