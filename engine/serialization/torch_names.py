"""What stands for the names in a pickle of `torch.save`: a fixed list, each of which gives a tensor or plain data.

(torch/_weights_only_unpickler.py, torch/_utils.py)
"""

import math
from collections import Counter, OrderedDict
from typing import Any, NamedTuple

from engine.memory import backend
from engine.nn.parameter import Parameter
from engine.rules import layout
from engine.rules.device import device
from engine.rules.dtypes import DTYPES, dtype, named
from engine.rules.spec import Size, spec_of
from engine.serialization.restricted import check_hash
from engine.tensor import Tensor

STORAGES = {
    "bool": "BoolStorage",
    "uint8": "ByteStorage",
    "int8": "CharStorage",
    "int16": "ShortStorage",
    "int32": "IntStorage",
    "int64": "LongStorage",
    "float16": "HalfStorage",
    "bfloat16": "BFloat16Storage",
    "float32": "FloatStorage",
    "float64": "DoubleStorage",
    "complex64": "ComplexFloatStorage",
    "complex128": "ComplexDoubleStorage",
}
_MOST_DIMENSIONS, _LARGEST = 64, 1 << 58  # of an array of NumPy's, in elements


class StorageType(NamedTuple):
    """A class of storages, by the dtype of its elements."""

    kind: dtype


def _is_sizes(value: Any) -> bool:
    return isinstance(value, tuple) and all(type(each) is int and 0 <= each < 1 << 62 for each in value)


def _tensor(
    storage: Any, offset: Any, size: Any, stride: Any, requires_grad: Any, hooks: Any = None, metadata: Any = None
) -> Tensor:
    """A tensor on a storage (torch._utils._rebuild_tensor_v2)."""
    if not (isinstance(storage, Tensor) and storage.dim() == 1 and _is_sizes((offset,))):
        raise ValueError("a tensor without a storage")
    if not (_is_sizes(size) and _is_sizes(stride) and len(size) == len(stride) <= _MOST_DIMENSIONS):
        raise ValueError("a tensor whose sizes and strides are none")
    if math.prod(each or 1 for each in size) >= _LARGEST:
        raise ValueError("a tensor with sizes that no tensor has")
    if layout.storage_size(size, stride) + offset > storage.numel() and 0 not in size:
        raise ValueError(f"a tensor that reaches beyond its storage of {storage.numel()} elements")
    if hooks or metadata:
        raise ValueError("a tensor with hooks, or one that is conjugated lazily (call resolve_conj() before saving)")
    spec = spec_of(size, stride, storage.dtype, storage.device)
    offset = 0 if 0 in size else offset
    array = storage._array
    made = Tensor(None if array is None else backend.strided_view(array, spec, offset), spec)  # None: on "meta"
    return made.requires_grad_(_truth(requires_grad))


def _truth(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError("a flag that is neither True nor False")
    return value


def _parameter(data: Any, requires_grad: Any, hooks: Any = None, state: Any = None) -> Parameter:
    """torch._utils._rebuild_parameter and _rebuild_parameter_with_state."""
    if not isinstance(data, Tensor) or hooks:
        raise ValueError("a parameter without a tensor, or with hooks")
    return _with_state(Parameter(data.detach(), _truth(requires_grad)), state)


def _with_state(tensor: Any, state: Any) -> Any:
    """Sets the attributes that somebody has set on a tensor: of those that tensors have, none is changed."""
    for name, value in (state or {}).items():
        if type(name) is not str or hasattr(tensor, name):
            raise ValueError("a tensor with attributes that tensors have already")
        setattr(tensor, name, value)
    return tensor


def _from_type(function: Any, kind: Any, arguments: Any, state: Any) -> Any:
    """torch._tensor._rebuild_from_type_v2: a tensor with attributes."""
    if not any(function is each for each in (_tensor, _parameter)) or kind not in (Tensor, Parameter):
        raise ValueError("a tensor of a class of its own")
    if type(arguments) is not tuple or not (state is None or type(state) is dict):
        raise ValueError("a tensor with attributes that are none")
    return _with_state(function(*arguments), state)


def _encoded(text: Any, encoding: Any) -> bytes:
    """Bytes, as protocol 2 writes them (_codecs.encode)."""
    if type(text) is not str or encoding not in ("latin1", "latin-1"):
        raise ValueError("bytes that are no text in latin-1")
    return text.encode("latin-1")


def _octets(text: Any = "", encoding: Any = "latin-1") -> bytearray:
    return bytearray(text) if type(text) is bytes else bytearray(_encoded(text, encoding))


def _set(content: Any = ()) -> set[Any]:
    if type(content) is not list:
        raise ValueError("a set of something else than a list")
    for each in content:
        check_hash(each)
    return set(content)


def _complex(real: Any, imaginary: Any) -> complex:
    if type(real) is not float or type(imaginary) is not float:
        raise ValueError("a complex number whose parts are none")
    return complex(real, imaginary)


def _counter(counts: Any) -> "Counter[Any]":
    """What MultiStepLR has its milestones in."""
    if type(counts) is not dict or any(type(each) is not int for each in counts.values()):
        raise ValueError("a counter of what has no counts")
    return Counter(counts)


def _device(kind: Any, index: Any = None) -> device:
    if type(kind) is not str or type(index) not in (int, type(None)):
        raise ValueError("a device without a name")
    return device(kind, index)


CALLED = {
    ("collections", "OrderedDict"): OrderedDict,
    ("collections", "Counter"): _counter,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("torch._utils", "_rebuild_parameter_with_state"): _parameter,
    ("torch._tensor", "_rebuild_from_type_v2"): _from_type,
    ("torch", "Size"): Size,
    ("torch", "device"): _device,
    ("_codecs", "encode"): _encoded,
    **{(builtins, "bytearray"): _octets for builtins in ("builtins", "__builtin__")},
    **{(builtins, "set"): _set for builtins in ("builtins", "__builtin__")},
    **{(builtins, "complex"): _complex for builtins in ("builtins", "__builtin__")},
}
NAMED = {
    **{("torch", storage): StorageType(named(name)) for name, storage in STORAGES.items()},
    **{("torch", name): kind for name, kind in DTYPES.items()},
    ("torch", "Tensor"): Tensor,
    ("torch._tensor", "Tensor"): Tensor,
    ("torch.nn.parameter", "Parameter"): Parameter,
}
