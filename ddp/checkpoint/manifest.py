"""The manifest of a generation: what state it holds, in which files its bytes are, and their checksums, as JSON.

    {"format": "allstride checkpoint", "version": 1, "checksum": CRC-32 of this text with zeros in its place,
     "step": 100, "ranks": 4,
     "files": {"00000.safetensors": {"size": 4096, "header": 1024, "checksum": of the first 1024 bytes}, ...},
     "tensors": {"model.conv.weight": {"dtype": "float32", "shape": [16, 1, 3, 3], "order": [0, 2, 3, 1],
                                       "pieces": [{"file": "00000.safetensors", "key": "model.conv.weight",
                                                   "offset": 1024, "size": 576, "checksum": "0a1b2c3d"}, ...]}, ...},
     "state": {"model": JSON of engine/serialization/structure.py, ...}}

A tensor's bytes are its memory, axes in `order` from the slowest to the fastest: the pieces one after another, which
are row-major with the sizes in that order. A generation is complete when its manifest is there, which is written last.
"""

import json
import math
import re
import zlib
from dataclasses import asdict, dataclass
from typing import Any

from engine.rules.dtypes import DTYPES

NAME = "manifest.json"
_FORMAT, _VERSION = "allstride checkpoint", 1
_NO_CHECKSUM = "00000000"
_MOST_DIMENSIONS, _MOST_ELEMENTS = 64, 1 << 58  # that NumPy has
_FILE = re.compile(r"[0-9]{5,}\.safetensors")


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of a tensor in a file: `size` from `offset` on, under `key` for readers of safetensors."""

    file: str
    key: str
    offset: int
    size: int
    checksum: str


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor: its dtype's name, its shape, its axes from the slowest in memory to the fastest, its pieces."""

    dtype: str
    shape: tuple[int, ...]
    order: tuple[int, ...]
    pieces: tuple[Piece, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize


@dataclass(frozen=True, slots=True)
class File:
    """A file of a generation: all its bytes, and those before its tensors."""

    size: int
    header: int
    checksum: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """See the module. step: None where none was given."""

    step: int | None
    ranks: int
    files: dict[str, File]
    tensors: dict[str, Stored]
    state: dict[str, Any]

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files.values())

    def encode(self) -> bytes:
        """The text of the file."""
        head = {"format": _FORMAT, "version": _VERSION, "checksum": _NO_CHECKSUM}
        text = json.dumps(head | asdict(self), separators=(",", ":")).encode()
        return text.replace(*_marked(f"{zlib.crc32(text):08x}"), 1)


def _marked(checksum: str) -> tuple[bytes, bytes]:
    """The checksum as it stands in the text, without and with its value."""
    return f'"checksum":"{_NO_CHECKSUM}"'.encode(), f'"checksum":"{checksum}"'.encode()


def damaged(where: object, why: object) -> RuntimeError:
    """The error for a generation that is not what `save` wrote."""
    why = why if isinstance(why, str) else f"{type(why).__name__}: {why}"
    return RuntimeError(f"checkpoint: {where} is damaged: {why}")


def decode(text: bytes, where: object) -> Manifest:
    """The manifest with this text. Raises: RuntimeError, naming `where`, unless it is one, whole and consistent."""
    try:
        fields = json.loads(text)
        if not isinstance(fields, dict) or fields.get("format") != _FORMAT:
            raise ValueError("it is no manifest of a checkpoint")
        if fields["version"] != _VERSION:
            raise ValueError(f"it was written by a newer version: {fields['version']!r}")
        plain, marked = _marked(fields["checksum"])
        if f"{zlib.crc32(text.replace(marked, plain, 1)):08x}" != fields["checksum"]:
            raise ValueError("the checksum of the manifest does not match")
        files = {
            _name(name): File(_size(file["size"]), _size(file["header"]), _text(file["checksum"]))
            for name, file in fields["files"].items()
        }
        tensors = {name: _stored(entry) for name, entry in fields["tensors"].items()}
        _check_places(files, tensors)
        step = None if fields["step"] is None else _size(fields["step"])
        if not isinstance(fields["state"], dict):
            raise TypeError("its state is no object")
        return Manifest(step, _size(fields["ranks"]), files, tensors, fields["state"])
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as cause:
        raise damaged(where, cause) from cause


def _name(name: str) -> str:
    if not _FILE.fullmatch(name):
        raise ValueError(f"it names a file {name!r}")
    return name


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a string, got {value!r:.100}")
    return value


def _size(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise ValueError(f"expected a size or an offset, got {value!r:.100}")
    return value


def _stored(entry: dict[str, Any]) -> Stored:
    shape, order = tuple(map(_size, entry["shape"])), tuple(map(_size, entry["order"]))
    pieces = tuple(map(_piece, entry["pieces"]))
    if len(shape) > _MOST_DIMENSIONS or math.prod(each or 1 for each in shape) >= _MOST_ELEMENTS:
        raise ValueError(f"a tensor has a shape that no tensor has: {shape}")
    if sorted(order) != list(range(len(shape))):
        raise ValueError(f"a tensor of shape {shape} has axes in the order {order}")
    stored = Stored(entry["dtype"], shape, order, pieces)
    if stored.nbytes != sum(piece.size for piece in pieces):
        raise ValueError(f"a tensor of shape {shape} and dtype {stored.dtype} has {pieces}"[:200])
    return stored


def _piece(entry: dict[str, Any]) -> Piece:
    checksum = _text(entry["checksum"])
    return Piece(_name(entry["file"]), _text(entry["key"]), _size(entry["offset"]), _size(entry["size"]), checksum)


def _check_places(files: dict[str, File], tensors: dict[str, Stored]) -> None:
    """Pieces lie in the files, behind the header, none over another: what is read is no more than is there."""
    places = sorted({(p.file, p.offset, p.size) for stored in tensors.values() for p in stored.pieces})
    at = {name: file.header for name, file in files.items()}
    for file, offset, size in places:
        if offset < at[file]:
            raise ValueError(f"pieces overlap in {file} at {offset}")
        at[file] = offset + size
    for name, end in at.items():
        if end > files[name].size:
            raise ValueError(f"{name} has {files[name].size} bytes, {end} are expected")
