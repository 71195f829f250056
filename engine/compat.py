"""PyTorch's modules that have nothing of their own here, one class each: what they hold answers a question with no,
says that something is not possible, or is another module's under a second name. `module` makes modules of the classes,
so that they can be imported; to type checkers they are the classes.
"""

import importlib
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final, NoReturn, TypeVar

from engine.errors.absent import absent
from engine.rules import precision
from engine.rules.device import cuda_without_index, device

Class = TypeVar("Class", bound=type)
Anything = TypeVar("Anything")


class _Module(ModuleType):
    """A module of PyTorch's name. `renamed`: names that stand for another module's, "engine.cuda:synchronize"."""

    def __init__(self, name: str, content: type, renamed: Mapping[str, str]) -> None:
        super().__init__(name, content.__doc__)
        self.__dict__["__all__"] = sorted({key for key in (*vars(content), *renamed) if not key.startswith("_")})
        self.__dict__["__path__"] = []
        for key, value in vars(content).items():
            if not key.startswith("__"):
                self.__dict__[key] = value.__func__ if isinstance(value, staticmethod) else value
        self.__dict__["_renamed"] = renamed

    def __getattr__(self, name: str) -> Any:
        where = self.__dict__["_renamed"].get(name)
        if where is None:
            raise absent(self.__name__, name)
        path, _, attribute = where.partition(":")
        found = importlib.import_module(path)
        return getattr(found, attribute) if attribute else found

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.__dict__["_renamed"]]


def module(name: str, **renamed: str) -> Callable[[Class], Class]:
    """Decorator: a class becomes the module `name`, with the names of other modules that are given besides."""

    def make(content: Class) -> Class:
        made: Any = _Module(name, content, renamed)
        sys.modules[name] = made
        return made

    return make


def _refuse(call: str, advice: str) -> NoReturn:
    raise NotImplementedError(f"{call}: {advice}")


def _as_it_is(value: Anything) -> Anything:
    """What was given."""
    return value


def _no() -> bool:
    """False."""
    return False


# --- what is not possible ---------------------------------------------------------------------------------------------

_DOWNLOADED = (
    "nothing is downloaded here; fetch the file yourself and read it with engine.load, which takes safetensors files"
)


@module("engine.hub")
class hub:
    """`torch.hub`: nothing is downloaded here."""

    @staticmethod
    def _get_torch_home() -> str:
        """Where PyTorch's packages keep their files: TORCH_HOME, or torch in the user's cache."""
        cache = os.environ.get("XDG_CACHE_HOME", "~/.cache")
        return os.path.expanduser(os.environ.get("TORCH_HOME", os.path.join(cache, "torch")))

    @staticmethod
    def load(*args: Any, **kwargs: Any) -> NoReturn:
        """Raises NotImplementedError."""
        _refuse("engine.hub.load", _DOWNLOADED)

    @staticmethod
    def load_state_dict_from_url(*args: Any, **kwargs: Any) -> NoReturn:
        """Raises NotImplementedError."""
        _refuse("engine.hub.load_state_dict_from_url", _DOWNLOADED)

    @staticmethod
    def download_url_to_file(*args: Any, **kwargs: Any) -> NoReturn:
        """Raises NotImplementedError."""
        _refuse("engine.hub.download_url_to_file", _DOWNLOADED)


@module("engine.onnx")
class onnx:
    """`torch.onnx`: exporting is not possible from here."""

    @staticmethod
    def export(*args: Any, **kwargs: Any) -> NoReturn:
        """Raises NotImplementedError."""
        _refuse(
            "engine.onnx.export",
            "save the state_dict with engine.save, a safetensors file that PyTorch reads, and export from there",
        )

    @staticmethod
    def register_custom_op_symbolic(*args: Any, **kwargs: Any) -> None:
        """Nothing: there is no exporter that could use it."""

    class symbolic_opset11:
        """What a description for an exporter is written with; nobody runs it."""


@module("engine.fx")
class fx:
    """`torch.fx`: graphs of modules are not made here."""

    wrap = staticmethod(_as_it_is)  # there is no tracer to keep out of a function

    @staticmethod
    def symbolic_trace(*args: Any, **kwargs: Any) -> NoReturn:
        """Raises NotImplementedError."""
        _refuse("engine.fx.symbolic_trace", "modules are not rewritten here; engine.trace shows the calls")


# --- questions whose answer is no, and decorators that change nothing -------------------------------------------------

told: set[str] = set()


def _told_once(call: str, value: Anything) -> Anything:
    if call not in told:
        told.add(call)
        warnings.warn(f"engine.jit.{call}: there is no TorchScript here; it runs as it is", UserWarning, stacklevel=3)
    return value


