"""What `torch.save` writes: a pickle, and the storages of its tensors, in a zip file (`torch_archive.py`).

A fixed list of names stands for what such a pickle calls; each gives a tensor or plain data and nothing else, and
PyTorch is not needed. Storages that tensors share are shared again. (torch/_weights_only_unpickler.py, torch/_utils.py)
"""

import codecs
import io
import math
import pickle
import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, BinaryIO, NamedTuple, NoReturn

import numpy as np

from engine.autograd.modes import no_grad
from engine.memory import backend
from engine.nn.parameter import Parameter
from engine.ops.creation.factories import empty
from engine.rules import layout
from engine.rules.device import device
from engine.rules.dtypes import DTYPES, dtype, named
from engine.rules.spec import Size, spec_of
from engine.serialization import objects
from engine.serialization.container import damaged
from engine.serialization.restricted import NotAllowedError, RestrictedUnpickler, check_hash
from engine.serialization.torch_archive import Archive, Writer
from engine.tensor import Tensor

_STORAGES = {
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
_OLDER = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19\x2e"  # what files begin with before PyTorch 1.6
_MOST_DIMENSIONS, _LARGEST = 64, 1 << 58  # of an array of NumPy's, in elements

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


# --- reading ----------------------------------------------------------------------------------------------------------


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


class _StorageType(NamedTuple):
    """A class of storages, by the dtype of its elements."""

    kind: dtype


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
        if word != "storage" or type(kind) is not _StorageType or type(count) is not int or count < 0:
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


def _device(kind: Any, index: Any = None) -> device:
    if type(kind) is not str or type(index) not in (int, type(None)):
        raise ValueError("a device without a name")
    return device(kind, index)


_CALLED = {
    ("collections", "OrderedDict"): OrderedDict,
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
_NAMED = {
    **{("torch", storage): _StorageType(named(name)) for name, storage in _STORAGES.items()},
    **{("torch", name): kind for name, kind in DTYPES.items()},
    ("torch", "Tensor"): Tensor,
    ("torch._tensor", "Tensor"): Tensor,
    ("torch.nn.parameter", "Parameter"): Parameter,
}


class _Unpickler(RestrictedUnpickler):
    names = _CALLED | _NAMED
    called = tuple(_CALLED.values())

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


# --- writing ----------------------------------------------------------------------------------------------------------


def write(file: BinaryIO, obj: Any) -> None:
    """Writes tensors and plain data; `torch.load(file, weights_only=True)` reads it.

    Raises: TypeError for what is neither, saying what it is.
    """
    text = io.BytesIO()
    pickler = _Pickler(text)
    pickler.dump(obj)
    archive = Writer(file)
    archive.write("data.pkl", text.getvalue())
    archive.write("byteorder", sys.byteorder.encode())
    for key, storage in enumerate(pickler.storages):
        array = storage.cpu().numpy()
        archive.write(f"data/{key}", array.view(np.uint8).data)
    archive.write("version", b"3\n")
    archive.close()


_PLAIN = (dict, OrderedDict, list, tuple, set, str, bytes, bytearray, int, float, complex, bool, type(None))
_BUILDERS = (OrderedDict, bytearray, complex, set, codecs.encode)  # what protocol 2 makes some of them of
_PythonPickler: Any = pickle._Pickler  # the one in Python, which may write any name


class _Pickler(_PythonPickler):
    """Writes names of PyTorch's, which is not there to be asked for them."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file, protocol=2)
        self.storages: list[Tensor] = []
        self._keys: dict[tuple[int, int, dtype], int] = {}

    def save(self, obj: Any, save_persistent_id: bool = True) -> None:
        if isinstance(obj, Tensor | dtype | device | Size):
            known = self.memo.get(id(obj))
            if known is not None:
                self.write(self.get(known[0]))
                return
            self._save_own(obj)
            self.memoize(obj)
        elif type(obj) in _PLAIN or any(obj is each for each in _BUILDERS):
            super().save(obj)
        else:
            raise TypeError(
                f"save: format='torch' takes tensors and plain data, which torch.load reads with weights_only=True; "
                f"got {type(obj).__name__}: pass a state_dict() for a module, .item() of a number of NumPy's, "
                f"engine.from_numpy of an array"
            )

    def _name(self, module: str, name: str) -> None:
        self.write(pickle.GLOBAL + f"{module}\n{name}\n".encode())

    def _call(self, module: str, name: str, *arguments: Any) -> None:
        self._name(module, name)
        self.save(arguments)
        self.write(pickle.REDUCE)

    def _arguments(self, *rest: Any) -> None:
        """The last arguments of a call, and the call."""
        for each in rest:
            self.save(each)
        self.write(pickle.TUPLE + pickle.REDUCE)

    def _save_own(self, obj: Any) -> None:
        if isinstance(obj, Parameter):
            self._name("torch._utils", "_rebuild_parameter")
            self.write(pickle.MARK)
            self._save_tensor(obj)
            self._arguments(obj.requires_grad, OrderedDict())
        elif isinstance(obj, Tensor):
            self._save_tensor(obj)
        elif isinstance(obj, dtype):
            self._name("torch", obj.name)
        elif isinstance(obj, device):
            self._call("torch", "device", obj.type, *(() if obj.index is None else (obj.index,)))
        else:
            self._call("torch", "Size", tuple(obj))

    def _save_tensor(self, tensor: Tensor) -> None:
        key, storage, offset = self._storage_of(tensor)
        self._name("torch._utils", "_rebuild_tensor_v2")
        self.write(pickle.MARK * 2)
        self.save("storage")
        self._name("torch", _STORAGES[tensor.dtype.name])
        self.save(str(key))
        self.save(str(tensor.device))
        self.save(storage.numel())
        self.write(pickle.TUPLE + pickle.BINPERSID)
        recorded = tensor.requires_grad and not isinstance(tensor, Parameter)
        self._arguments(offset, tuple(tensor.shape), tuple(tensor.stride()), recorded, OrderedDict())

    def _storage_of(self, tensor: Tensor) -> tuple[int, Tensor, int]:
        """The number of the storage a tensor is on, that storage as a tensor, and where in it the tensor begins."""
        if tensor._array is None:
            raise TypeError("save: a tensor on the meta device has no elements")
        block = tensor.untyped_storage()
        size = tensor.itemsize
        offset, rest = divmod(tensor.data_ptr() - block.data_ptr(), size)
        if tensor.numel() == 0:
            offset = rest = 0
        # Memory seen as several dtypes may begin or end within an element: then the tensor's own stretch is saved.
        whole = rest == 0 and block.nbytes() % size == 0
        begin = block.data_ptr() if whole else tensor.data_ptr()
        count = block.nbytes() // size if whole else layout.storage_size(tuple(tensor.shape), tensor.stride())
        identity = begin, count, tensor.dtype
        if identity not in self._keys:
            with no_grad():
                flat = spec_of((count,), (1,), tensor.dtype, tensor.device)
                array = backend.strided_view(tensor._array, flat, -offset if whole else 0)
                self.storages.append(Tensor(array, flat))
            self._keys[identity] = len(self._keys)
        key = self._keys[identity]
        return key, self.storages[key], offset if whole else 0


def _is_codec(obj: Any) -> bool:
    """Whether this is the function by which protocol 2 writes bytes."""
    import codecs

    return obj is codecs.encode
