"""The few CPU kernels worth fusing, in Numba, on raw NumPy arrays.

Nothing here knows about tensors. A kernel is reached through its module, ``optimizer.adam(...)``; importing the modules
imports no Numba and compiles nothing, the first call of a kernel does. :func:`warm` compiles all of them ahead of time.
"""

import importlib
import pkgutil
import time
from collections.abc import Callable

from engine.kernels import jit


def warm(
    dtypes: tuple[str, ...] = ("float32", "float64"), progress: Callable[[int, int, str], None] | None = None
) -> list[tuple[str, str, float]]:
    """Compile every kernel, or read it from the disk cache; returns (kernel, dtype, seconds) for each.

    For images, and for homes that jobs cannot write: run it once with the NUMBA_CACHE_DIR that the jobs will have.
    ``progress`` is called before each with how many are done, how many there are, and which is next.
    """
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    kernels = jit.registered()
    todo = [(one, code, name) for one in kernels for code, name in jit.DTYPES.items() if name in dtypes]
    done: list[tuple[str, str, float]] = []
    for kernel, code, dtype in todo:
        if progress is not None:
            progress(len(done), len(todo), f"{kernel.name} {dtype}")
        started = time.perf_counter()
        kernel.compiled(code)
        done.append((kernel.name, dtype, time.perf_counter() - started))
    return done
