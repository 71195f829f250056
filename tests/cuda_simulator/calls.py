"""Kernels: functions of NumPy on the memory of device arrays, from device arrays to new device arrays."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.cuda_simulator import counters, execution, streams
from tests.cuda_simulator.arrays import host, ndarray, reach, view_of


def check_device(*arrays: ndarray) -> None:
    """Raises: ValueError for arrays of another device than the current one."""
    current = streams.current_device()
    for array in arrays:
        if array.data.device_id != current and array.size:
            raise ValueError(
                f"Array device must be same as the current device: array device = {array.data.device_id} "
                f"while current = {current}"
            )


def launch(name: str, run: Callable[[], Any], reads: list[ndarray], writes: list[ndarray]) -> None:
    """Queues a kernel on the current stream."""
    check_device(*reads, *writes)
    counters.launched(name)

    def silently() -> None:
        with np.errstate(all="ignore"):
            run()

    execution.submit(name, silently, [reach(each) for each in reads], [reach(each) for each in writes])


def copy(array: ndarray, order: str = "C") -> ndarray:
    """A copy on the current device, which may be another than the array's."""
    if array.data.device_id != streams.current_device() and array.size:
        source = array
        if not array.flags.forc:
            with array.device:
                source = copy(array, order)
        flags = source.flags
        kept = "F" if flags.fnc else "C"
        result = ndarray(source.shape, source.dtype, order=kept)
        execution.copy_bytes(result.data.ptr, source.data.ptr, source.nbytes, streams.current_queue(), "peer copy")
        return result if order in ("K", "A", kept) or flags.c_contiguous else copy(result, order)
    return convert(array, array.dtype, order)


def convert(array: ndarray, dtype: Any, order: str) -> ndarray:
    """A copy with another dtype."""
    check_device(array)
    source = host(array)
    like = np.empty_like(source, dtype=dtype, order=order, subok=False)
    result = ndarray(like.shape, dtype)
    result._strides = like.strides
    target = host(result)
    source = real_part(source, result.dtype)
    if array.size:
        launch("copy", lambda: np.copyto(target, source, casting="unsafe"), [array], [result])
    return result


def real_part(values: Any, dtype: Any) -> Any:
    """What a copy to `dtype` takes of complex numbers; NumPy would warn while it copies."""
    return values.real if values.dtype.kind == "c" and dtype.kind not in "bc" else values


def unwrap(value: Any, sources: list[ndarray], name: str) -> Any:
    """Arguments with host views for device arrays, which are gathered in `sources`.

    Raises: TypeError for NumPy arrays.
    """
    if isinstance(value, ndarray):
        sources.append(value)
        return host(value)
    if isinstance(value, np.ndarray):
        raise TypeError(f"{name}: Unsupported type {type(value)}")
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(unwrap(each, sources, name) for each in value)
    if isinstance(value, dict):
        return {key: unwrap(each, sources, name) for key, each in value.items()}
    return value


def wrap(value: Any, sources: list[ndarray]) -> Any:
    """Results of a host's function as device arrays: views of a source where they share its memory, else new."""
    if isinstance(value, np.ndarray):
        if value.size:
            address = value.__array_interface__["data"][0]
            for source in sources:
                mem = source.data.mem
                if mem.ptr <= address < mem.ptr + mem.size:
                    return view_of(source, value)
        return new(value)
    if isinstance(value, np.generic):
        return new(np.asarray(value))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(wrap(each, sources) for each in value))
    if isinstance(value, (list, tuple)):
        return type(value)(wrap(each, sources) for each in value)
    return value


def new(values: Any) -> ndarray:
    """A new device array to be filled with `values` by `call`."""
    result = ndarray(values.shape, values.dtype)
    _fresh.append((result, values))
    return result


_fresh: list[tuple[ndarray, Any]] = []  # results of the function that runs now, and their values


def call(
    function: Callable[..., Any],
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    finish: Callable[[Any], Any] | None = None,
) -> Any:
    """Runs a NumPy function as a kernel: device arrays in, new device arrays (or views) out; `out=` is written.

    finish: changes the host's result before it becomes the device's (its dtype, say).
    """
    sources: list[ndarray] = []
    out = kwargs.get("out")
    host_args = unwrap(args, sources, name)
    host_kwargs = unwrap({key: value for key, value in kwargs.items() if key != "out"}, sources, name)
    if out is not None:
        outs = [each for each in (out if isinstance(out, tuple) else (out,)) if each is not None]
        for each in outs:
            if not isinstance(each, ndarray):
                raise TypeError("Output arguments type must be cupy.ndarray")
        targets = host(out) if isinstance(out, ndarray) else tuple(None if e is None else host(e) for e in out)
        launch(name, lambda: function(*host_args, **host_kwargs, out=targets), sources, outs)
        return out

    def compute() -> Any:
        with np.errstate(all="ignore"):
            result = function(*host_args, **host_kwargs)
            return result if finish is None else finish(result)

    check_device(*sources)
    with streams.LOCK:
        before = len(_fresh)
        result = wrap(compute(), sources)
        fresh = _fresh[before:]
        del _fresh[before:]
    if fresh:
        targets = [host(array) for array, _ in fresh]
        first = [values for _, values in fresh]
        if execution.capturing():
            memories = [(each.data.mem.ptr, each.data.mem.size) for each in sources]

            def run() -> None:
                again: list[Any] = []
                _leaves(compute(), memories, again)
                for target, values in zip(targets, again, strict=True):
                    np.copyto(target, values, casting="unsafe")

        else:

            def run() -> None:
                for target, values in zip(targets, first, strict=True):
                    np.copyto(target, values, casting="unsafe")

        launch(name, run, sources, [array for array, _ in fresh])
    return result


def _leaves(value: Any, memories: list[tuple[int, int]], found: list[Any]) -> None:
    """The arrays of a result that are no views of a source, in the order of `wrap`. A graph keeps no array of the
    program's alive, so that sources are (address, bytes) here."""
    if isinstance(value, (list, tuple)):
        for each in value:
            _leaves(each, memories, found)
    elif isinstance(value, np.generic):
        found.append(value)
    elif isinstance(value, np.ndarray):
        if value.size:
            address = value.__array_interface__["data"][0]
            if any(start <= address < start + size for start, size in memories):
                return
        found.append(value)
