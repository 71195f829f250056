"""Batches on their way to a GPU: into page-locked memory (`DataLoader(pin_memory=True)`), and onto the GPU ahead of
their use (`DevicePrefetcher`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, MutableSequence, Sequence
from copy import copy
from typing import Any

from engine.data.sampler import has_state
from engine.rules.device import device as as_device
from engine.tensor import Tensor


def pin_memory(data: Any, device: Any = None) -> Any:
    """The same with tensors in page-locked memory: those within mappings, sequences and named tuples, and what has a
    method `pin_memory`. Everything else stays.
    """
    return _mapped(data, lambda each: each.pin_memory(), "pin_memory")


def to_device(data: Any, device: Any, non_blocking: bool = False) -> Any:
    """The same with tensors on a device, and what has a method `to`."""
    return _mapped(data, lambda each: each.to(device, non_blocking=non_blocking), "to")


def _mapped(data: Any, function: Callable[[Any], Any], method: str) -> Any:
    if isinstance(data, Tensor):
        return function(data)
    if hasattr(data, method):
        return function(data) if method == "to" else getattr(data, method)()
    if isinstance(data, str | bytes):
        return data
    if isinstance(data, Mapping):
        items = {key: _mapped(value, function, method) for key, value in data.items()}
        if isinstance(data, MutableMapping) and type(data) is not dict:
            return _updated(data, items)
        return items
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(_mapped(value, function, method) for value in data))
    if isinstance(data, tuple):
        return [_mapped(value, function, method) for value in data]  # as in PyTorch
    if isinstance(data, Sequence):
        values = [_mapped(value, function, method) for value in data]
        if isinstance(data, MutableSequence) and type(data) is not list:
            again: Any = copy(data)
            for place, value in enumerate(values):
                again[place] = value
            return again
        return values
    return data


def _updated(data: MutableMapping[Any, Any], items: dict[Any, Any]) -> Any:
    again = copy(data)
    again.update(items)
    return again


def _tensors(data: Any) -> Iterator[Tensor]:
    if isinstance(data, Tensor):
        yield data
    elif isinstance(data, Mapping):
        for value in data.values():
            yield from _tensors(value)
    elif isinstance(data, Sequence) and not isinstance(data, str | bytes):
        for value in data:
            yield from _tensors(value)


class PinnedBatches(Iterator[Any]):
    """The batches of another iterator, in page-locked memory."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches

    def __next__(self) -> Any:
        return pin_memory(next(self._batches))

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)


class DevicePrefetcher:
    """Iterates over the batches of a loader on a GPU. While one is worked on, the next is on its way there.

    Copies run on a stream of their own, from page-locked memory, and the current stream waits for that of the batch it
    is given: nothing waits on the CPU. One batch more than without it is in the GPU's memory.

    Args: loader: any iterable, best a DataLoader with pin_memory=True (other batches are copied to page-locked memory
    first); device: which GPU.
    Raises: RuntimeError for a device that is none.

    for x, y in DevicePrefetcher(loader, "cuda"):
        loss = loss_function(model(x), y)
    """

    def __init__(self, loader: Iterable[Any], device: Any = "cuda") -> None:
        self.loader = loader
        self.device = as_device(device)
        if self.device.type != "cuda":
            raise RuntimeError(f"DevicePrefetcher copies to a GPU; expected a cuda device, got {self.device}")
        self._given: Any = None  # the loader's state after the batch that was given out last
        self._side: Any = None  # one for all epochs: CuPy's pool keeps the memory of a stream for that stream

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        from engine.cuda import streams

        if self._side is None:
            self._side = streams.Stream(self.device)
        side = self._side
        batches = iter(self.loader)
        coming = self._sent(batches, side)
        while coming is not None:
            self._given = self.loader.state_dict() if has_state(self.loader) else None
            batch, arrived = coming
            current = streams.current_stream(self.device)
            current.wait_event(arrived)
            for tensor in _tensors(batch):
                if tensor.is_cuda:
                    tensor.record_stream(current)
            coming = self._sent(batches, side)
            yield batch
        self._given = None  # the loader is at the end, too

    def state_dict(self) -> Any:
        """The loader's, as of the batch that was given out last."""
        loader: Any = self.loader
        return loader.state_dict() if self._given is None else self._given

    def load_state_dict(self, state_dict: Any) -> None:
        """The loader's: the next iteration goes on there."""
        loader: Any = self.loader
        self._given = None
        loader.load_state_dict(state_dict)

    def _sent(self, batches: Iterator[Any], side: Any) -> tuple[Any, Any] | None:
        """The next batch, on its way, and the event of its arrival; None at the end."""
        from engine.cuda import streams

        try:
            batch = pin_memory(next(batches))
        except StopIteration:
            return None
        with streams.stream(side):
            batch = to_device(batch, self.device, non_blocking=True)
        return batch, side.record_event()
