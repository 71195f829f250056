"""The thread that moves a transport on touches it only while something is in flight."""

import threading
import time
from typing import Any

from ddp.transport.loopback import LoopbackTransport


class Watched(LoopbackTransport):
    """Its `wait` ends when the thread stands before the lock that the waiting side holds."""

    def __init__(self) -> None:
        super().__init__()
        self.polls = 0

    def poll(self) -> None:
        self.polls += 1
        super().poll()

    def wait(self, buffer: Any) -> None:
        time.sleep(0.05)  # 500 pauses of the thread
        super().wait(buffer)


def test_the_thread_leaves_a_transport_alone_when_the_last_buffer_has_been_waited_for() -> None:
    from ddp.transport.background import BackgroundTransport

    inner = Watched()
    transport = BackgroundTransport(inner)
    try:
        buffer = transport.allocate(10, "float32")
        for _ in range(5):
            transport.start(buffer)
            transport.wait(buffer)
            before = inner.polls
            time.sleep(0.05)
            assert inner.polls == before
    finally:
        transport.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "transport loopback"]
