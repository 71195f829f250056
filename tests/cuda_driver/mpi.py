"""Device memory handed to MPI, which knows nothing of streams: the host must have waited for what was written."""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests import cuda_driver


class _Buffer:
    """In place of `mpi4py.MPI.buffer`."""

    def __init__(self, before: Any) -> None:
        self._before = before

    def __getattr__(self, name: str) -> Any:
        return getattr(self._before, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._before(*args, **kwargs)

    def fromaddress(self, address: int, nbytes: int, readonly: bool = False) -> Any:
        """Raises: RuntimeError where a stream may still be writing these bytes; the driver's problems say which."""
        if not cuda_driver.driver().driver_host_access(ctypes.c_void_p(address), ctypes.c_size_t(nbytes)):
            raise RuntimeError("device memory is handed to MPI before the host has waited for what is written there")
        return self._before.fromaddress(address, nbytes, readonly)


@contextmanager
def watched() -> Iterator[None]:
    """Buffers that mpi4py makes of addresses inside are checked, where it is imported."""
    module: Any = sys.modules.get("mpi4py.MPI")
    if module is None:
        yield
        return
    before, module.buffer = module.buffer, _Buffer(module.buffer)
    try:
        yield
    finally:
        module.buffer = before
