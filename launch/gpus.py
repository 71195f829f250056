"""Which GPUs there are for the ranks of a machine: found without CUDA, from the environment and /dev.

CUDA_VISIBLE_DEVICES is how users choose GPUs everywhere, and how Slurm gives a job its own; what it names is what there
is, and naming GPUs for more ranks than them is how to ask ranks to share.
"""

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from shutil import which
from typing import NamedTuple

from launch import LaunchError


class Gpus(NamedTuple):
    """GPUs of this machine that ranks may use."""

    number: int = 0
    named: bool = False  # by CUDA_VISIBLE_DEVICES


def find_gpus(environ: Mapping[str, str], root: Path = Path("/")) -> Gpus:
    """The GPUs that CUDA would show to a process with this environment; `root` holds dev.

    Raises LaunchError when CUDA_VISIBLE_DEVICES names one twice, or one that is not there.
    """
    there = _count_devices(root, environ.get("PATH", ""))
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None or not there:
        return Gpus(there)
    named = [word.strip() for word in visible.split(",") if word.strip()]
    if "-1" in named:  # CUDA shows those before it
        named = named[: named.index("-1")]
    for word in named:
        if named.count(word) > 1:
            raise LaunchError(
                f"CUDA_VISIBLE_DEVICES={visible!r} names GPU {word} twice, which CUDA refuses; name it once, and ranks "
                "that are more than the GPUs share them"
            )
        if word.isdecimal() and int(word) >= there:
            have = "only GPU 0" if there == 1 else f"GPUs 0 to {there - 1}"
            raise LaunchError(f"CUDA_VISIBLE_DEVICES={visible!r} names GPU {word}, but this machine has {have}")
    return Gpus(len(named), named=True)


def _count_devices(root: Path, search_path: str) -> int:
    """Device files of the driver; where it makes none (WSL), what nvidia-smi lists."""
    folder = root / "dev"
    files = [entry for entry in folder.glob("nvidia*") if re.fullmatch(r"nvidia\d+", entry.name)]
    if files or not (folder / "dxg").exists():
        return len(files)
    tool = which("nvidia-smi", path=search_path)
    if tool is None:
        return 0
    try:
        answer = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0  # a driver that does not answer has no GPU to offer
    return sum(line.startswith("GPU ") for line in answer.stdout.splitlines())


def assignment(gpus: Gpus, ranks: int) -> tuple[str, str]:
    """What each rank of a machine gets, as the worker is told it, and in words; empty where there is no GPU.

    "own": GPU r for local rank r. "share": GPU r modulo their number. "none": more ranks than GPUs, and nobody asked
    to share.
    """
    if not gpus.number:
        return "", ""
    words = f"{gpus.number} GPU{'' if gpus.number == 1 else 's'}"
    if ranks <= gpus.number:
        return "own", "one GPU each" if ranks == gpus.number else f"one GPU each of {gpus.number}"
    if gpus.named:
        return "share", f"sharing {words} as CUDA_VISIBLE_DEVICES names fewer than ranks"
    return "none", (
        f"no GPU given to any ({words} for {ranks} ranks; set CUDA_VISIBLE_DEVICES to the GPUs that they are to share)"
    )
