"""`save` and `load`: tensors and plain data in one safetensors file. Nothing in such a file is ever executed on load.

A flat dict of tensors (a state_dict) becomes a plain safetensors file, readable by PyTorch and others; files of theirs
load here, too. Nested dicts, lists, tuples, numbers, strings, bytes and None travel as JSON in the file's metadata,
which also keeps strides, so that channels-last weights come back channels-last. Whole objects are `engine.pickled`'s. A
file is written beside its destination, flushed, and then moved there: it is complete or not there at all.
"""

import base64
import json
import os
import tempfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from engine import layout, pickled
from engine.dtypes import DTYPES, dtype, named
from engine.ops.factories import empty_strided
from engine.ops.from_data import from_numpy
from engine.pickled import add_safe_globals as add_safe_globals
from engine.pickled import clear_safe_globals as clear_safe_globals
from engine.pickled import get_safe_globals as get_safe_globals
from engine.pickled import safe_globals as safe_globals
from engine.tensor import Tensor

Place = Callable[[Tensor, str], Tensor]

_ARRAYS = {each.numpy for each in DTYPES.values()}
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


class _MoreThanDataError(TypeError):
    """Part of an object is no tensor, array or plain data."""


def save(obj: Any, f: str | os.PathLike[str] | BinaryIO) -> None:
    """Writes to a path (atomically) or an open binary file.

    Tensors, NumPy arrays, nested dicts, lists, tuples, numbers, strings, bytes and None become a safetensors file;
    anything else, a module for instance, a pickle, which `load` reads only when its classes are allowed.

    Raises: what pickle raises for lambdas, open files and the like.
    """
    tensors: dict[str, Tensor] = {}
    try:
        content = _encode(_pack(obj, "", tensors), tensors)
    except _MoreThanDataError:
        content = pickled.dumps(obj)
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

    map_location: the device of all tensors, a dict from the names of the devices they were on to devices, or a function
        (tensor in host memory, name of the device it was on) -> Tensor or None; what is not mapped goes where it was.
    weights_only: False to build the objects of a file that was saved with more than data, which can run any code.
    Raises: FileNotFoundError; RuntimeError for a truncated or foreign file, saying which, and for tensors that were on
    a GPU where there is none; nothing is half loaded; pickle.UnpicklingError for classes that were not allowed by
    `add_safe_globals`.
    """
    where = getattr(f, "name", "the file") if hasattr(f, "read") else str(f)
    content = f.read() if hasattr(f, "read") else Path(f).read_bytes()
    place = _placing(map_location)
    if content.startswith(pickled.MARK):
        return pickled.loads(content, where, not weights_only, place)
    structure, tensors = _decode(content, where)
    if structure is None:
        return {name: place(tensor, "cpu") for name, tensor in tensors.items()}
    return _unpack(structure, tensors, where, place)


def _placing(map_location: Any) -> Place:
    """The function that puts a loaded tensor, which is in host memory and was on the device it is told, where
    `map_location` says.
    """
    if map_location is None:
        return _where_it_was
    if isinstance(map_location, dict):
        return lambda tensor, was: _where_it_was(tensor, map_location.get(was, was))
    if callable(map_location):
        return lambda tensor, was: (
            _where_it_was(tensor, was) if (mapped := map_location(tensor, was)) is None else mapped
        )
    return lambda tensor, was: tensor.to(map_location)


def _where_it_was(tensor: Tensor, was: Any) -> Tensor:
    try:
        return tensor if was == "cpu" else tensor.to(was)
    except RuntimeError as cause:
        raise RuntimeError(
            f"load: a tensor was on {was} when it was saved, which is not there now; pass map_location='cpu' to keep "
            f"it in host memory ({cause})"
        ) from cause


# --- the structure around the tensors ---------------------------------------------------------------------------------


def _pack(value: Any, place: str, tensors: dict[str, Tensor]) -> Any:
    """JSON for `value`; its tensors are put into `tensors` under names that tell their place."""
    if isinstance(value, Tensor):
        name = place or "tensor"
        while name in tensors:
            name += "_"
        tensors[name] = value.detach().cpu()
        entry: dict[str, Any] = {"tensor": name, "stride": list(value.stride())}
        entry["requires_grad"] = value.requires_grad and value.is_leaf
        return entry if value.is_cpu else entry | {"device": str(value.device)}
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
    if isinstance(value, np.ndarray) and value.dtype in _ARRAYS:
        return {"array": _pack(from_numpy(value.copy()), place, tensors)}
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, dtype):
        return {"dtype": value.name}
    if isinstance(value, complex):
        return {"complex": [value.real.hex(), value.imag.hex()]}
    raise _MoreThanDataError(f"{place or 'the object'} is a {type(value).__name__}")


def _unpack(value: Any, tensors: dict[str, Tensor], where: str, place: Place) -> Any:
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        tensor = _in_strides(tensors[value["tensor"]], tuple(value["stride"]))
        tensor = place(tensor, value.get("device", "cpu"))
        return tensor.requires_grad_() if value["requires_grad"] else tensor
    ((kind, content),) = value.items()
    if kind == "array":
        return _unpack(content, tensors, where, _where_it_was).numpy()
    if kind in ("dict", "ordered"):
        made: dict[Any, Any] = OrderedDict() if kind == "ordered" else {}
        for key, item in content:
            made[_unpack(key, {}, where, place)] = _unpack(item, tensors, where, place)
        return made
    if kind in ("list", "tuple"):
        items = [_unpack(item, tensors, where, place) for item in content]
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

    # A safetensors file begins with the length of its header, whose bytes can be any, and then the header, JSON.
    if content[8:9] != b"{" and (content[:2] == b"PK" or content[:1] == b"\x80"):
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
