"""What of a machine and its software decides the last bits of a job's numbers."""

import platform
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np


def fingerprint(threads: int) -> dict[str, str]:
    """By name, in words: what should be the same wherever a job goes on. threads: of matrix products."""
    return {**_of_machine(), "threads": str(threads)}


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """In words, what is another one now."""
    names = dict.fromkeys((*before, *now))
    return [
        f"{name} {before.get(name, 'unknown')}, now {now.get(name, 'unknown')}"
        for name in names
        if before.get(name) != now.get(name)
    ]


@cache
def _of_machine() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    def version_of(package: str) -> str:
        try:
            return version(package)
        except PackageNotFoundError:
            return "none"

    config: Any = np.show_config(mode="dicts")
    blas = config["Build Dependencies"]["blas"]
    return {
        "machine": platform.machine(),
        "CPU": _processor(),
        "NumPy": np.__version__,
        "BLAS": f"{blas['name']} {blas['version']}",
        "Numba": version_of("numba"),
        "LLVM": version_of("llvmlite"),
        "ml_dtypes": version_of("ml_dtypes"),
    }


def _processor() -> str:
    """Its model: libraries choose their kernels by it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    found = (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "CPU part")))
    return next(found, platform.processor())
