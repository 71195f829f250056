"""A transport around a transport that counts what is asked of it, for tests and for measuring packing alone."""

from typing import Any

from numpy.typing import DTypeLike

from ddp.transport.base import Buffer, Transport


class CountingTransport:
    """See `ddp.transport.base.Transport`. `started` holds the bytes of every buffer started, in order."""

    def __init__(self, inner: Transport) -> None:
        self.name = f"counting {inner.name}"
        self.progress = inner.progress
        self.rank = inner.rank
        self.size = inner.size
        self.inner = inner
        self.allocated: list[int] = []
        self.started: list[int] = []
        self.polls = 0
        self.waits = 0

    def allocate(
        self,
        count: int,
        dtype: DTypeLike,
        header: int = 0,
        shards: int | None = None,
    ) -> Buffer:
        buffer = self.inner.allocate(count, dtype, header, shards)
        self.allocated.append(buffer.array.nbytes)
        return buffer

    def start(self, buffer: Any, divisor: float | None = 1.0) -> None:
        self.started.append(buffer.array.nbytes)
        self.inner.start(buffer, divisor)

    def poll(self) -> None:
        self.polls += 1
        self.inner.poll()

    def wait(self, buffer: Any) -> None:
        self.waits += 1
        self.inner.wait(buffer)

    def is_done(self, buffer: Any) -> bool:
        return self.inner.is_done(buffer)

    def independent(self) -> "CountingTransport":
        inner = self.inner.independent()
        return self if inner is self.inner else CountingTransport(inner)

    def close(self) -> None:
        self.inner.close()
