"""Inner names of PyTorch that packages written for it ask for when they are imported, torchvision above all.

`engine.torch` answers with them for `torch._C`, `torch._dynamo.utils`, `torch.ao.quantization`, `torch.compiler`,
`torch.jit.annotations`, `torch.onnx.symbolic_helper`, `torch.types` and `torch.utils.model_zoo`. What they are for is
not here (a dispatcher in C++, a compiler, an exporter, quantization), so they describe it to nobody.
"""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any, NoReturn, TypeVar

from engine.compat import hub
from engine.errors.absent import absent
from engine.nn.linear import Identity
from engine.rules.device import device
from engine.rules.dtypes import dtype

__all__ = [
    "BroadcastingList1",
    "BroadcastingList2",
    "BroadcastingList3",
    "DeQuantStub",
    "Device",
    "DisableTorchFunctionSubclass",
    "DispatchKeySet",
    "Number",
    "QuantStub",
    "disable",
    "is_compile_supported",
    "is_compiling",
    "load_url",
    "parse_args",
    "tqdm",
]

Anything = TypeVar("Anything")

load_url = hub.load_state_dict_from_url  # torch.utils.model_zoo

# torch.types, and what annotations for TorchScript say
_device, _dtype = device, dtype
_size = list[int] | tuple[int, ...]
_int, _float, _bool = int, float, bool
Number = int | float | bool
Device = device | str | int | None
BroadcastingList1 = BroadcastingList2 = BroadcastingList3 = list

# torch._C
DisableTorchFunctionSubclass = nullcontext
_ExcludeDispatchKeyGuard = nullcontext


class _Names(type):
    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class DispatchKey(metaclass=_Names):
    """Any name."""


class DispatchKeySet(frozenset[str]):
    """Of one name, or of several by `|`."""

    def __new__(cls, key: str) -> "DispatchKeySet":
        return super().__new__(cls, [key])


def _log_api_usage_once(event: str) -> None:
    """Nobody counts."""


# torch.compiler, torch._dynamo
def is_compiling() -> bool:
    """False: what is captured runs as Python first."""
    return False


def is_compile_supported(device_type: str) -> bool:
    """False."""
    return False


def disable(fn: Any = None, recursive: bool = True, **_: Any) -> Any:
    """`fn`; a decorator with or without arguments."""
    return fn if fn is not None else lambda function: function


# torch.onnx.symbolic_helper
def parse_args(*descriptors: str) -> Callable[[Anything], Anything]:
    """A decorator that changes nothing."""
    return lambda function: function


# torch.ao.quantization: both are identities in PyTorch, too, until a model is converted
class QuantStub(Identity):
    """The input itself."""


class DeQuantStub(Identity):
    """The input itself."""


# torch.utils.model_zoo
def tqdm(iterable: Iterable[Any] = (), *_: Any, **__: Any) -> Any:
    """The bar of the package tqdm. Raises: ModuleNotFoundError without it."""
    from tqdm import tqdm as bar

    return bar(iterable, *_, **__)


def __getattr__(name: str) -> NoReturn:
    raise absent("engine.inner", name)
