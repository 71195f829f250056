"""The streams of a GPU whose work fills a bucket: those on which its gradients were written."""

from typing import Any

import engine
from engine.memory import backend


class Streams:
    """Of one bucket."""

    def __init__(self, device: engine.device, noted: dict[int, Any]) -> None:
        """noted: where they are kept, for the transport that waits for them, and then forgets them."""
        self._cuda = backend.require_cupy().cuda
        self._device = device
        self._noted = noted

    def on_device(self) -> Any:
        """Context manager: the GPU is the one in use."""
        return self._cuda.Device(self._device.index)

    def note(self) -> None:
        """The current stream writes to the bucket."""
        stream = self._cuda.get_current_stream(self._device.index)
        self._noted[stream.ptr] = stream

    def join(self) -> None:
        """What is queued on the current stream from now on comes after everything that was noted."""
        current = self._cuda.get_current_stream(self._device.index)
        with self.on_device():
            for pointer, stream in self._noted.items():
                if pointer != current.ptr:
                    current.wait_event(stream.record(self._cuda.Event(disable_timing=True)))
        self._noted.clear()
