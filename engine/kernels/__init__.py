"""How kernels are compiled, kept on disk and launched, and what those of several families share.

A family's CPU kernels are Numba functions on raw NumPy arrays, in its `kernels.py` or `kernels/`
(`engine.kernels.files`); nothing there knows about tensors. Importing them imports no Numba and compiles nothing, the
first call of a kernel does, unless the disk cache has it. :func:`warm` compiles all of them ahead of time. CUDA sources
stand in their families, too (`engine.kernels.cuda`).
"""

import importlib
import time
from collections.abc import Callable

from engine.kernels import files, jit


def warm(
    dtypes: tuple[str, ...] = ("float32", "float64"), progress: Callable[[int, int, str], None] | None = None
) -> list[tuple[str, str, float]]:
    """Compile every kernel, or read it from the disk cache; returns (kernel, dtype, seconds) for each.

    For images, and for homes that jobs cannot write: run it once with the NUMBA_CACHE_DIR that the jobs will have.
    ``progress`` is called before each with how many are done, how many there are, and which is next.
    """
    for module in files.modules():
        importlib.import_module(module)
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
