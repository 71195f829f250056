"""The safetensors file: a length, a header in JSON, and then the bytes of the tensors, one after another.

https://github.com/huggingface/safetensors describes the format. What is read is checked as its own reader checks it.
Three entries of the metadata are ours, there together or not at all: the content around the tensors, a CRC-32 of each
tensor, and one of the header. Tensors are written and read one at a time, from and into the memory they live in.
"""

import json
import math
import mmap
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from engine.ops.creation.factories import empty_strided
from engine.rules import layout
from engine.rules.dtypes import dtype, named
from engine.tensor import Tensor

_TYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "C64": "complex64",
}
_NAMES = {kind: code for code, kind in _TYPES.items()}
_METADATA = "__metadata__"
_CONTENT, _CHECKSUMS, _HEADER_CHECKSUM = "engine.content", "engine.checksums", "engine.header"
_CONTENT_OF_VERSION_ONE = "engine.structure"  # 0.1.0 wrote this one, and no checksums
_NO_CHECKSUM = "00000000"
_LARGEST_HEADER = 100_000_000  # bytes; the format's own limit
_MOST_DIMENSIONS, _MOST_ELEMENTS = 64, 1 << 58  # that NumPy has
_PIECE = 1 << 24  # bytes read at a time, and summed while they are in the cache


class Entry(NamedTuple):
    """A tensor in a file: where its bytes are, counted from the start of the file, and what they are."""

    name: str
    dtype: dtype
    shape: tuple[int, ...]
    begin: int
    size: int
    checksum: str | None


class Header(NamedTuple):
    """What a file holds: JSON that tells the content around the tensors (None: it is a dict of them), the tensors."""

    content: Any
    entries: list[Entry]


# --- writing ----------------------------------------------------------------------------------------------------------


def write(file: BinaryIO, content: Any, tensors: dict[str, Tensor]) -> None:
    """Writes the whole file. Each tensor is gone through twice, for its checksum and for its bytes."""
    order = sorted(tensors, key=lambda name: -stored(tensors[name].dtype)[1].itemsize)  # aligned, as others write it
    checksums = {name: f"{zlib.crc32(_contiguous(tensors[name])):08x}" for name in order}
    metadata = {
        _HEADER_CHECKSUM: _NO_CHECKSUM,
        "format": "pt",
        _CONTENT: json.dumps(content),
        _CHECKSUMS: json.dumps(checksums),
    }
    text = header_of(metadata, ((name, *_in_file(tensors[name])) for name in order))
    if len(text) > _LARGEST_HEADER:
        raise ValueError(
            f"save: the numbers and strings around the tensors take {len(text) / 1e6:.0f} MB, at most 100 go into a "
            f"file; make tensors or NumPy arrays of long lists of numbers"
        )
    file.write(len(text).to_bytes(8, "little"))
    file.write(text.replace(*_marked(f"{zlib.crc32(text):08x}"), 1))
    file.writelines(_contiguous(tensors[name]) for name in order)


