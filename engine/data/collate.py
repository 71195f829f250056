"""Collating: a list of samples becomes one batch of tensors in the same structure."""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import engine
from engine.tensor import Tensor

_UNSUITABLE = "default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; found {}"


def default_convert(data: Any) -> Any:
    """NumPy arrays within mappings, sequences and named tuples become tensors; everything else stays."""
    if isinstance(data, Tensor):
        return data
    if isinstance(data, np.ndarray | np.generic) and data.dtype.kind not in "SUO":
        return engine.as_tensor(data)
    if isinstance(data, Mapping):
        return _rebuilt(data, {key: default_convert(value) for key, value in data.items()})
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(default_convert(value) for value in data))
    if isinstance(data, tuple):
        return [default_convert(value) for value in data]
    if isinstance(data, Sequence) and not isinstance(data, str | bytes):
        return _rebuilt(data, [default_convert(value) for value in data])
    return data


def default_collate(batch: list[Any]) -> Any:
    """Stacks samples: tensors and arrays along a new first axis, numbers to a tensor, structures element by element.

    float becomes float64 and int int64, strings and bytes stay lists. Raises: RuntimeError if sequences differ in
    length, TypeError for samples of another type.
    """
    return collate(batch, collate_fn_map=default_collate_fn_map)


def collate(batch: list[Any], *, collate_fn_map: dict[Any, Callable[..., Any]] | None = None) -> Any:
    """`default_collate` with own functions for some types: {type or types: function(batch, collate_fn_map=...)}."""
    first = batch[0]
    kind = type(first)
    for wanted, function in (collate_fn_map or {}).items():
        if kind is wanted or isinstance(first, wanted):
            return function(batch, collate_fn_map=collate_fn_map)
    if isinstance(first, Mapping):
        return _rebuilt(
            first, {key: collate([sample[key] for sample in batch], collate_fn_map=collate_fn_map) for key in first}
        )
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return kind(*(collate(list(column), collate_fn_map=collate_fn_map) for column in zip(*batch, strict=True)))
    if isinstance(first, Sequence):
        if any(len(sample) != len(first) for sample in batch):
            raise RuntimeError("each element in list of batch should be of equal size")
        columns = [collate(list(column), collate_fn_map=collate_fn_map) for column in zip(*batch, strict=True)]
        return columns if isinstance(first, tuple) else _rebuilt(first, columns)
    raise TypeError(_UNSUITABLE.format(kind))


def _rebuilt(template: Any, content: Any) -> Any:
    """`content` in a container like `template`, or as it is where such a container cannot be filled."""
    if type(template) in (dict, list):
        return content
    try:
        if isinstance(template, Mapping):
            filled: Any = copy.copy(template)
            filled.update(content)
            return filled
        return type(template)(content)
    except (TypeError, AttributeError):
        return content


def _stack(batch: list[Tensor], *, collate_fn_map: Any = None) -> Tensor:
    return engine.stack(batch)


def _stack_arrays(batch: list[np.ndarray], *, collate_fn_map: Any = None) -> Any:
    if batch[0].dtype.kind in "SUO":
        raise TypeError(_UNSUITABLE.format(batch[0].dtype))
    return engine.from_numpy(np.stack(batch))


def _scalars(batch: list[Any], *, collate_fn_map: Any = None) -> Tensor:
    return engine.as_tensor(np.array(batch))


def _floats(batch: list[float], *, collate_fn_map: Any = None) -> Tensor:
    return engine.tensor(batch, dtype=engine.float64)


def _ints(batch: list[int], *, collate_fn_map: Any = None) -> Tensor:
    return engine.tensor(batch)


def _unchanged(batch: list[Any], *, collate_fn_map: Any = None) -> list[Any]:
    return batch


default_collate_fn_map: dict[Any, Callable[..., Any]] = {
    Tensor: _stack,
    np.ndarray: _stack_arrays,
    np.bool_: _scalars,
    np.number: _scalars,
    float: _floats,
    int: _ints,
    str: _unchanged,
    bytes: _unchanged,
}
