"""Writes a file as `torch.save` does: a pickle, and the storages of its tensors, in a zip file (`torch_archive.py`)."""

import codecs
import io
import pickle
import sys
from collections import Counter, OrderedDict
from typing import Any, BinaryIO

import numpy as np

from engine.autograd.modes import no_grad
from engine.memory import backend
from engine.nn.parameter import Parameter
from engine.rules import layout
from engine.rules.device import device
from engine.rules.dtypes import dtype
from engine.rules.spec import Size, spec_of
from engine.serialization.torch_archive import Writer
from engine.serialization.torch_names import STORAGES
from engine.tensor import Tensor


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


_PLAIN = (dict, OrderedDict, Counter, list, tuple, set, str, bytes, bytearray, int, float, complex, bool, type(None))
_BUILDERS = (OrderedDict, Counter, bytearray, complex, set, codecs.encode)  # what protocol 2 makes some of them of
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
        self._name("torch", STORAGES[tensor.dtype.name])
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
