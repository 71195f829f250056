"""Objects that are more than data (modules, settings, samplers) in files of `save`.

They are written as pickles, and read as such only where every class in them was allowed, or the caller trusts the file.
"""

import io
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from engine.tensor import _rebuild

MARK = b"engine.pickle\n"  # tells these files from pickles of others, which are never read

# What tensors, dtypes, sizes and NumPy arrays pickle to; calling these builds data and nothing else.
_DATA = {
    ("collections", "OrderedDict"),
    ("engine.device", "device"),
    ("engine.dtypes", "named"),
    ("engine.nn.parameter", "Parameter"),
    ("engine.spec", "Size"),
    ("engine.tensor", "Tensor"),
    ("engine.tensor", "_rebuild"),
    ("ml_dtypes", "bfloat16"),
    ("numpy", "dtype"),
    ("numpy", "ndarray"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "scalar"),
    ("numpy._core.numeric", "_frombuffer"),
}

_allowed: list[Any] = []


def add_safe_globals(safe_globals: list[Any]) -> None:
    """Allows classes and functions in files that `load` reads with `weights_only=True`."""
    _allowed.extend(safe_globals)


def get_safe_globals() -> list[Any]:
    """What `add_safe_globals` has allowed."""
    return list(_allowed)


def clear_safe_globals() -> None:
    """Allows nothing but data again."""
    _allowed.clear()


@contextmanager
def safe_globals(safe_globals: list[Any]) -> Iterator[None]:
    """Allows classes and functions inside a `with` block."""
    before = list(_allowed)
    _allowed.extend(safe_globals)
    try:
        yield
    finally:
        _allowed[:] = before


class _Unpickler(pickle.Unpickler):
    def __init__(self, content: bytes, where: str, trusted: bool, place: Callable[[Any, str], Any]) -> None:
        super().__init__(io.BytesIO(content))
        self._where = where
        self._trusted = trusted
        self._place = place
        self._names = _DATA | {(each.__module__, each.__qualname__) for each in _allowed}

    def find_class(self, module: str, name: str) -> Any:
        if not self._trusted and (module, name) not in self._names:
            raise pickle.UnpicklingError(
                f"load: {self._where} holds {module}.{name}, and building it can run any code. If you trust the file, "
                f"pass weights_only=False, or allow it: engine.serialization.add_safe_globals([{name}])"
            )
        found = super().find_class(module, name)
        if found is _rebuild:
            place, parts = self._place, _rebuild.__code__.co_argcount - 1  # without the device
            return lambda *arguments: place(found(*arguments[:parts]), *(arguments[parts:] or ("cpu",)))
        return found


def dumps(obj: Any) -> bytes:
    """The content of a file. Raises: what pickle raises for lambdas, open files and the like."""
    content = pickle.dumps(obj, protocol=4)
    return MARK + len(content).to_bytes(8, "little") + content


def loads(content: bytes, where: str, trusted: bool, place: Callable[[Any, str], Any]) -> Any:
    """The object in the content of a file, each tensor passed through `place` with the name of its device.

    Raises: pickle.UnpicklingError for a class that was not allowed; RuntimeError for a truncated file.
    """
    start = len(MARK) + 8
    length = int.from_bytes(content[len(MARK) : start], "little")
    if len(content) != start + length:
        raise RuntimeError(f"load: {where} is truncated: {length} bytes were saved, {len(content) - start} are left")
    return _Unpickler(content[start:], where, trusted, place).load()
