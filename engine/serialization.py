"""`save` and `load`: tensors and plain data in one safetensors file. Nothing is ever executed on load.

A flat dict of tensors (a state_dict) becomes a plain safetensors file, readable by PyTorch and others; files of
theirs load here, too. Nested dicts, lists, tuples, numbers, strings, bytes and None travel as JSON in the file's
metadata, which also keeps strides, so that channels-last weights come back channels-last. A file is written beside
its destination, flushed, and then moved there: it is complete or not there at all.
"""

import base64
import json
import os
import tempfile
from collections import OrderedDict
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from engine import layout
from engine.dtypes import dtype, named
from engine.ops.factories import empty_strided
from engine.tensor import Tensor

_STRUCTURE = "engine.structure"
_FROM_FILE = {
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
    "C128": "complex128",
}


def save(obj: Any, f: str | os.PathLike[str] | BinaryIO) -> None:
    """Writes tensors, nested dicts, lists, tuples, numbers, strings, bytes and None to a path (atomically) or an open
    binary file.

    Raises: TypeError naming the place and type of anything else.
    """
    tensors: dict[str, Tensor] = {}
    content = _encode(_pack(obj, "", tensors), tensors)
    if hasattr(f, "write"):
        f.write(content)
        return
    path = Path(f)
    handle, temporary = tempfile.mkstemp(dir=path.parent or ".", prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def load(f: str | os.PathLike[str] | BinaryIO, map_location: Any = None, *, weights_only: bool = True) -> Any:
    """Reads what `save` wrote, or any safetensors file (then a dict of tensors).

    map_location: the device of all tensors. weights_only exists for PyTorch's sake; False changes nothing, since there
        is no pickle to run.
    Raises: FileNotFoundError; RuntimeError for a truncated or foreign file, saying which; nothing is half loaded.
    """
    where = getattr(f, "name", "the file") if hasattr(f, "read") else str(f)
    content = f.read() if hasattr(f, "read") else Path(f).read_bytes()
    structure, tensors = _decode(content, where)
    if map_location is not None:
        tensors = {name: tensor.to(map_location) for name, tensor in tensors.items()}
    return dict(tensors) if structure is None else _unpack(structure, tensors, where)


# --- the structure around the tensors ---------------------------------------------------------------------------------


def _pack(value: Any, place: str, tensors: dict[str, Tensor]) -> Any:
    """JSON for `value`; its tensors are put into `tensors` under names that tell their place."""
    if isinstance(value, Tensor):
        name = place or "tensor"
        while name in tensors:
            name += "_"
        tensors[name] = value.detach().cpu()
        return {"tensor": name, "stride": list(value.stride()), "requires_grad": value.requires_grad and value.is_leaf}
    if value is None or isinstance(value, bool | str) or type(value) is int:
        return value
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return {"float": float(value).hex()}  # exact, infinities and NaN included
    if isinstance(value, dict):
        kind = "ordered" if isinstance(value, OrderedDict) else "dict"
        return {
            kind: [
                [_pack(key, "", {}), _pack(item, f"{place}.{key}" if place else str(key), tensors)]
                for key, item in value.items()
            ]
        }
    if isinstance(value, list | tuple):
        return {
            "list" if isinstance(value, list) else "tuple": [
                _pack(item, f"{place}.{i}" if place else str(i), tensors) for i, item in enumerate(value)
            ]
        }
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, dtype):
        return {"dtype": value.name}
    if isinstance(value, complex):
        return {"complex": [value.real.hex(), value.imag.hex()]}
    raise TypeError(
        f"save: {place or 'the object'} is a {type(value).__name__}; expected tensors, dicts, lists, tuples, numbers, "
        f"strings, bytes or None "
        "(save a module's state_dict(), not the module)"
    )


def _unpack(value: Any, tensors: dict[str, Tensor], where: str) -> Any:
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        tensor = _in_strides(tensors[value["tensor"]], tuple(value["stride"]))
        return tensor.requires_grad_() if value["requires_grad"] else tensor
    ((kind, content),) = value.items()
    if kind in ("dict", "ordered"):
        made: dict[Any, Any] = OrderedDict() if kind == "ordered" else {}
        for key, item in content:
            made[_unpack(key, {}, where)] = _unpack(item, tensors, where)
        return made
    if kind in ("list", "tuple"):
        items = [_unpack(item, tensors, where) for item in content]
        return items if kind == "list" else tuple(items)
    readers: dict[str, Any] = {
        "float": float.fromhex,
        "bytes": base64.b64decode,
        "dtype": named,
        "complex": lambda parts: complex(*map(float.fromhex, parts)),
    }
    if kind not in readers:
        raise RuntimeError(f"load: {where} was written by a newer version: it holds a {kind!r}")
    return readers[kind](content)


def _in_strides(tensor: Tensor, stride: tuple[int, ...]) -> Tensor:
    wanted = layout.preserve_strides(tuple(tensor.shape), stride)
    if wanted == tensor.stride():
        return tensor
    return empty_strided(tensor.shape, wanted, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


# --- the safetensors file ---------------------------------------------------------------------------------------------


def _encode(structure: Any, tensors: dict[str, Tensor]) -> bytes:
    from safetensors.numpy import save as encode

    arrays = {name: np.ascontiguousarray(tensor.numpy()).reshape(tensor.shape) for name, tensor in tensors.items()}
    return encode(arrays, {_STRUCTURE: json.dumps(structure), "format": "pt"})


def _decode(content: bytes, where: str) -> tuple[Any, dict[str, Tensor]]:
    from safetensors import SafetensorError, deserialize

    if content[:2] == b"PK" or content[:1] == b"\x80":
        raise RuntimeError(
            f"load: {where} is a pickle (torch.save wrote it), and pickles are not executed here; save it with "
            f"safetensors.torch.save_file"
        )
    try:
        entries = deserialize(content)
        length = int.from_bytes(content[:8], "little")
        metadata = json.loads(content[8 : 8 + length]).get("__metadata__", {})
        structure = json.loads(metadata[_STRUCTURE]) if _STRUCTURE in metadata else None
    except (SafetensorError, ValueError) as cause:
        raise RuntimeError(
            f"load: {where} is no complete checkpoint: truncated, or no safetensors file at all ({cause})"
        ) from cause
    tensors = {}
    for name, entry in entries:
        if entry["dtype"] not in _FROM_FILE:
            raise RuntimeError(
                f"load: {where}: tensor {name!r} has dtype {entry['dtype']}, known are {', '.join(_FROM_FILE)}"
            )
        kind = named(_FROM_FILE[entry["dtype"]])
        shape = tuple(entry["shape"])
        made = empty_strided(shape, layout.contiguous_strides(shape), dtype=kind)
        made.numpy()[...] = np.frombuffer(entry["data"], kind.numpy).reshape(shape)
        tensors[name] = made
    return structure, tensors
