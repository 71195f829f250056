"""Objects that are more than data (modules, settings, samplers): a pickle, beside the tensors and arrays it refers to.

The pickle itself holds no tensor and no array, so that reading one takes nothing of NumPy's pickle support, with
which a crafted file makes arrays of pointers. `restricted.py` builds what is harmless or was allowed; the standard
library's unpickler is used only where the caller trusts the file.
"""

import io
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import numpy as np

from engine.rules.dtypes import DTYPES
from engine.serialization import structure
from engine.serialization.container import damaged
from engine.serialization.restricted import RestrictedUnpickler
from engine.tensor import Tensor, _rebuild

_PICKLE = "engine.pickle"
_MARK_OF_VERSION_ONE = b"engine.pickle\n"
_NUMPY_DTYPES = {each.numpy.name: each.numpy for each in DTYPES.values()}

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


# --- writing ----------------------------------------------------------------------------------------------------------


def pack(obj: Any, tensors: dict[str, Tensor]) -> Any:
    """JSON that says where the pickle is and what it refers to; both are put into `tensors`.

    Raises: what pickle raises for lambdas, open files and the like.
    """
    file = io.BytesIO()
    pickler = _Pickler(file, tensors)
    pickler.dump(obj)
    text = np.frombuffer(file.getvalue(), np.uint8)
    return {"object": [structure.pack(text, tensors, _PICKLE), pickler.parts]}


class _Pickler(pickle.Pickler):
    """Hands tensors and arrays out, each once: what was one object is one again when it is read."""

    def __init__(self, file: BinaryIO, tensors: dict[str, Tensor]) -> None:
        super().__init__(file, protocol=4)
        self.parts: list[Any] = []
        self._tensors = tensors
        self._known: dict[int, tuple[int, Any]] = {}

    def persistent_id(self, obj: Any) -> Any:
        if isinstance(obj, Tensor) and type(obj).__reduce_ex__ is Tensor.__reduce_ex__:
            if obj.grad_fn is not None:
                raise RuntimeError("only leaf Tensors can be pickled; call .detach() first")
            return "tensor", self._place(obj, obj), type(obj), obj.__dict__
        if type(obj) is np.ndarray and obj.dtype.name in _NUMPY_DTYPES:
            return "array", self._place(obj, obj)
        if isinstance(obj, np.generic) and obj.dtype.name in _NUMPY_DTYPES:
            return "scalar", self._place(obj, np.array(obj))
        if isinstance(obj, np.dtype) and obj.name in _NUMPY_DTYPES:
            return "dtype", obj.name
        return None

    def _place(self, obj: Any, value: Any) -> int:
        if id(obj) not in self._known:
            self._known[id(obj)] = len(self.parts), obj  # kept alive, so that no other object gets its id
            self.parts.append(structure.pack(value, self._tensors, f"object.{len(self.parts)}"))
        return self._known[id(obj)][0]


# --- reading ----------------------------------------------------------------------------------------------------------


def are_in(content: Any) -> bool:
    """Whether the content of a file is a pickle, and not data."""
    return isinstance(content, dict) and "object" in content


def unpack(content: Any, tensors: dict[str, Tensor], where: str, trusted: bool) -> Any:
    """The object that was pickled. Raises: pickle.UnpicklingError for a class that was not allowed; RuntimeError for
    malformed content.
    """
    try:
        text, parts = content["object"]
        text = structure.unpack(text, tensors, where).tobytes()
        values = [structure.unpack(part, tensors, where) for part in parts]
    except (AttributeError, LookupError, TypeError, ValueError) as cause:
        raise damaged(where, cause) from cause
    if trusted:
        return _TrustingUnpickler(text, values).load()
    return RestrictedUnpickler(text, where, _allowed, lambda identity: _part(identity, values)).load()


class _TrustingUnpickler(pickle.Unpickler):
    def __init__(self, text: bytes, values: list[Any]) -> None:
        super().__init__(io.BytesIO(text))
        self._values = values

    def persistent_load(self, identity: Any) -> Any:
        return _part(identity, self._values)


def _part(identity: Any, values: list[Any]) -> Any:
    """What a pickle refers to."""
    kind, place, *rest = identity
    if kind == "dtype":
        return _NUMPY_DTYPES[place if isinstance(place, str) else ""]
    value = values[place]
    if kind == "scalar":
        return value[()]
    if kind == "tensor":
        wanted, attributes = rest
        values[place] = value = _of_class(value, wanted, attributes)
    return value


def _of_class(tensor: Tensor, wanted: type[Tensor], attributes: dict[str, Any]) -> Tensor:
    """The tensor as the subclass it was of, with the attributes that were set on it."""
    if not (isinstance(wanted, type) and issubclass(wanted, Tensor)):
        raise TypeError(f"expected a class of tensors, got {wanted!r}")
    if type(tensor) is not wanted:
        made = wanted.__new__(wanted)
        Tensor.__init__(made, tensor._array, tensor._spec)
        made._requires_grad = tensor._requires_grad
        tensor = made
    tensor.__dict__.update(attributes)
    return tensor


# --- files of version 0.1.0 -------------------------------------------------------------------------------------------


def is_of_version_one(file: BinaryIO) -> bool:
    """Whether a file begins as whole objects did in version 0.1.0: a pickle from its first byte to its last."""
    start = file.tell()
    mark = file.read(len(_MARK_OF_VERSION_ONE))
    file.seek(start)
    return mark == _MARK_OF_VERSION_ONE


def load_version_one(file: BinaryIO, where: str, trusted: bool, place: Callable[[Tensor, str], Tensor]) -> Any:
    """The object in such a file. Raises: pickle.UnpicklingError unless the caller trusts it."""
    if not trusted:
        raise pickle.UnpicklingError(
            f"load: {where} is a pickle that version 0.1.0 wrote, and reading it can run any code. If you trust the "
            f"file, pass weights_only=False, and save it again"
        )
    file.seek(len(_MARK_OF_VERSION_ONE) + 8, 1)  # the length, in 8 bytes
    return _VersionOneUnpickler(file, place).load()


class _VersionOneUnpickler(pickle.Unpickler):
    def __init__(self, file: BinaryIO, place: Callable[[Tensor, str], Tensor]) -> None:
        super().__init__(file)
        self._place = place

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        if found is not _rebuild:
            return found
        parts = _rebuild.__code__.co_argcount - 1  # without the device
        return lambda *arguments: self._place(found(*arguments[:parts]), *(arguments[parts:] or ("cpu",)))
