"""The disk cache of compiled kernels. Who reads them imports no Numba.

It is not Numba's own. Numba keeps one index file per function that lists all its dtypes and CPUs, and two processes
that add to it at once can leave an entry that points to the other one's machine code. Here every machine function is
one file, in a directory named after everything that decides its bytes (our source, versions, CPU). Files are written
aside and renamed into place, so a reader sees a whole file or none; different CPUs never share a directory. Each file
also says what it is and for which machine, so that one at a wrong place is not taken for another.
"""

import functools
import hashlib
import json
import os
import sys
import warnings
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import llvmlite
import numpy
from llvmlite import binding

from engine.kernels import files, store
from engine.kernels.vectors import vector_bytes

# Numba's settings that decide machine code; it has them from variables, and from a file in the current folder.
_SETTINGS = {
    *("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "NUMBA_ENABLE_AVX", "NUMBA_DISABLE_INTEL_SVML"),
    *("NUMBA_OPT", "NUMBA_LOOP_VECTORIZE", "NUMBA_SLP_VECTORIZE"),
    *("NUMBA_BOUNDSCHECK", "NUMBA_DEBUGINFO", "NUMBA_DEVELOPER_MODE"),
}


def cache_directory() -> Path:
    """Where machine functions are kept: a name for this build and CPU under the user's cache directory.

    That is ``$NUMBA_CACHE_DIR``, else ``$XDG_CACHE_HOME``, else ``~/.cache``; below, a folder ``allstride``, or one of
    the user's own where that is somebody else's.

    Raises RuntimeError if none of the variables is set and there is no home directory, or others could have written to
    what is there.
    """
    chosen = os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME")
    folder, problem = store.choose(Path(chosen or Path.home() / ".cache"))
    if folder is None:
        raise RuntimeError(problem)
    if problem:
        _warn_untrusted(f"{problem}; compiled kernels are kept in {folder} instead")
    return folder / hashlib.sha256(build().encode()).hexdigest()[:24]


@functools.cache
def build() -> str:
    """All that decides machine code besides function and argument types, in JSON."""
    digest = hashlib.sha256()
    for source in files.sources():
        digest.update(source.read_bytes())
    told = Path(".numba_config.yaml")
    about = {
        "source": digest.hexdigest(),
        "numba": metadata.version("numba"),
        "llvmlite": llvmlite.__version__,
        "numpy": numpy.__version__,
        "python": f"{sys.implementation.cache_tag}{sys.abiflags}",
        "triple": binding.get_process_triple(),
        "cpu": binding.get_host_cpu_name(),
        "features": binding.get_host_cpu_features().flatten(),
        "vector_bytes": vector_bytes(),
        "settings": {name: value for name, value in os.environ.items() if name in _SETTINGS},
        "settings file": told.read_text() if told.is_file() else "",
    }
    return json.dumps(about, sort_keys=True)


class DiskCache:
    """One kernel's place in the cache.

    Attributes:
        path: the file; None if there is no place for it, which is told.
    """

    def __init__(self, name: str, argument_types: Sequence[Any]):
        self.path: Path | None = None
        types_digest = hashlib.sha256(repr(argument_types).encode()).hexdigest()[:16]
        entry = f"{name}.{types_digest}"
        self._about = f"{entry}\n{build()}\n".encode()
        try:
            self.path = cache_directory() / entry
        except RuntimeError as why:
            _warn_once(f"there is no place for compiled kernels ({why})")

    def is_there(self) -> bool:
        """Whether there is a file, whatever is in it."""
        return self.path is not None and self.path.exists()

    def load(self) -> tuple[str, bytes] | None:
        """A symbol and the object file it is in, as they were saved; None where there is nothing of use."""
        if self.path is None:
            return None
        try:
            stored = store.read(self.path)
        except store.UntrustedError as why:
            _warn_untrusted(f"{why}; what is there is not used, and is compiled again")
            return None
        except OSError as why:
            _warn_once(f"cannot read compiled kernels in {self.path.parent} ({why.strerror})")
            return None
        if stored is None:
            return None
        digest, content = stored[:32], stored[32:]
        if hashlib.sha256(content).digest() != digest or not content.startswith(self._about):
            warnings.warn(f"compiled kernel {self.path} is damaged and is compiled again", RuntimeWarning, stacklevel=2)
            return None
        symbol, _, code = content[len(self._about) :].partition(b"\n")
        return symbol.decode(), code

    def save(self, symbol: str, code: bytes) -> None:
        """Store them; a directory that cannot be written is told once and changes nothing else."""
        if self.path is None:
            return
        content = self._about + symbol.encode() + b"\n" + code
        try:
            store.write(self.path, hashlib.sha256(content).digest() + content)
        except store.UntrustedError as why:
            _warn_untrusted(f"{why}; no compiled kernels are kept there, and every start compiles them again")
        except OSError as why:
            _warn_once(f"cannot keep compiled kernels in {self.path.parent} ({why.strerror})")


@functools.cache
def _warn_once(problem: str) -> None:
    warnings.warn(
        f"{problem}; every start compiles them again, which takes seconds. "
        "Set NUMBA_CACHE_DIR to a directory that can be written.",
        RuntimeWarning,
        stacklevel=2,
    )


@functools.cache
def _warn_untrusted(problem: str) -> None:
    warnings.warn(f"compiled kernels run with the rights of who loads them: {problem}.", RuntimeWarning, stacklevel=2)
