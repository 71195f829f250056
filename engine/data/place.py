"""Where an iteration over a `DataLoader` is, however many batches its workers have prepared since."""

from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from engine.data.dataset import IterableDataset
from engine.data.sampler import has_state

if TYPE_CHECKING:
    from engine.data.dataloader import DataLoader


class Epoch:
    """One iteration. generator: the state of the loader's own one before it. state: where to go on, which sampler or
    dataset have heard of, or None.

    left_out: so many of its first batches are to be left out.
    """

    def __init__(self, loader: "DataLoader", generator: bytes | None, state: Mapping[str, Any] | None) -> None:
        self._loader, self._generator = loader, generator
        self._sampler: Any = loader.index_sampler
        self.finished = False
        self.left_out = 0
        self._given = 0
        self._kind = _kind(loader)
        skipped = 0
        if state is not None:
            if self._kind == "none" and isinstance(loader.dataset, IterableDataset):
                self.left_out = int(state["given"])
            elif self._kind == "none":
                self._given = skipped = int(state["given"])
        self._items = islice(iter(self._sampler), skipped, None)
        # The sampler's state after the last batch, and after those that are being prepared.
        self._state = self._state_of_sampler()
        self._coming: deque[Any] = deque()

    def indices(self) -> Iterator[Any]:
        """What the sampler yields for batches."""
        if self._kind != "sampler":
            yield from self._items
        for item in self._items:
            self._coming.append(self._state_of_sampler())
            yield item

    def _state_of_sampler(self) -> Any:
        return self._sampler.state_dict() if self._kind == "sampler" else None

    def give(self) -> None:
        """The next batch was given out."""
        self._given += 1
        if self._coming:
            self._state = self._coming.popleft()

    def run_through(self) -> None:
        """Brings the sampler and its generator to the end."""
        if not isinstance(self._loader.dataset, IterableDataset):
            deque(self._items, maxlen=0)

    def state_dict(self) -> dict[str, Any]:
        """After the batch given out last."""
        state = {"at": "end" if self.finished else "middle", "generator": self._generator}
        if self._kind == "sampler":
            return state | {"sampler": self._state}
        if self._kind == "dataset":
            return state | {"dataset": self._loader.dataset.state_dict()}
        return state | {"given": self._given}


def _kind(loader: "DataLoader") -> str:
    """Whose state says where a loader is: the sampler's, the dataset's, or that of none, when batches are counted."""
    if isinstance(loader.dataset, IterableDataset):
        return "dataset" if loader.num_workers == 0 and has_state(loader.dataset) else "none"
    return "sampler" if has_state(loader.index_sampler) else "none"


def load(loader: "DataLoader", state: Mapping[str, Any]) -> None:
    """The sampler's or the dataset's state, if that is what the place is."""
    kind = _kind(loader)
    if kind != "none" and kind in state:
        target: Any = loader.index_sampler if kind == "sampler" else loader.dataset
        target.load_state_dict(state[kind])


def state_at_start(loader: "DataLoader") -> dict[str, Any]:
    """Before the first epoch."""
    sampler: Any = loader.index_sampler
    return {"at": "start"} | ({"sampler": sampler.state_dict()} if _kind(loader) == "sampler" else {})


def check_in_order(loader: "DataLoader") -> None:
    """Raises: ValueError for a loader that gives out batches in no certain order."""
    if not loader.in_order:
        raise ValueError("DataLoader: with in_order=False there is no place to go on from; leave it out")
