"""Copies between host memory and GPUs that nobody waits for, and the page-locked memory they need.

A copy from or to page-locked memory runs on the current stream while the CPU goes on. Until it has run the host memory
must not be given to anybody else: it is kept here, together with an event that says when.
"""

from collections import deque
from typing import Any

import numpy as np

from engine.memory import backend, blocks
from engine.memory.guard import on_gpu_of
from engine.rules import layout
from engine.rules.spec import Spec

Array = Any

_under_way: deque[tuple[Any, np.ndarray]] = deque()  # (event, host memory), oldest first


backend.when_found.append(lambda cupy: _under_way.clear())  # nothing is under way: CuPy was exchanged


def empty_pinned(spec: Spec) -> np.ndarray:
    """Uninitialised page-locked host memory, laid out as `spec` says, which is dense.

    Raises: RuntimeError without CuPy or a GPU.
    """
    held = backend.require_cupy().cuda.alloc_pinned_memory(max(spec.numel * spec.dtype.itemsize, 1))
    flat = np.frombuffer(held, np.uint8, spec.numel * spec.dtype.itemsize).view(spec.dtype.numpy)
    if not spec.numel:
        return flat.reshape(spec.shape)
    sizes, axes = spec.allocation
    return flat.reshape(sizes) if axes is None else flat.reshape(sizes).transpose(axes)


def pinned_copy(array: np.ndarray, spec: Spec) -> np.ndarray:
    """The values of `array`, which `spec` describes, in page-locked memory, in the dense order of its axes."""
    copy = empty_pinned(spec if spec.dense else spec.like(stride=_dense(spec)))
    copy[...] = array
    return copy


def _dense(spec: Spec) -> tuple[int, ...]:
    return layout.preserve_strides(spec.shape, spec.stride)


def is_pinned(array: Array) -> bool:
    """Whether a raw array is in page-locked host memory; False without a GPU, where there is none."""
    if backend._cupy is None or not isinstance(array, np.ndarray) or not array.size:
        return False
    return bool(backend.require_cupy().cuda.pinned_memory.is_memory_pinned(backend.address(array)))


def copy_block(source: Array, target: Array, wait: bool) -> None:
    """Copies the bytes of one block to another of the same size, one in page-locked memory and one on a GPU, on the
    GPU's current stream.

    wait: whether the CPU waits until the copy has run. Without, the host memory is kept until then.
    """
    upwards = isinstance(source, np.ndarray)
    host, there = (source, target) if upwards else (target, source)
    assert source.nbytes == target.nbytes
    if not source.nbytes:
        return
    cuda = backend.require_cupy().cuda
    with on_gpu_of(there):
        stream = cuda.get_current_stream()
        kind = cuda.runtime.memcpyHostToDevice if upwards else cuda.runtime.memcpyDeviceToHost
        cuda.runtime.memcpyAsync(backend.address(target), backend.address(source), source.nbytes, kind, stream.ptr)
        if wait:
            stream.synchronize()
        else:
            _keep(cuda, stream, host)


def _keep(cuda: Any, stream: Any, host: np.ndarray) -> None:
    if blocks.capturing:  # which forbids to ask events
        graph = blocks.private_pool(stream)
        if graph is not None:
            graph.kept.append(host)
            return
    else:
        _let_go()
    event = cuda.Event(disable_timing=True)
    event.record(stream)
    _under_way.append((event, host))


def _let_go() -> None:
    """Gives host memory back whose copies have run."""
    while True:
        try:
            oldest = _under_way.popleft()  # whoever looks at it has it to himself: several threads copy
        except IndexError:
            return
        if not oldest[0].done:
            _under_way.appendleft(oldest)
            return


def same_block(one: Spec, other: Spec) -> bool:
    """Whether memory laid out by one Spec, copied byte by byte, is laid out by the other."""
    return one.dtype is other.dtype and one.shape == other.shape and one.stride == other.stride and one.dense
