"""`DataLoader`: batches of a dataset, in this process or by worker processes."""

import multiprocessing
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic

import engine
from engine.data import place
from engine.data.collate import default_collate, default_convert
from engine.data.dataset import Dataset, IterableDataset, Sample_co
from engine.data.fetch import Fetcher
from engine.data.pinning import PinnedBatches
from engine.data.processes import WorkerIterator
from engine.data.sampler import BatchSampler, RandomSampler, SequentialSampler, new_seed
from engine.memory import backend

_FIXED = ("batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers")


class _Endless:
    """The sampler of iterable datasets, which have no indices."""

    def __iter__(self) -> Iterator[None]:
        while True:
            yield None


class DataLoader(Generic[Sample_co]):
    """Iterates over batches of `dataset`; each `iter()` is one epoch.

    Args:
        batch_size: samples a batch; None yields samples. drop_last: leave out a last batch that is shorter. shuffle,
        sampler, batch_sampler: the order, one of them at most; generator: where random orders and seeds come from.
        num_workers: processes that fetch, 0 for this one; prefetch_factor: batches each prepares ahead (2);
            persistent_workers: keep them between epochs; timeout: seconds to wait for a batch, 0 for ever;
            worker_init_fn(worker id): called first in each; multiprocessing_context: how they start, see
            engine.data.processes; in_order: give out batches in the order of the sampler, or as they come.
        collate_fn: from a list of samples to a batch; default_collate if None.
        pin_memory: batches in page-locked memory, from which `to(device, non_blocking=True)` and `DevicePrefetcher`
            copy to a GPU; needs one, and warns without. pin_memory_device: accepted, that memory serves all GPUs.
    `state_dict` and `load_state_dict`: its place in an epoch, see there.
    Worker `i` is seeded with a seed of the epoch plus i (Python, NumPy and the engine).
    Raises: ValueError for arguments that contradict one another.
    """

    _ready = False
    _persistent: WorkerIterator | None = None
    _goes_on: Mapping[str, Any] | None = None  # what the next iteration is to go on from
    epoch: place.Epoch | None = None
    """The iteration begun last."""

    def __init__(
        self,
        dataset: Dataset[Sample_co] | Sequence[Sample_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[list[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], Any] | None = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
    ) -> None:
        _check_workers(num_workers, timeout, prefetch_factor, persistent_workers)
        iterable = isinstance(dataset, IterableDataset)
        if iterable:
            for name, value in (("shuffle", shuffle or None), ("sampler", sampler), ("batch_sampler", batch_sampler)):
                if value is not None:
                    raise ValueError(
                        f"DataLoader with IterableDataset: expected unspecified {name} option, but got {name}={value}"
                    )
        if sampler is not None and shuffle:
            raise ValueError("sampler option is mutually exclusive with shuffle")
        if batch_sampler is not None:
            if batch_size != 1 or shuffle or sampler is not None or drop_last:
                raise ValueError(
                    "batch_sampler option is mutually exclusive with batch_size, shuffle, sampler, and drop_last"
                )
            batch_size = None
        elif batch_size is None and drop_last:
            raise ValueError("batch_size=None option disables auto-batching and is mutually exclusive with drop_last")
        if sampler is None:
            if iterable:
                sampler = _Endless()
            else:
                samples: Any = dataset  # which has a length where it is no IterableDataset
                sampler = RandomSampler(samples, generator=generator) if shuffle else SequentialSampler(samples)
        if batch_size is not None:
            batch_sampler = BatchSampler(sampler, batch_size, drop_last)
        self._pins = pin_memory and _finds_gpu()
        self.dataset: Any = dataset
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.sampler = sampler
        self.batch_sampler = batch_sampler
        self.batched = batch_sampler is not None
        self.collate_fn = collate_fn or (default_collate if self.batched else default_convert)
        self.num_workers = num_workers
        self.prefetch_factor = prefetch_factor if prefetch_factor is not None or num_workers == 0 else 2
        self.persistent_workers = persistent_workers
        self.pin_memory = pin_memory
        self.pin_memory_device = pin_memory_device
        self.timeout = timeout
        self.worker_init_fn = worker_init_fn
        self.multiprocessing_context = _context(multiprocessing_context, num_workers)
        self.generator = generator
        self.in_order = in_order
        self._ready = True

    def __setattr__(self, name: str, value: Any) -> None:
        if self._ready and name in _FIXED:
            raise ValueError(f"{name} attribute should not be set after {type(self).__name__} is initialized")
        super().__setattr__(name, value)

    @property
    def index_sampler(self) -> Iterable[Any]:
        """What yields the indices of one batch, or of one sample without batches."""
        return self.batch_sampler if self.batch_sampler is not None else self.sampler

    def __iter__(self) -> Iterator[Any]:
        batches = self._batches()
        return PinnedBatches(batches) if self._pins else batches

    def _batches(self) -> Iterator[Any]:
        state, self._goes_on = self._goes_on, None
        base_seed, generator = self._base_seed(state)
        epoch = self.epoch = place.Epoch(self, generator, state)
        if self.num_workers == 0:
            batches: Iterator[Any] = _OwnBatches(self)
        elif self._persistent is None or not self._persistent.processes:
            batches = WorkerIterator(self, base_seed)
            if self.persistent_workers:
                self._persistent = batches
        else:
            batches = self._persistent
            batches.restart()
        for _ in range(epoch.left_out):
            next(batches, None)
        return batches

    # --- its place ----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Where the iteration begun last is: after the batch that was given out last, whatever workers have prepared.

        Integers and bytes, the same on every rank where the sampler's are. It has the state of the sampler, if that has
        one, of an own `generator`, and, without workers, of an iterable dataset that has one.
        Raises: ValueError for in_order=False, where there is no such place.
        """
        place.check_in_order(self)
        if self._goes_on is not None:
            return dict(self._goes_on)
        return place.state_at_start(self) if self.epoch is None else self.epoch.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """The next iteration goes on there: its first batch is the one that would have come.

        Of the last batch's place the next iteration is empty; after the end of an epoch it is a new one. What samplers
        yielded is left out without loading it; only batches of an iterable dataset without a state are loaded again.
        Nothing is drawn from the default generator, which is the training's; workers are seeded anew.
        """
        place.check_in_order(self)
        self.epoch = self._goes_on = None
        place.load(self, state_dict)
        if state_dict["at"] == "middle":
            self._goes_on = dict(state_dict)
        elif state_dict["at"] == "end":
            _, generator = self._base_seed(state_dict)
            place.Epoch(self, generator, state_dict).run_through()

    def _base_seed(self, state: Mapping[str, Any] | None) -> tuple[int, bytes | None]:
        """Drawn in every epoch, so that orders do not depend on the workers; and what an own generator was before.

        An epoch that goes on has drawn it already.
        """
        own = self.generator
        if state is None:
            return new_seed(own), None if own is None else own.get_state().numpy().tobytes()
        if own is not None and state["generator"] is not None:
            own.set_state(engine.tensor(list(state["generator"]), dtype=engine.uint8))
            return new_seed(own), state["generator"]
        before = engine.get_rng_state()
        try:
            return new_seed(), None
        finally:
            engine.set_rng_state(before)

    def __len__(self) -> int:
        """Batches (or samples) an epoch. Raises TypeError where dataset or sampler have no length."""
        if isinstance(self.dataset, IterableDataset):
            size = len(self.dataset)  # type: ignore[arg-type]
            if self.batch_size is None:
                return size
            return size // self.batch_size if self.drop_last else -(-size // self.batch_size)
        return len(self.index_sampler)  # type: ignore[arg-type]


class _OwnBatches(Iterator[Any]):
    """One epoch fetched by this process."""

    def __init__(self, loader: DataLoader) -> None:
        self.loader = loader
        assert loader.epoch is not None
        self.epoch = loader.epoch
        self.indices = self.epoch.indices()
        self.fetcher = Fetcher(loader.dataset, loader.batched, loader.collate_fn, loader.drop_last)

    def __next__(self) -> Any:
        try:
            indices = next(self.indices)
            try:
                return self.fetcher.fetch(indices)
            finally:
                self.epoch.give()
        except StopIteration:
            self.epoch.finished = True
            raise

    def __len__(self) -> int:
        return len(self.loader)


def _finds_gpu() -> bool:
    global _told_of_no_gpu
    try:
        backend.require_cupy()
    except RuntimeError:
        ranks = (os.environ.get(name, "0") for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"))
        if not _told_of_no_gpu and not any(map(int, ranks)):
            warnings.warn(
                "'pin_memory' argument is set as true but no accelerator is found, then device pinned memory won't "
                "be used.",
                stacklevel=3,
            )
        _told_of_no_gpu = True
        return False
    return True


_told_of_no_gpu = False  # once a job: the loaders after the first, and other ranks, keep silent


def _check_workers(num_workers: int, timeout: float, prefetch_factor: int | None, persistent_workers: bool) -> None:
    if num_workers < 0:
        raise ValueError("num_workers option should be non-negative; use num_workers=0 to disable multiprocessing.")
    if timeout < 0:
        raise ValueError("timeout option should be non-negative")
    if num_workers == 0 and prefetch_factor is not None:
        raise ValueError(
            "prefetch_factor option could only be specified in multiprocessing. let num_workers > 0 to enable "
            "multiprocessing, otherwise set prefetch_factor to None."
        )
    if prefetch_factor is not None and prefetch_factor < 1:
        raise ValueError("prefetch_factor option should be positive")
    if persistent_workers and num_workers == 0:
        raise ValueError("persistent_workers option needs num_workers > 0")


def _context(given: Any, num_workers: int) -> Any:
    """The multiprocessing context for `multiprocessing_context`, None to decide when workers start."""
    if given is None:
        return None
    if num_workers == 0:
        raise ValueError(
            "multiprocessing_context can only be used with multi-process loading (num_workers > 0), but got "
            "num_workers=0"
        )
    if isinstance(given, str):
        known = multiprocessing.get_all_start_methods()
        if given not in known:
            raise ValueError(
                f"multiprocessing_context option should specify a valid start method in {known!r}, but got {given!r}"
            )
        return multiprocessing.get_context(given)
    if not isinstance(given, multiprocessing.context.BaseContext):
        raise TypeError(
            "multiprocessing_context option should be a valid context object or a string specifying the start "
            f"method, but got {given!r}"
        )
    return given