def header_of(metadata: dict[str, str], tensors: Iterable[tuple[str, dtype, Sequence[int]]], align: int = 8) -> bytes:
    """The header of a file with tensors of these names, dtypes and shapes, in the order of their bytes.

    It goes behind its length in 8 bytes. align: what it and its length fill a multiple of, so that tensors begin there.
    """
    header: dict[str, Any] = {_METADATA: metadata}
    begin = 0
    for name, kind, shape in tensors:
        end = begin + math.prod(shape) * kind.itemsize
        header[name] = {"dtype": _NAMES[kind.name], "shape": list(shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header).encode()
    return text + b" " * (-(len(text) + 8) % align)


def stored(kind: dtype) -> tuple[str, dtype]:
    """The format's name for the elements of a tensor, and their dtype: complex128, which it lacks, is pairs."""
    kind = named("float64") if kind.name == "complex128" else kind
    return _NAMES[kind.name], kind


def _in_file(tensor: Tensor) -> tuple[dtype, list[int]]:
    """The dtype and the shape that a tensor has in a file."""
    kind = stored(tensor.dtype)[1]
    return kind, [*tensor.shape, *([2] if kind is not tensor.dtype else [])]


def _contiguous(tensor: Tensor) -> memoryview:
    """The bytes of a tensor in row-major order: its own memory where it lies so."""
    array = tensor.detach().cpu().numpy()
    if not array.flags.c_contiguous:
        scratch = _scratch(array.shape, array.dtype)
        scratch[...] = array
        array = scratch
    return array.reshape(-1).view(np.uint8).data


def _scratch(shape: tuple[int, ...], kind: np.dtype) -> np.ndarray:
    """Memory for a moment, mapped for itself: it goes back to the system, not to this process's heap."""
    size = math.prod(shape) * kind.itemsize
    return np.frombuffer(mmap.mmap(-1, size) if size else bytearray(), np.uint8).view(kind).reshape(shape)


def _marked(checksum: str) -> tuple[bytes, bytes]:
    """The header's checksum as it is written, without and with its value."""
    return tuple(f'"{_HEADER_CHECKSUM}": "{each}"'.encode() for each in (_NO_CHECKSUM, checksum))  # type: ignore[return-value]


# --- reading ----------------------------------------------------------------------------------------------------------


def read_header(file: BinaryIO, where: str) -> Header:
    """Reads and checks everything but the tensors' bytes. `file` is at the beginning of the content.

    Raises: RuntimeError, with the name of the file, for whatever is not such a file, whole and undamaged.
    """
    start = file.tell()
    size = file.seek(0, 2) - start
    file.seek(start)
    prefix = bytes(_read(file, min(8, size), where))
    length = int.from_bytes(prefix, "little")
    first = bytes(_read(file, 1, where)) if size > 8 else b""
    if first != b"{" or length > size - 8 or length > _LARGEST_HEADER:
        raise damaged(where, f"{size} bytes, and no header at their beginning")
    text = first + bytes(_read(file, length - 1, where))
    try:
        header = json.loads(text)
        metadata = header.pop(_METADATA, {})
        content, checksums = _own_metadata(metadata, text)
        return Header(content, list(_entries(header, checksums, start + 8 + length, size - 8 - length)))
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as cause:
        raise damaged(where, cause) from cause


def damaged(where: str, why: object) -> RuntimeError:
    """The error for a file that is not what `save` writes."""
    why = why if isinstance(why, str) else f"{type(why).__name__}: {why}"
    return RuntimeError(
        f"load: {where} is no complete checkpoint: truncated, damaged, or no safetensors file at all ({why})"
    )


def _own_metadata(metadata: dict[str, str], text: bytes) -> tuple[Any, dict[str, str] | None]:
    """The content and the tensors' checksums; (None, None) in files of others."""
    ours = {key for key in metadata if key.startswith("engine.")}
    if not ours:
        return None, None
    if ours == {_CONTENT_OF_VERSION_ONE}:
        return json.loads(metadata[_CONTENT_OF_VERSION_ONE]), None
    content, checksums, expected = (metadata[key] for key in (_CONTENT, _CHECKSUMS, _HEADER_CHECKSUM))
    plain, marked = _marked(expected)
    if f"{zlib.crc32(text.replace(marked, plain, 1)):08x}" != expected:
        raise ValueError("the checksum of the header does not match")
    return json.loads(content), json.loads(checksums)


def _entries(header: dict[str, Any], checksums: dict[str, str] | None, start: int, size: int) -> Iterator[Entry]:
    """The tensors in the order of their bytes, which must fill the file: no gap, no overlap, nothing behind."""
    at = 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        code, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        if code not in _TYPES:
            raise ValueError(f"tensor {name!r} has dtype {code}, known are {', '.join(_TYPES)}")
        kind = named(_TYPES[code])
        if not all(type(each) is int and 0 <= each < 1 << 62 for each in (*shape, begin, end)):
            raise ValueError(f"tensor {name!r}: expected sizes and offsets, got {shape} and {begin, end}")
        if len(shape) > _MOST_DIMENSIONS or math.prod(each or 1 for each in shape) >= _MOST_ELEMENTS:
            raise ValueError(f"tensor {name!r} has a shape that no tensor has: {shape}")
        if begin != at or end - begin != math.prod(shape) * kind.itemsize:
            raise ValueError(
                f"tensor {name!r} of shape {shape} is said to be at {begin} to {end}, the last ended at {at}"
            )
        at = end
        checksum = None if checksums is None else checksums[name]
        yield Entry(name, kind, tuple(shape), start + begin, end - begin, checksum)
    if at != size:
        raise ValueError(f"{size} bytes of tensors are there, {at} are expected")


def read_tensor(file: BinaryIO, entry: Entry, stride: tuple[int, ...] | None, kind: str | None, where: str) -> Tensor:
    """A tensor of the file in the layout it had, in host memory.

    stride: what it had, in elements; None for row-major. kind: the name of its dtype, where the format lacks that.
    Raises: RuntimeError where its bytes are not those that were written.
    """
    of, shape = entry.dtype, entry.shape
    if kind is not None:
        if (of.name, shape[-1:]) != ("float64", (2,)):
            raise damaged(where, f"tensor {entry.name!r} is no pairs of float64")
        of, shape = of.to_complex(), shape[:-1]
    if stride is not None and len(stride) != len(shape):
        raise damaged(where, f"tensor {entry.name!r} of shape {shape} is said to have strides {stride}")
    contiguous = layout.contiguous_strides(shape)
    wanted = contiguous if stride is None else layout.preserve_strides(shape, stride)
    made = empty_strided(shape, wanted, dtype=of)
    array = made.numpy()
    target = array if array.flags.c_contiguous else _scratch(shape, of.numpy)
    octets = target.reshape(-1).view(np.uint8)
    file.seek(entry.begin)
    checksum = 0
    for begin in range(0, entry.size, _PIECE):
        piece = octets[begin : begin + _PIECE].data
        _read_into(file, piece, where)
        checksum = zlib.crc32(piece, checksum)
    if entry.checksum is not None and f"{checksum:08x}" != entry.checksum:
        raise damaged(where, f"the checksum of tensor {entry.name!r} does not match: its bytes have changed")
    if of.name == "bool" and octets.size and octets.max() > 1:
        raise damaged(where, f"tensor {entry.name!r} of dtype bool holds bytes other than 0 and 1")
    if target is not array:
        array[...] = target
    return made


def _read(file: BinaryIO, size: int, where: str) -> bytearray:
    content = bytearray(size)
    _read_into(file, memoryview(content), where)
    return content


def _read_into(file: BinaryIO, target: memoryview, where: str) -> None:
    """Fills `target`; a file that ends before has been cut since its size was looked at."""
    while target:
        if hasattr(file, "readinto"):
            count = file.readinto(target)
        else:
            piece = file.read(len(target))
            count = len(piece)
            target[:count] = piece
        if not count:
            raise damaged(where, f"it ended {len(target)} bytes early, while it was read")
        target = target[count:]
