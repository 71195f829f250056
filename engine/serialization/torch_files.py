"""Reads what `torch.save` writes: a pickle, and the storages of its tensors, in a zip file (`torch_archive.py`).

PyTorch is not needed: `torch_names.py` stands for what such a pickle calls. Storages that tensors share are shared
again.
"""

import io
import pickle
import sys
from collections.abc import Callable
from typing import Any, BinaryIO, NoReturn

import numpy as np

from engine.ops.creation.factories import empty
from engine.rules.dtypes import dtype
from engine.serialization import objects
from engine.serialization.container import damaged
from engine.serialization.restricted import NotAllowedError, RestrictedUnpickler
from engine.serialization.torch_archive import Archive
from engine.serialization.torch_names import CALLED, NAMED, StorageType
from engine.tensor import Tensor

_OLDER = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19\x2e"  # what files begin with before PyTorch 1.6

Place = Callable[[Tensor, str], Tensor]


def is_one(file: BinaryIO, where: str) -> bool:
    """Whether a file begins as those of torch.save do. Raises: RuntimeError for other pickles, naming the file."""
    start = file.tell()
    head = file.read(len(_OLDER))
    file.seek(start)
    # A safetensors file begins with a length, whose bytes can be any, and then a brace.
    if head[8:9] == b"{":
        return False
    if head[:1] == b"\x80":
        which = "torch.save of PyTorch before 1.6 wrote it" if head == _OLDER else "nothing of it is a tensor's file"
        raise RuntimeError(
            f"load: {where} is a bare pickle ({which}), and pickles are not executed here; load it with PyTorch and "
            f"save it again"
        )
    return head[:4] == b"PK\x03\x04"


def read(file: BinaryIO, where: str, trusted: bool, place: Place) -> Any:
    """What was saved. Each storage is read into the memory that its tensors have from then on.

    trusted: whether the pickle may call what it names, apart from PyTorch's own classes.
    place: see `engine.serialization.load`; called once for each storage, with a tensor of one axis.
    Raises: RuntimeError for a damaged file; pickle.UnpicklingError for a name that is not allowed.
    """
    archive = Archive(file, where)
    if "constants.pkl" in archive:
        raise RuntimeError(
            f"load: {where} is a program of TorchScript, not a file of tensors; load it with torch.jit.load, and save "
            f"its state_dict()"
        )
    order = archive.read("byteorder") if "byteorder" in archive else b"little"
    if order not in (b"little", b"big"):
        raise damaged(where, "its byte order is neither little nor big")
    storages = _Storages(archive, order.decode() != sys.byteorder, place, where)
    text = archive.read("data.pkl")
    if trusted:
        return _TrustingUnpickler(text, where, storages).load()
    return _Unpickler(text, where, objects.get_safe_globals(), storages.find).load()


class _Storages:
    """The storages of an archive as tensors of one axis, each read once."""

    def __init__(self, archive: Archive, swapped: bool, place: Place, where: str) -> None:
        self._archive, self._swapped, self._place, self._where = archive, swapped, place, where
        self._read: dict[str, Tensor] = {}

    def find(self, identity: Any) -> Tensor:
        """The storage that a pickle refers to."""
        if type(identity) is not tuple or len(identity) != 5:
            raise ValueError("a reference that is none to a storage")
        word, kind, key, location, count = identity
        if word != "storage" or type(kind) is not StorageType or type(count) is not int or count < 0:
            raise ValueError("a reference that is none to a storage")
        if type(key) is not str or type(location) is not str:
            raise ValueError("a storage without a name or a place")
        storage = self._read.get(key)
        if storage is None:
            storage = self._read[key] = self._place(self._load(f"data/{key}", kind.kind, count), location)
        if storage.dtype is not kind.kind or storage.numel() != count:
            raise ValueError(f"storage {key!r:.100} is said to be two things")
        return storage

    def _load(self, name: str, kind: dtype, count: int) -> Tensor:
        if self._archive.size_of(name) != count * kind.itemsize:
            raise ValueError(f"record {name!r:.100} does not hold {count} elements of {kind.name}")
        storage = empty(count, dtype=kind)
        octets = storage.numpy().view(np.uint8)
        self._archive.read_into(name, octets)
        if kind.name == "bool" and octets.size and octets.max() > 1:
            raise ValueError(f"record {name!r:.100} of dtype bool holds bytes other than 0 and 1")
        if self._swapped and kind.itemsize > 1:
            part = kind.to_real().itemsize if kind.is_complex else kind.itemsize
            octets.view(f"u{part}").byteswap(inplace=True)
        return storage


class _Unpickler(RestrictedUnpickler):
    names = CALLED | NAMED
    called = tuple(CALLED.values())

    def find_class(self, module: str, name: str) -> Any:
        return super().find_class(module, name) if _known(module, name) else _refuse(self._where, module, name)

    dispatch = RestrictedUnpickler.dispatch | {
        opcode[0]: pickle._Unpickler.dispatch[opcode[0]]
        for opcode in (pickle.GLOBAL, pickle.BINPUT, pickle.LONG_BINPUT)
    }


class _TrustingUnpickler(pickle.Unpickler):
    def __init__(self, text: bytes, where: str, storages: _Storages) -> None:
        super().__init__(io.BytesIO(text))
        self._where = where
        self.persistent_load = storages.find  # type: ignore[method-assign]

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _Unpickler.names:
            return _Unpickler.names[module, name]
        return super().find_class(module, name) if _known(module, name) else _refuse(self._where, module, name)


def _known(module: str, name: str) -> bool:
    return module.partition(".")[0] != "torch" or (module, name) in _Unpickler.names


def _refuse(where: str, module: str, name: str) -> NoReturn:
    raise NotAllowedError(
        f"load: {where} holds {module}.{name}, which has no counterpart here; in PyTorch, save a state_dict() of dense "
        f"tensors and plain data"
    )
