"""`python -m engine.kernels` compiles every kernel into the disk cache and says where it is; `ddprun --warm-cache`.
With CuPy and a GPU also those of the GPU, into CuPy's cache (CUPY_CACHE_DIR, else ~/.cupy/kernel_cache).

A job reads what is there and needs to write nothing: run this once where the cache can be written, with the
NUMBA_CACHE_DIR (else XDG_CACHE_HOME) that the jobs will have, on a machine with their kind of CPU. What root keeps in a
NUMBA_CACHE_DIR all users may read. The exit code is 1 where the cache cannot be kept.
"""

import os
import sys
import time
import warnings
from pathlib import Path

from engine.kernels import store, waiting, warm
from engine.kernels.cache import cache_directory

_LINES = 10  # kernels a line, where lines cannot be written over


def main() -> int:
    """Compiles, shows how far it is, reports in a line, returns the exit code."""
    began = time.perf_counter()
    waiting.speak(False)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)  # the cache's own, when it cannot be written
            warnings.filterwarnings("default", ".*are kept in .* instead")
            place = cache_directory()
            print(f"compiling all kernels into {place}", file=sys.stderr, flush=True)
            done = warm(progress=_show)
    except (RuntimeError, RuntimeWarning) as problem:
        print(f"nothing is kept: {problem}", file=sys.stderr)
        return 1
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    if os.geteuid() == 0 and os.environ.get("NUMBA_CACHE_DIR"):
        store.open_to_readers(place)
    size = sum(path.stat().st_size for path in place.iterdir()) / 1e6
    print(f"{len(done)} kernels in {place}: {size:.1f} MB, {time.perf_counter() - began:.1f} s", flush=True)
    return _warm_gpu()


def _warm_gpu() -> int:
    """The same for a GPU, where there is one."""
    from engine.kernels.cuda import warm as of_gpu

    began = time.perf_counter()
    try:
        count = of_gpu.warm(progress=_show)
    except RuntimeError as problem:
        if Path("/dev/nvidia0").exists():
            print(f"no CUDA kernels: {problem}", file=sys.stderr)
        return 0
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    print(f"{count} variants of CUDA kernels in {of_gpu.cache_directory()}: {time.perf_counter() - began:.1f} s")
    return 0


def _show(done: int, total: int, following: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{done + 1} of {total}: {following}", end="", file=sys.stderr, flush=True)
    elif done % _LINES == 0:
        print(f"{done + 1} of {total}: {following}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
