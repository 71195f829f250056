"""Copies of memory that is not read again soon."""

import numpy as np

from engine.kernels.jit import kernel
from engine.kernels.language import stream

_LINE = 64  # bytes


def copy_past_caches(target: np.ndarray, source: np.ndarray, least: int = 1 << 20) -> None:
    """Copies contiguous bytes, of dtype uint8, that do not overlap; what is in the caches stays there.

    A plain copy reads the lines that it writes, too. The C library's passes the caches by from some hundred MB on; this
    does from 1 MiB on. 16 MiB at a time on an AMD EPYC with 32 MiB of cache: 12 GB/s, NumPy's 8.

    least: so many bytes, or they are copied plainly. Where this core reads them again soon, 1 MiB may be in its caches.
    """
    if source.nbytes < least:
        np.copyto(target, source)
        return
    at = _address(target)
    head = -at % _LINE
    lines = (source.nbytes - head) // _LINE
    end = head + lines * _LINE
    np.copyto(target[:head], source[:head])
    _stream["d"](at + head, _address(source) + head, lines)
    np.copyto(target[end:], source[end:])


def _address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


@kernel
def _stream(target: int, source: int, lines: int) -> None:
    stream(target, source, lines)
