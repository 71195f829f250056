"""Reading and writing parts of device arrays. Integer arrays as indices wrap around, as CuPy's do; masks wait for the
device where the size of the result depends on them."""

from typing import Any

import numpy as np

from tests.cuda_simulator import arrays, calls, creation, execution, functions, races, streams
from tests.cuda_simulator.arrays import ndarray


def _key(array: ndarray, key: Any) -> tuple[tuple[Any, ...], list[ndarray], bool, bool]:
    """(parts with device arrays for index arrays, those arrays, advanced, has a mask)."""
    parts = key if isinstance(key, tuple) else (key,)
    found: list[Any] = []
    sources: list[ndarray] = []
    mask = False
    for part in parts:
        if isinstance(part, (list, np.ndarray, tuple)):
            values = np.asarray(part)
            if values.size == 0:
                values = values.astype(np.intp)
            part = creation.array(values)
        if isinstance(part, ndarray):
            if part.dtype.kind not in "biu":
                raise IndexError(f"arrays used as indices must be of integer or boolean type. (actual: {part.dtype})")
            mask = mask or part.dtype.kind == "b"
            sources.append(part)
        elif isinstance(part, (bool, np.bool_)):
            mask = True
        elif not isinstance(part, (int, np.integer, slice, type(Ellipsis), type(None))) and not hasattr(
            part, "__index__"
        ):
            raise IndexError(f"Unsupported index type: {type(part)}")
        found.append(part)
    return tuple(found), sources, bool(sources) or mask, mask


def on_host(parts: tuple[Any, ...]) -> tuple[Any, ...]:
    """The parts of an index with host views for device arrays."""
    return tuple(arrays.host(part) if isinstance(part, ndarray) else part for part in parts)


def wrapped(shape: tuple[int, ...], parts: tuple[Any, ...]) -> tuple[Any, ...]:
    """The host's index into an array of `shape`, integer arrays taken modulo the length of their axis."""
    taken = sum(
        (part.ndim if isinstance(part, np.ndarray) and part.dtype.kind == "b" else 1)
        for part in parts
        if part is not None and part is not Ellipsis and not isinstance(part, (bool, np.bool_))
    )
    axis = 0
    result: list[Any] = []
    for part in parts:
        if part is Ellipsis:
            axis += len(shape) - taken
        elif isinstance(part, np.ndarray) and part.dtype.kind == "b":
            axis += part.ndim
        elif isinstance(part, np.ndarray):
            length = shape[axis] if axis < len(shape) else 1
            part = part.astype(np.int64) % length if length else part
            axis += 1
        elif part is not None and not isinstance(part, (bool, np.bool_)):
            axis += 1
        result.append(part)
    return tuple(result)


def load(array: ndarray, key: Any) -> ndarray:
    """`array[key]`."""
    parts, sources, advanced, mask = _key(array, key)
    if not advanced:
        seen = arrays.host(array)[parts]
        if not isinstance(seen, np.ndarray):  # one element: a 0-dim view
            seen = arrays.host(array)[(*parts, Ellipsis)]
        return arrays.view_of(array, seen)
    if mask:
        functions.wait("a mask as index")
    index = on_host(parts)
    return calls.call(lambda seen, *_: seen[wrapped(seen.shape, index)], "take", (array, *sources), {})


def store(array: ndarray, key: Any, value: Any) -> None:
    """`array[key] = value`."""
    parts, sources, advanced, mask = _key(array, key)
    if not isinstance(value, ndarray):
        value = np.asarray(value, array.dtype)
        if value.shape != () and not mask:
            raise ValueError("non-scalar numpy.ndarray cannot be used for fill")
    if advanced:
        if mask:
            functions.wait("a mask as index")
        if not isinstance(value, ndarray) and value.shape != ():
            value = creation.array(value)
        given = arrays.host(value) if isinstance(value, ndarray) else value
        target = arrays.host(array)
        reads = [*sources, *([value] if isinstance(value, ndarray) else [])]
        index = on_host(parts)
        calls.launch("scatter", lambda: _scatter(target, wrapped(target.shape, index), given), reads, [array])
        return
    target = arrays.host(array)
    seen = target[(*parts, Ellipsis)] if not any(each is Ellipsis for each in parts) else target[parts]
    where = arrays.view_of(array, seen)
    if not isinstance(value, ndarray):
        if where.size:
            number = value
            calls.launch("fill", lambda: np.copyto(seen, number, casting="unsafe"), [], [where])
        return
    while value.ndim > where.ndim and value.shape[0] == 1:
        value = value[0]
    np.broadcast_to(np.empty(value.shape), seen.shape)  # raises ValueError
    if not where.size:
        return
    if value.shape == where.shape and value.strides == where.strides:
        if value.data.ptr == where.data.ptr and value.dtype == where.dtype:
            return
        if where.flags.c_contiguous and value.dtype == where.dtype:
            if abs(value.data.ptr - where.data.ptr) < where.nbytes:
                races.report(f"race: a copy at {races.place()} reads and writes the same memory in no order")
            execution.copy_bytes(where.data.ptr, value.data.ptr, where.nbytes, streams.current_queue(), "copy")
            return
    given = arrays.host(value)
    calls.launch("copy", lambda: _assign(seen, given), [value], [where])


def _assign(target: Any, value: Any) -> None:
    value = calls.real_part(value, target.dtype)
    np.copyto(target, value.copy() if np.may_share_memory(target, value) else value, casting="unsafe")


def _scatter(target: Any, index: tuple[Any, ...], value: Any) -> None:
    """With the same place twice, which value stays is undefined on a device; here the first one does, where NumPy keeps
    the last."""
    if (
        isinstance(value, np.ndarray)
        and value.size > 1
        and not any(isinstance(each, np.ndarray) and each.dtype.kind == "b" for each in index)
    ):
        places = np.arange(target.size).reshape(target.shape)[index]
        spread = np.broadcast_to(value, places.shape).astype(target.dtype)
        flat, first = np.unique(places.ravel(), return_index=True)
        where = np.unravel_index(flat, target.shape)
        target[where] = spread.ravel()[first]
        return
    target[index] = value.astype(target.dtype)
