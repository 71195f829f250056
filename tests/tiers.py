"""What a plain `pytest` leaves out, so that it ends in minutes anywhere. `--full`, or naming a file, runs it too.

Single tests are marked `full` where they stand.
"""

import re
from functools import cache
from pathlib import Path

import pytest

_TESTS = Path(__file__).parent

GPU = "what runs on a GPU, or on the CPU driver (needs g++ and the extra cuda-driver)"
LEFT_OUT = {
    GPU: ("test_cuda_driver", "engine/cuda", "engine/kernels/cuda", "ddp/cuda"),
    "two hosts (needs root and network namespaces)": (
        *("ddp/watching/test_faults_two_hosts.py", "ddp/test_two_hosts.py", "launch/test_two_hosts.py"),
    ),
    "compiling into an empty cache": (
        *("engine/kernels/test_jit.py", "engine/kernels/test_command.py", "engine/kernels/test_store.py"),
    ),
    "kills in every order": ("launch/test_orphans.py", "launch/testing/test_faults.py"),
    "stops at start and end": ("ddp/watching/test_faults_start_and_end.py",),
    "the benchmark's script": ("examples/test_benchmark.py",),
    "every operator captured, every reason not to": (
        *("engine/capture/test_operators.py", "engine/capture/test_fallback.py"),
    ),
    "random cases at length": ("ddp/gradients/test_reducer_random.py", "ddp/training/test_uneven_random.py"),
}
"""Folders and files of tests/, by reason. They are not even imported."""

_IN_FILES = "most faults, long trainings"
_PATHS = frozenset(_TESTS / name for names in LEFT_OUT.values() for name in names)
_GPU_PATHS = frozenset(_TESTS / name for name in LEFT_OUT[GPU])


def runs_everything(config: pytest.Config) -> bool:
    """Whether nothing is left out."""
    on_gpu = bool(re.search(r"\b(gpu|sanitizer)\b", config.getoption("markexpr")))
    return on_gpu or bool(config.getoption("full")) or config.args_source is pytest.Config.ArgsSource.ARGS


def is_left_out(path: Path) -> bool:
    """Whether all tests of a file or folder are left out."""
    return path in _PATHS


def needs_everything(item: pytest.Item) -> bool:
    """Whether a plain `pytest` leaves a test out: with its file, or it is marked, or wants a GPU."""
    return _is_inside(item.path, _PATHS) or item.get_closest_marker("full") is not None or needs_a_gpu(item)


def needs_a_gpu(item: pytest.Item) -> bool:
    """Whether a test wants a GPU, or the CPU driver."""
    return _is_inside(item.path, _GPU_PATHS) or "cuda" in getattr(item, "fixturenames", ())


@cache
def _is_inside(path: Path, places: frozenset[Path]) -> bool:
    return not places.isdisjoint((path, *path.parents))


def header(config: pytest.Config) -> str:
    """What a run says of it before it starts."""
    if runs_everything(config):
        return "tier: everything"
    return f"tier: quick; left out, `pytest --full` runs it: {'; '.join([*LEFT_OUT, _IN_FILES])}"
