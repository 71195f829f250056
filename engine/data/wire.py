"""Objects over a pipe between processes: the memory of arrays follows the pickle instead of being copied into it."""

import pickle
from multiprocessing.connection import Connection
from typing import Any


def packed(message: Any) -> tuple[bytes, list[memoryview]]:
    """(pickle, buffers) of a message. Raises what pickling raises."""
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    return data, [buffer.raw() for buffer in buffers]


def send(connection: Connection, data: bytes, buffers: list[memoryview]) -> None:
    """Sends what `packed` gave. Raises OSError when the other side is gone."""
    connection.send_bytes(pickle.dumps([len(data), *(buffer.nbytes for buffer in buffers)]))
    connection.send_bytes(data)
    for buffer in buffers:
        if buffer.nbytes:
            connection.send_bytes(buffer)


def receive(connection: Connection) -> Any:
    """The message that `send` sent; its arrays own their memory. Raises EOFError when the other side is gone."""
    _, *sizes = pickle.loads(connection.recv_bytes())
    data = connection.recv_bytes()
    buffers = [bytearray(size) for size in sizes]
    for buffer in buffers:
        if buffer:
            connection.recv_bytes_into(buffer)
    return pickle.loads(data, buffers=buffers)
