"""Making replicas on GPUs equal, by the transport of gradients: no rank's host waits for its device.

A broadcast is a sum of bytes to which only one rank contributes. The others send zeros.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

import engine
from ddp.groups.process_group import ProcessGroup
from engine.memory.backend import require_cupy
from engine.tensor import array_of
from engine.tensor.flat import flat_view

_MESSAGE_BYTES = 16 << 20  # of one sum


def copy_from(root: int, tensors: list[engine.Tensor], group: ProcessGroup) -> None:
    """Collective: see `ddp.replicas.copy_from`; all tensors are on one GPU."""
    transport = group.transport_on(tensors[0].device)
    pieces = [_memory(tensor) for tensor in tensors]
    for parts in _messages(pieces):
        room = group.device_room("replicas", tensors[0].device, sum(part.size for part in parts), np.uint8)
        array = room.array
        if group.rank == root:
            require_cupy().concatenate(parts, out=array)
        else:
            array[...] = 0
        transport.start(room)
        with group.meeting("the copy of parameters and buffers"):
            transport.wait(room)
        begin = 0
        for part in parts:
            if group.rank != root:
                part[...] = room.array[begin : begin + part.size]
            begin += part.size
    if group.rank != root:
        for tensor, piece in zip(tensors, pieces, strict=True):
            if not tensor.is_non_overlapping_and_dense():
                array = array_of(tensor)
                array[...] = piece.view(array.dtype).reshape(array.shape)


def _memory(tensor: engine.Tensor) -> Any:
    """The tensor's bytes, in the order in which they lie in memory: a view where it is dense, else a row-major copy."""
    flat = flat_view(tensor)
    if flat is None:
        flat = require_cupy().ascontiguousarray(array_of(tensor)).reshape(-1)
    return flat.view(np.uint8)


def _messages(pieces: list[Any]) -> Iterator[list[Any]]:
    """The pieces, cut and put together so that a message is at most `_MESSAGE_BYTES`."""
    parts: list[Any] = []
    room = _MESSAGE_BYTES
    for piece in pieces:
        begin = 0
        while begin < piece.size:
            part = piece[begin : begin + room]
            parts.append(part)
            begin += part.size
            room -= part.size
            if not room:
                yield parts
                parts, room = [], _MESSAGE_BYTES
    if parts:
        yield parts
