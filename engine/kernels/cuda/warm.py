"""Compiles every variant of every CUDA source for the GPU in use, into CuPy's cache on disk: the GPU's part of
`ddprun --warm-cache`.
"""

import importlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from engine.kernels.cuda.launch import SOURCES, Source
from engine.memory import backend

_ENGINE = Path(__file__).parents[2]


def cache_directory() -> Path:
    """Where CuPy keeps what NVRTC made."""
    return Path(os.environ.get("CUPY_CACHE_DIR") or Path.home() / ".cupy" / "kernel_cache")


def sources() -> list[Source]:
    """All of them: the modules that name them stand beside their files."""
    for file in sorted(_ENGINE.rglob("*.cu")):
        folder = file.parent
        for module in sorted(folder.glob("*.py")) if folder.name == "cuda" else [folder / "cuda.py"]:
            importlib.import_module(".".join(module.relative_to(_ENGINE.parent).with_suffix("").parts))
    return SOURCES


def warm(progress: Callable[[int, int, str], None] | None = None) -> int:
    """Compiles them, several at once, since NVRTC is no Python; returns how many variants there are.

    ``progress`` is called before each with how many are done, how many there are, and which is next. Raises:
    RuntimeError without CuPy or GPU.
    """
    backend.require_cupy()
    todo = [(source, macros) for source in sources() for macros in source.variants]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        started = {threads.submit(source.get, source.kernels[0], **macros): source for source, macros in todo}
        for done, future in enumerate(as_completed(started)):
            if progress is not None:
                progress(done, len(todo), started[future].file)
            future.result()
    return len(todo)
