"""`import engine.torch`, first in a script: from then on `import torch` is answered by this project's packages.

Scripts and libraries written for PyTorch then run without a changed line, and `ddprun --torch` runs them so. Each name
of a module is looked up in the package that stands for it (`PLACES`), when it is asked for. What is not there raises
AttributeError or ModuleNotFoundError with PyTorch's name of it and, where that is known, what to use instead. Without
this import nothing is answered, and where PyTorch is installed, it is not looked at after it.
"""

import importlib
import importlib.abc
import importlib.machinery
import re
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from engine.errors.instead import instead

PLACES = {
    "torch.nn.parallel.distributed": "ddp.distributed",
    "torch.utils.data.distributed": "ddp",
    "torch.distributed": "ddp",
    "torch.utils.data": "engine.data",
    "torch.autograd.profiler": "engine.profiler",
    **dict.fromkeys(
        (
            *("torch._C", "torch._custom_ops", "torch._dynamo.utils", "torch._dynamo", "torch.ao.quantization"),
            *("torch.ao", "torch.compiler", "torch.jit.annotations", "torch.onnx.symbolic_helper", "torch.types"),
            "torch.utils.model_zoo",
        ),
        "engine.inner",
    ),
    "torch": "engine",
}
"""What stands for a module of PyTorch and for all below it; the longest name counts."""

NAMES = {
    "torch.ops.load_library": "engine.library",
    "torch.backends.cuda.sdp_kernel": "engine.nn.attention",
}
"""Functions that are in another module here."""


_NOTHING = object()


class Version(str):
    """PyTorch's version whose names these are, compared by its numbers: with "2.2", or with (2, 2)."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __lt__(self, other: Any) -> bool:
        return _numbers(self) < _numbers(other)

    def __le__(self, other: Any) -> bool:
        return _numbers(self) <= _numbers(other)

    def __gt__(self, other: Any) -> bool:
        return _numbers(self) > _numbers(other)

    def __ge__(self, other: Any) -> bool:
        return _numbers(self) >= _numbers(other)


def _numbers(version: Any) -> tuple[int, ...]:
    text = version if isinstance(version, str) else ".".join(map(str, version))
    return tuple(map(int, re.findall(r"\d+", text.partition("+")[0])))


VERSION = Version("2.13.0+allstride")


class TorchModule(ModuleType):
    """A module of PyTorch's name. Names are read from, and set on, the module that stands for it."""

    def __init__(self, name: str, behind: Any) -> None:
        super().__init__(name, getattr(behind, "__doc__", None))
        self.__dict__["_behind"] = behind
        self.__dict__["_read"] = set()

    def __getattr__(self, name: str) -> Any:
        if name in self._read:  # torch.cat: 1.0 µs, and 12 by the look-up below
            return getattr(self._behind, name)
        if name == "__version__" and self.__name__ == "torch":
            return VERSION
        if name == "__all__":
            return [each for each in dir(self._behind) if not each.startswith("_")]
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        path = f"{self.__name__}.{name}"
        value = _found(path)
        if value is _NOTHING:
            raise AttributeError(_absent(path, _why(self._behind, name)))
        if isinstance(value, ModuleType):
            return importlib.import_module(path)
        if value is getattr(self._behind, name, _NOTHING):
            self._read.add(name)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__") or isinstance(value, ModuleType):
            super().__setattr__(name, value)
        else:
            setattr(self._behind, name, value)

    def __dir__(self) -> list[str]:
        return dir(self._behind)


def _why(behind: Any, name: str) -> str:
    """What the module itself says of a name that it lacks, where it says more than that."""
    try:
        getattr(behind, name)
    except AttributeError as error:
        return str(error).partition(": ")[2]
    return ""


def _absent(path: str, why: str = "") -> str:
    """The text of the error for a name that is not here; `why`: what a module of this project says of it."""
    advice = why or instead(path)
    return f"allstride answers for PyTorch here, and has no {path}" + (f": {advice}" if advice else "")


def _found(path: str) -> Any:
    """What stands for a dotted name of PyTorch; _NOTHING where nothing does."""
    if path in NAMES:
        return getattr(importlib.import_module(NAMES[path]), path.rpartition(".")[2])
    place = next(each for each in PLACES if path == each or path.startswith(f"{each}."))
    found: Any = importlib.import_module(PLACES[place])
    for name in filter(None, path[len(place) :].split(".")):
        child = f"{getattr(found, '__name__', '')}.{name}"
        try:
            found = getattr(found, name)
        except AttributeError:
            if not isinstance(found, ModuleType):
                return _NOTHING
            try:
                found = importlib.import_module(child)
            except ModuleNotFoundError as error:
                if error.name is None or not child.startswith(error.name):
                    raise
                return _NOTHING
    return found


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] != "torch":
            return None
        if not isinstance(_found(fullname), ModuleType):
            # without `name`, or `from torch import x` would swallow it and say less
            raise ModuleNotFoundError(_absent(fullname))
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return TorchModule(spec.name, _found(spec.name))

    def exec_module(self, module: ModuleType) -> None:
        """Nothing: its names are those of another module."""


def _install() -> None:
    if any(isinstance(each, _Finder) for each in sys.meta_path):
        return
    if "torch" in sys.modules:
        raise ImportError("PyTorch is imported already: import engine.torch before it, first in the script")
    importlib.import_module("ddp")  # torch.distributed, and torch.nn.parallel's DistributedDataParallel
    sys.meta_path.insert(0, _Finder())


_install()
