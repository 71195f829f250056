"""The few CPU kernels worth fusing, in Numba, on raw NumPy arrays.

Nothing here knows about tensors. A kernel is reached through its module, ``optimizer.adam(...)``; importing the modules
imports no Numba and compiles nothing, the first call of a kernel does. :func:`warm` compiles all of them ahead of time.
"""

import importlib
import pkgutil
import time

from engine.kernels import jit


def warm(dtypes: tuple[str, ...] = ("float32", "float64")) -> list[tuple[str, str, float]]:
    """Compile every kernel, or read it from the disk cache; returns (kernel, dtype, seconds) for each.

    For images, and for homes that jobs cannot write: run it once with the NUMBA_CACHE_DIR that the jobs will have.
    """
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    done = []
    for kernel in jit.registered():
        for code, dtype in jit.DTYPES.items():
            if dtype in dtypes:
                started = time.perf_counter()
                kernel.compiled(code)
                done.append((kernel.name, dtype, time.perf_counter() - started))
    return done
