"""A CPU driver for CUDA: the real CuPy, from its wheel, on memory of the host.

`load()` puts the driver's libraries where CuPy looks for NVIDIA's. CuPy's compiled code, its memory pools and its
kernels are the real ones; what CuPy hands to NVRTC, kernels of this project among it, is compiled with g++ and run, one
block after another, CuPy's own once for arrays of different numbers of dimensions (dimensions.py). Ours are the
functions of the CUDA runtime and driver that CuPy calls (source/), the language CUDA C++ and its assembler on a host
(host/), products in place of cuBLAS, LAPACK in place of cuSOLVER, and sorting in place of Thrust (thrust.py).
"""

import ctypes
import importlib.machinery
import importlib.util
import os
import sys
from typing import Any

import numpy as np

from engine.autograd import places
from engine.memory import backend
from tests.cuda_driver import build, nvrtc

_loaded: ctypes.CDLL | None = None
_MEMORY = 16 << 30  # bytes of a device
_kept: list[Any] = []  # functions that C calls
_RUNTIME = "cupy_backends.cuda.api.runtime"


def why_not() -> str | None:
    """The reason why there is no driver here; None where there is one."""
    return build.why_not()


def load() -> None:
    """Makes the driver where it is not made yet, and has CuPy find it: before CuPy is imported. There are two devices
    from now on, and for ranks that are more as many as these."""
    global _loaded
    if _loaded is None:
        assert "cupy" not in sys.modules, "CuPy has found another driver already"
        place = build.libraries()
        _loaded = ctypes.CDLL(str(place / "libcpucuda.so"), mode=ctypes.RTLD_GLOBAL)
        for name in (*build.NAMES, *(each.name for each in build.LIBRARIES)):
            ctypes.CDLL(str(place / name), mode=ctypes.RTLD_GLOBAL)  # found by name from now on
        os.environ["CUPY_ACCELERATORS"] = ""  # cub is machine code in the wheel
        os.environ["CUPY_CACHE_IN_MEMORY"] = "1"  # nvrtc.py keeps what it compiled
        sys.meta_path.insert(0, _Finder())
        _loaded.driver_set_lapack(np.linalg._umath_linalg.__file__.encode())
        _connect(_loaded)
    ranks = int(os.environ.get("OMPI_COMM_WORLD_SIZE", 2))
    _loaded.driver_configure(max(2, ranks), ctypes.c_size_t(_MEMORY))


def hide() -> None:
    """There are no devices until `load` is called again: a machine with CuPy and without a GPU."""
    driver().driver_configure(0, ctypes.c_size_t(_MEMORY))
    backend._cupy = None
    places.in_use, places._last = False, None


def driver() -> ctypes.CDLL:
    """Its functions for tests, once it was loaded."""
    assert _loaded is not None
    return _loaded


class _Finder:
    """Finds the one module of CuPy's that is compiled anew, and ours in place of Thrust."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name == _RUNTIME:
            file = next(build.libraries().glob("runtime.*"))
            loader = importlib.machinery.ExtensionFileLoader(name, str(file))
            return importlib.util.spec_from_file_location(name, file, loader=loader)
        if name == "cupy.cuda.thrust":
            return importlib.util.spec_from_file_location(name, build.HERE / "thrust.py")
        return None


def _connect(driver: ctypes.CDLL) -> None:
    texts = (ctypes.c_char_p,) * 3

    @ctypes.CFUNCTYPE(ctypes.c_int, *texts, ctypes.c_void_p, ctypes.c_size_t)
    def compile(source: bytes, options: bytes, instances: bytes, text: int, size: int) -> int:
        try:
            lines = [each.decode().splitlines() for each in (options, instances)]
            found, good = nvrtc.machine_code(source.decode(), *lines), 1
        except RuntimeError as cause:
            found, good = str(cause), 0
        ctypes.memmove(text, found.encode()[: size - 1] + b"\0", min(len(found.encode()), size - 1) + 1)
        return good

    _kept.append(compile)
    driver.driver_set_compiler(compile)
