"""The disk cache of compiled kernels. Like `engine.kernels.compiler` it imports Numba at its top.

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
import pickle
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite
import numba
import numpy
from numba.core import caching, compiler, serialize
from numba.core.runtime.nrt import rtsys

from engine.kernels import files, store
from engine.kernels.vectors import vector_bytes


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
    triple, cpu, features = numba.core.registry.cpu_target.target_context.codegen().magic_tuple()
    settings = vars(numba.config)
    names = ("OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "BOUNDSCHECK", "DEBUGINFO_DEFAULT", "USING_SVML")
    about = {
        "source": digest.hexdigest(),
        "numba": numba.__version__,
        "llvmlite": llvmlite.__version__,
        "numpy": numpy.__version__,
        "python": f"{sys.implementation.cache_tag}{sys.abiflags}",
        "triple": triple,
        "cpu": cpu,
        "features": features,
        "vector_bytes": vector_bytes(),
        "settings": {name: str(settings.get(name)) for name in names},
    }
    return json.dumps(about, sort_keys=True)


class DiskCache(caching._Cache):
    """One kernel's place in the cache, in the form that Numba's dispatcher asks for.

    Attributes:
        path: the file; None if there is no place for it, which is told.
        missed: called when there is no function to be read, before it is compiled.
    """

    def __init__(self, name: str, argument_types: Any):
        self.path: Path | None = None
        self.missed: Callable[[], None] = lambda: None
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

    @property
    def cache_path(self) -> str:
        return str(self.path and self.path.parent)

    def enable(self) -> None:
        raise NotImplementedError("the kernel cache is always on")

    def disable(self) -> None:
        raise NotImplementedError("the kernel cache is always on")

    def flush(self) -> None:
        raise NotImplementedError("delete the cache directory instead")

    def load_overload(self, argument_types: Any, target_context: Any) -> Any:
        """The stored compile result, or None."""
        found = self._load(target_context)
        if found is None:
            self.missed()
        return found

    def _load(self, target_context: Any) -> Any:
        # All that machine code of kernels calls. What Numba itself does here, `refresh`, loads all that it could
        # compile, and SciPy if that is installed: 0.4 s of each process's start.
        rtsys.initialize(target_context)
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
        return compiler.CompileResult._rebuild(target_context, *pickle.loads(content[len(self._about) :]))

    def save_overload(self, argument_types: Any, result: Any) -> None:
        """Store a compile result; a directory that cannot be written is told once and changes nothing else."""
        for environment in result._find_referenced_environments():  # those of helpers too
            result.library.codegen.set_env(environment.env_name, environment)
        if self.path is None:
            return
        *found, environments = result._reduce()
        # Those of what was inlined hold constants of Python's, which no kernel has; to make one imports its module, and
        # NumPy's functions of Numba take 30 ms of a process's start.
        environments = tuple(one for one in environments if one.consts)
        content = self._about + serialize.dumps((*found, environments))
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
