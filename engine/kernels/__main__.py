"""`python -m engine.kernels` compiles every kernel into the disk cache and says where it is; `ddprun --warm-cache`.

A job reads what is there and needs to write nothing: run this once where the cache can be written, with the
NUMBA_CACHE_DIR (else XDG_CACHE_HOME) that the jobs will have, on a machine with their kind of CPU. The exit code is 1
where the cache cannot be kept.
"""

import sys
import time
import warnings

from engine.kernels import warm
from engine.kernels.compiler import cache_directory


def main() -> int:
    """Compiles, reports in a line, returns the exit code."""
    began = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)  # the cache's own, when it cannot be written
            done = warm()
        place = cache_directory()
    except (RuntimeError, RuntimeWarning) as problem:
        print(f"nothing is kept: {problem}", file=sys.stderr)
        return 1
    size = sum(path.stat().st_size for path in place.iterdir()) / 1e6
    print(f"{len(done)} kernels in {place}: {size:.1f} MB, {time.perf_counter() - began:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
