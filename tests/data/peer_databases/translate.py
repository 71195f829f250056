"""PyTorch's objects as the engine's: tensors with their strides, dtypes, classes, functions written with `torch`."""

import functools
import operator
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.testing._internal.common_methods_invocations import wrapper_set_seed

import engine
import engine.fft
import engine.nn.functional
import engine.optim.lr_scheduler

DTYPES = {
    theirs: getattr(engine, str(theirs).removeprefix("torch."))
    for theirs in (
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
    )
}
# The engine keeps sixteen bits of bfloat16 as NumPy has no name for them; they travel as integers.
_CARRIERS = {torch.bfloat16: torch.int16}
_NAMESPACES = {
    "": torch,
    "nn.functional.": torch.nn.functional,
    "linalg.": torch.linalg,
    "fft.": torch.fft,
    "special.": torch.special,
    "nn.": torch.nn,
    "optim.lr_scheduler.": torch.optim.lr_scheduler,
    "optim.": torch.optim,
    "Tensor.": torch.Tensor,
}


class Missing(LookupError):
    """A name that PyTorch has and the engine has not."""


def _paths() -> dict[int, str]:
    found: dict[int, str] = {}
    for prefix, namespace in _NAMESPACES.items():
        for name in dir(namespace):
            value = getattr(namespace, name, None)
            if callable(value) and not name.startswith("_VF"):
                found.setdefault(id(value), prefix + name)
    return found


def _at_any_seed(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    return function(*arguments, **keywords)


_PATHS = _paths()
_KEPT = {id(value) for value in vars(operator).values()}


def by_path(path: str) -> Any:
    """`engine.` and that path. Raises: Missing."""
    value: Any = engine
    for name in path.split("."):
        try:
            value = getattr(value, name)
        except AttributeError:
            raise Missing(path) from None
    return value


def counterpart(value: Any) -> Any:
    """What the engine has in the place of a function, class, module or dtype of PyTorch, or of a function of PyTorch's
    tests that is written with such: that one runs with `torch` meaning `engine`.

    Raises: Missing.
    """
    if isinstance(value, torch.dtype):
        if value not in DTYPES:
            raise Missing(str(value))
        return DTYPES[value]
    if isinstance(value, types.ModuleType):
        if value is torch:
            return engine
        return by_path(value.__name__.removeprefix("torch.")) if value.__name__.startswith("torch.") else value
    if value is wrapper_set_seed:
        return _at_any_seed
    if id(value) in _KEPT:
        return value
    if id(value) in _PATHS:
        return by_path(_PATHS[id(value)])
    if isinstance(value, functools.partial):
        return functools.partial(
            counterpart(value.func),
            *map(counterpart, value.args),
            **{k: counterpart(v) for k, v in value.keywords.items()},
        )
    if isinstance(value, types.FunctionType) and value.__module__.startswith("torch.testing"):
        return _rewritten(value)
    if isinstance(value, torch.nn.TransformerEncoderLayer):
        return _encoder_layer(value)
    if isinstance(value, torch.nn.Module) or getattr(type(value), "__module__", "").startswith("torch._ops"):
        raise Missing(str(value))
    if isinstance(value, types.FunctionType) and value.__module__.startswith("torch."):
        raise Missing(f"{value.__module__.removeprefix('torch.')}.{value.__name__}")
    return value


def _encoder_layer(theirs: torch.nn.TransformerEncoderLayer) -> engine.nn.TransformerEncoderLayer:
    """One of the same shape, which TransformerEncoder copies; its numbers do not matter."""
    attention = theirs.self_attn
    return engine.nn.TransformerEncoderLayer(
        attention.embed_dim,
        attention.num_heads,
        dim_feedforward=theirs.linear1.out_features,
        dropout=theirs.dropout.p,
        activation=counterpart(theirs.activation),
        layer_norm_eps=theirs.norm1.eps,
        batch_first=attention.batch_first,
        norm_first=theirs.norm_first,
        bias=theirs.linear1.bias is not None,
        dtype=counterpart(theirs.linear1.weight.dtype),
    )


def _rewritten(function: types.FunctionType) -> Callable[..., Any]:
    names = {
        name: counterpart(function.__globals__[name])
        for name in set(_names(function.__code__))
        if name in function.__globals__ and function.__globals__[name] is not function
    }
    cells = function.__closure__
    if cells is not None:
        cells = tuple(types.CellType(counterpart(cell.cell_contents)) for cell in cells)
    written = types.FunctionType(
        function.__code__, {**function.__globals__, **names}, function.__name__, function.__defaults__, cells
    )
    written.__kwdefaults__ = function.__kwdefaults__
    return written


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


Memories = dict[tuple[int, torch.dtype], engine.Tensor]


def tensor(theirs: torch.Tensor, memories: Memories | None = None) -> engine.Tensor:
    """A leaf with the same numbers, strides and wish for a gradient, in memory of its own, or in that of the tensors
    it shares it with.
    """
    if theirs.layout is not torch.strided or theirs.dtype not in DTYPES or not theirs.is_cpu:
        raise Missing(f"{theirs.layout}, {theirs.dtype}, {theirs.device}")
    plain = theirs.detach().resolve_conj().resolve_neg()
    carrier = _CARRIERS.get(plain.dtype, plain.dtype)
    memories = {} if memories is None else memories
    key = plain.untyped_storage().data_ptr(), plain.dtype
    if key not in memories:
        memory = torch.empty(0, dtype=carrier).set_(plain.untyped_storage()).clone()  # theirs stays resizable
        ours = engine.from_numpy(memory.numpy())
        memories[key] = ours if carrier is plain.dtype else ours.view(DTYPES[plain.dtype])
    ours = engine.as_strided(memories[key], tuple(plain.shape), plain.stride(), plain.storage_offset()).detach()
    return ours.requires_grad_() if theirs.requires_grad else ours


def back(ours: engine.Tensor) -> torch.Tensor:
    """The same numbers, dense."""
    plain = ours.detach().contiguous()
    if ours.dtype is engine.bfloat16:
        return torch.from_numpy(np.array(plain.view(engine.int16).numpy())).view(torch.bfloat16)
    return torch.from_numpy(np.array(plain.numpy()))


class Translator:
    """Arguments of a call, one tensor for each of theirs however often it comes."""

    def __init__(self) -> None:
        self.seen: dict[int, tuple[Any, engine.Tensor]] = {}
        self.memories: Memories = {}

    def __call__(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if id(value) not in self.seen:
                self.seen[id(value)] = value, tensor(value, self.memories)
            return self.seen[id(value)][1]
        if isinstance(value, torch.Size):
            return engine.Size(value)
        if isinstance(value, tuple | list):
            items = [self(each) for each in value]
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        if isinstance(value, dict):
            return {key: self(each) for key, each in value.items()}
        if isinstance(value, torch.device):
            return engine.device(str(value))
        if isinstance(value, torch.memory_format):
            return getattr(engine, str(value).removeprefix("torch."))
        if value is torch.strided:
            return engine.strided
        if isinstance(value, torch.Generator):
            return engine.Generator()
        return counterpart(value) if callable(value) or isinstance(value, torch.dtype) else value
