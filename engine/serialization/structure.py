"""What stands around the tensors of a file, as JSON: nested dicts, lists, tuples, numbers, strings, bytes and None.

A tensor's place in it says which tensor of the file it is, its strides, its device, and whether it requires a gradient.
"""

import base64
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from engine.ops.creation.from_data import from_numpy
from engine.rules.dtypes import DTYPES, dtype, named
from engine.serialization.container import damaged
from engine.tensor import Tensor

_ARRAYS = {each.numpy for each in DTYPES.values()}


class MoreThanDataError(TypeError):
    """Part of an object is no tensor, array or plain data."""


class Description(NamedTuple):
    """What a file says of a tensor beside its values. placed: whether `map_location` concerns it."""

    stride: tuple[int, ...] | None
    dtype: str | None
    device: str
    placed: bool


PLAIN = Description(None, None, "cpu", True)
"""Of a tensor in a file of others, and of the parts of a file that nothing refers to."""


# --- writing ----------------------------------------------------------------------------------------------------------


def pack(value: Any, tensors: dict[str, Tensor], place: str = "") -> Any:
    """JSON for `value`; its tensors are put into `tensors` under names that tell their place.

    Raises: MoreThanDataError.
    """
    if isinstance(value, Tensor):
        return _pack_tensor(value, tensors, place)
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
                [_pack_key(key), pack(item, tensors, f"{place}.{key}" if place else str(key))]
                for key, item in value.items()
            ]
        }
    if isinstance(value, list | tuple):
        return {
            "list" if isinstance(value, list) else "tuple": [
                pack(item, tensors, f"{place}.{i}" if place else str(i)) for i, item in enumerate(value)
            ]
        }
    if isinstance(value, np.ndarray) and value.dtype in _ARRAYS:
        return {"array": pack(from_numpy(value.copy()), tensors, place)}
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, dtype):
        return {"dtype": value.name}
    if isinstance(value, complex):
        return {"complex": [value.real.hex(), value.imag.hex()]}
    raise MoreThanDataError(f"{place or 'the object'} is a {type(value).__name__}")


def _pack_key(key: Any) -> Any:
    held: dict[str, Tensor] = {}
    packed = pack(key, held)
    if held:
        raise MoreThanDataError("a key is a tensor")
    return packed


def _pack_tensor(value: Tensor, tensors: dict[str, Tensor], place: str) -> dict[str, Any]:
    name = place or "tensor"
    while name in tensors or name == "__metadata__":
        name += "_"
    tensors[name] = value.detach()
    entry: dict[str, Any] = {"tensor": name, "stride": list(value.stride())}
    entry["requires_grad"] = value.requires_grad and value.is_leaf
    if value.dtype.name == "complex128":
        entry["dtype"] = value.dtype.name
    if not value.is_cpu:
        entry["device"] = str(value.device)
    return entry


# --- reading ----------------------------------------------------------------------------------------------------------


def described_tensors(content: Any, where: str) -> dict[str, Description]:
    """What the content says of each tensor. Raises: RuntimeError for a malformed description."""
    try:
        return {entry["tensor"]: _description(entry, placed) for entry, placed in tensors_in(content)}
    except (AttributeError, LookupError, TypeError, ValueError) as cause:
        raise damaged(where, cause) from cause


def tensors_in(content: Any) -> Iterator[tuple[dict[str, Any], bool]]:
    """What the content says of each tensor in it, and whether that is one, and not an array."""
    waiting = [(content, True)]
    while waiting:
        value, placed = waiting.pop()
        if isinstance(value, dict) and "tensor" in value:
            yield value, placed
        elif isinstance(value, dict):
            waiting += [(each, placed and kind != "array") for kind, each in value.items()]
        elif isinstance(value, list):
            waiting += [(each, placed) for each in value]


def _description(entry: dict[str, Any], placed: bool) -> Description:
    stride = tuple(entry["stride"])
    if not all(type(step) is int and 0 <= step < 1 << 62 for step in stride):
        raise ValueError(f"tensor {entry['tensor']!r}: expected strides, got {entry['stride']}")
    kind = entry.get("dtype")
    if kind not in (None, "complex128"):
        raise ValueError(f"tensor {entry['tensor']!r}: unknown dtype {kind!r}")
    return Description(stride, kind, str(entry.get("device", "cpu")), placed)


def unpack(content: Any, tensors: dict[str, Tensor], where: str) -> Any:
    """The value that was packed, its tensors taken from `tensors`. Raises: RuntimeError for malformed content."""
    try:
        return _unpack(content, tensors)
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as cause:
        raise damaged(where, cause) from cause


def _unpack(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, list):
        raise ValueError("a list stands where a value is expected")
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        tensor = tensors[value["tensor"]]
        wanted = value["requires_grad"] and (tensor.dtype.is_floating_point or tensor.dtype.is_complex)
        return tensor.requires_grad_() if wanted else tensor
    ((kind, content),) = value.items()
    if kind in ("list", "tuple", "dict", "ordered") and not isinstance(content, list):
        raise TypeError(f"expected a list of what is in a {kind}, got {content!r:.100}")
    if kind in ("list", "tuple"):
        items = [_unpack(item, tensors) for item in content]
        return items if kind == "list" else tuple(items)
    if kind in ("dict", "ordered"):
        made: dict[Any, Any] = OrderedDict() if kind == "ordered" else {}
        for key, item in content:
            made[_unpack(key, {})] = _unpack(item, tensors)
        return made
    if kind not in _READERS:
        raise ValueError(f"it was written by a newer version: it holds a {kind!r}")
    return _READERS[kind](content, tensors)


def _read_array(content: Any, tensors: dict[str, Tensor]) -> np.ndarray:
    return tensors[content["tensor"]].numpy()


def _read_complex(content: Any, tensors: dict[str, Tensor]) -> complex:
    real, imaginary = map(float.fromhex, content)
    return complex(real, imaginary)


_READERS: dict[str, Callable[[Any, dict[str, Tensor]], Any]] = {
    "array": _read_array,
    "float": lambda content, tensors: float.fromhex(content),
    "bytes": lambda content, tensors: base64.b64decode(content, validate=True),
    "dtype": lambda content, tensors: named(content),
    "complex": _read_complex,
}