@module("engine.jit")
class jit:
    """`torch.jit` in code that also runs without it: questions answered with no, and decorators that change nothing."""

    Final = Final
    is_scripting = is_tracing = staticmethod(_no)
    unused = export = script_if_tracing = _script_if_tracing = _overload_method = staticmethod(_as_it_is)

    @staticmethod
    def ignore(drop: Any = False, **kwargs: Any) -> Any:
        """The function; a decorator with or without arguments."""
        return drop if callable(drop) else _as_it_is

    @staticmethod
    def script(obj: Anything, *args: Any, **kwargs: Any) -> Anything:
        """`obj` as it is, with a warning the first time."""
        return _told_once("script", obj)

    @staticmethod
    def trace(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., Any]:
        """`func` as it is, with a warning the first time."""
        return _told_once("trace", func)


@module("engine.version")
class version:
    """What PyTorch tells of its build: there is no CUDA toolkit and no ROCm in this one."""

    cuda = None
    hip = None


@module("engine.backends.mps")
class mps:
    """Apple's GPU, which is not supported."""

    is_available = is_built = staticmethod(_no)


@module(
    "engine.backends.cudnn",
    is_available="engine.memory.cudnn:is_available",
    is_acceptable="engine.memory.cudnn:is_acceptable",
    version="engine.memory.cudnn:version",
)
class cudnn:
    """Switches of cuDNN, which convolution and attention on a GPU are given to where it and NVIDIA's frontend for
    Python are installed (`pip install 'allstride[cudnn12]'`, or cudnn13).

    `enabled`: with False this package's own kernels serve, as they do where it is not installed. `allow_tf32`: whether
    convolutions of float32 may be rounded to TF32, by whichever kernel. The others may be set, and nobody reads them:
    every result is the same from run to run (`deterministic`), and plans are chosen without trying (`benchmark`).
    """

    enabled = True
    benchmark = False
    benchmark_limit = 10
    deterministic = False
    allow_tf32 = True

    @staticmethod
    @contextmanager
    def flags(
        enabled: bool = False,
        benchmark: bool = False,
        benchmark_limit: int = 10,
        deterministic: bool = False,
        allow_tf32: bool = True,
    ) -> Iterator[None]:
        """Context manager: the switches have these values inside."""
        given = dict(locals())
        before = {name: getattr(cudnn, name) for name in given}
        for name, value in given.items():
            setattr(cudnn, name, value)
        try:
            yield
        finally:
            for name, value in before.items():
                setattr(cudnn, name, value)


@module("engine.backends.cuda", is_built="engine.cuda:is_available")
class _backend_cuda:
    """Permissions for reduced precision in matrix products on a GPU."""

    matmul = precision.matmul


@module("engine.backends")
class backends:
    """`engine.backends`: switches of libraries that PyTorch computes with, for scripts that set them."""

    cuda = _backend_cuda
    cudnn = cudnn
    mps = mps


# --- second names of what is elsewhere --------------------------------------------------------------------------------


@module("engine.func", functional_call="engine.nn.utils.stateless:functional_call")
class func:
    """`torch.func` as far as it is modules: `functional_call`. Its transforms (`grad`, `vmap` ...) are not here."""


_SAME = (
    *("current_stream", "device_count", "empty_cache", "is_available", "max_memory_allocated", "max_memory_reserved"),
    *("memory_allocated", "memory_reserved", "memory_stats", "reset_accumulated_memory_stats"),
    *("reset_peak_memory_stats", "set_stream", "synchronize"),
)


@module(
    "engine.accelerator",
    current_device_index="engine.cuda:current_device",
    current_device_idx="engine.cuda:current_device",
    set_device_index="engine.cuda:set_device",
    set_device_idx="engine.cuda:set_device",
    device_index="engine.cuda:device",
    get_memory_info="engine.cuda:mem_get_info",
    **{name: f"engine.cuda:{name}" for name in _SAME},
)
class accelerator:
    """`engine.accelerator`: the same questions as `engine.cuda`, in the words that name no vendor."""

    @staticmethod
    def current_accelerator(check_available: bool = False) -> device | None:
        """device(type="cuda"), which names no GPU, as PyTorch's does, where CuPy finds one, else None."""
        return cuda_without_index() if importlib.import_module("engine.cuda").is_available() else None


@module(
    "engine.cuda.amp",
    **{name: f"engine.amp.for_cuda:{name}" for name in ("GradScaler", "autocast", "custom_bwd", "custom_fwd")},
)
class cuda_amp:
    """`engine.cuda.amp`: the older spelling of `engine.amp`, where the device is not said."""
