"""`Job`: a training run that gives the same bits on any number of ranks.

What decides a step is its shards: S slices of the global batch, S fixed for the life of the job. Each has random
numbers of its own, a function of (seed, step, shard), batch statistics of its own, and a leaf of its own in the tree in
which gradients are added (`ddp.transport.order`). P ranks, 1 <= P <= S, carry the shards between them; who carries
what changes no bit.

What else may change bits (the kind of CPU, versions of libraries, the number of threads) is the job's fingerprint.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload
from weakref import WeakKeyDictionary

import numpy as np

import engine
from ddp import losses, replicas
from ddp.gradients.of_shards import ReducerOfShards
from ddp.groups.group import resolve
from ddp.groups.process_group import ProcessGroup
from ddp.job.batches import Position
from ddp.job.fingerprint import differences, fingerprint
from ddp.job.recovery import Recovery
from ddp.job.streams import seed_stream
from ddp.training.sync_batch_norm import SyncBatchNorm
from ddp.transport.order import carried
from engine.tensor import array_of

if TYPE_CHECKING:
    from ddp.training.parallel import DistributedDataParallel

P = ParamSpec("P")
T = TypeVar("T")


class Job:
    """A run whose parameters, optimizer state, buffers and losses are the same bits on any number of ranks.

        job = ddp.Job(shards=12, seed=0)
        net = ddp.DistributedDataParallel(model, job=job)
        loader = DataLoader(data, batch_sampler=ddp.ShardSampler(data, batch_size, job))

        def train_step():
            losses = []
            for inputs, targets in job.shards(loader):  # those that this rank carries
                loss = F.cross_entropy(net(inputs), targets)
                loss.backward()
                losses.append(loss.detach())
            optimizer.step()
            return job.mean(losses)

        while job.step < steps:
            loss = job.run(train_step)

    The body of a step is a function of the job's step and of the state of model and optimizer, so that it can be run
    again. Gradients are dropped where a shard begins; its last backward, the one outside of `no_sync`, ends it.

    Memory: besides its gradients a rank keeps as many sums of gradients as the tree over the shards asks for, none
    where each rank has one shard, at most 2 log2(shards).

    Args:
        shards: how many; by default the number of ranks that start the job. Fixed from then on.
        seed: of all random numbers. Python's, NumPy's and the engine's are seeded with it here, so a model made after
            the job is the same on every rank.
        threads: of each rank's matrix products. Their number may change bits, so it is the job's, not the machine's.
        process_group: the ranks; default all.

    Raises: ValueError on every rank for less than one shard, fewer shards than ranks, or arguments that differ.
    """

    def __init__(
        self,
        shards: int | None = None,
        seed: int = 0,
        threads: int = 1,
        process_group: ProcessGroup | None = None,
    ) -> None:
        self.process_group = resolve(process_group)
        ranks = self.process_group.size()
        self.num_shards = ranks if shards is None else shards
        self.seed = seed
        self.threads = threads
        self.step = 0
        """How many steps are done."""
        self.shard: int | None = None
        """The one that is being worked on, inside `shards`."""
        self._asked_for = shards is not None
        # In the order in which they were wrapped, the same on every rank.
        self._nets: WeakKeyDictionary[DistributedDataParallel, None] = WeakKeyDictionary()
        self._entering: DistributedDataParallel | None = None
        self._loaders: list[Position] = []
        self._recovery = None if losses.watching() is None else Recovery(self)
        everyones = self.between(self._exchange, (self.num_shards, seed, threads, fingerprint(threads)))
        for rank, (*found, _) in enumerate(everyones):
            expected = list(everyones[0][:3])
            if found != expected:
                raise ValueError(
                    f"Job: rank {rank} has shards, seed and threads {found}, rank 0 has {expected}; pass the same on "
                    "every rank"
                )
        self._check_size()
        if self.process_group.rank == 0:
            for rank, (*_, other) in enumerate(everyones):
                _warn_of(differences(everyones[0][-1], other), f"rank {rank} differs from rank 0")
        self.fingerprint = everyones[0][-1]
        """What of the machine and its software decides bits, by name; rank 0's."""
        engine.set_num_threads(threads)
        seed_stream(seed, 0, None)

    def _check_size(self) -> None:
        if not self.process_group.size() <= self.num_shards:
            raise ValueError(
                f"Job: every rank carries at least one shard, but there are {self.process_group.size()} ranks and "
                f"shards={self.num_shards}; start at most so many ranks, or a job with more shards"
            )

    @property
    def carried(self) -> range:
        """The shards of this rank."""
        return carried(self.num_shards, self.process_group.rank, self.process_group.size())

    @overload
    def shards(self, batches: None = None) -> Iterator[int]: ...
    @overload
    def shards(self, batches: Iterable[T]) -> Iterator[T]: ...
    def shards(self, batches: Any = None) -> Iterator[Any]:
        """One item for each shard of this rank, in their order: its number, or the next of `batches`.

        In each the random numbers are the shard's, the wrapped modules' buffers those of the step's start, and one
        backward outside of `no_sync` is expected. After the loop buffers are shard 0's on every rank (collective), and
        random numbers the same on all.

        batches: gives the batches of this rank's shards from the present step on, as a DataLoader over a `ShardSampler`
        does. It is iterated over once for all steps, and anew where a step did not come to its end.
        Raises RuntimeError where a shard had no backward, or more than one.
        """
        nets, own = list(self._nets), self.carried
        reducers = [_reducer(net) for net in nets]
        position = None if batches is None else self._position(batches)
        at_start = _copies(nets) if len(own) > 1 else []
        of_first: list[list[np.ndarray]] = []
        for place, shard in enumerate(own):
            item = shard if position is None else position.next()
            if place:
                _write(nets, at_start)
            for reducer in reducers:
                reducer.begin_shard(place, len(own))
            self.shard = shard
            seed_stream(self.seed, self.step, shard)
            yield item
            for reducer in reducers:
                reducer.check_shard(place + 1, len(own))
            if shard == 0 and len(own) > 1:
                of_first = _copies(nets)
        self.shard = None
        if own.start == 0 and len(own) > 1:
            _write(nets, of_first)
        for net in nets:
            if net.training:
                replicas.copy_from(0, net.current_buffers(), self.process_group)
        if position is not None:
            position.step = self.step + 1
        seed_stream(self.seed, self.step, None)

    def mean(self, values: Sequence[float | engine.Tensor]) -> float:
        """Collective: the mean over all shards of one number each, given those of this rank's shards in their order.

        The sum is rounded once, so the bits do not depend on the ranks.
        Raises ValueError unless there are as many as this rank has shards.
        """
        if len(values) != len(self.carried):
            raise ValueError(
                f"Job.mean: expected a number for each of the {len(self.carried)} shards here, got {len(values)}"
            )
        everyones = self.process_group.exchange([float(value) for value in values])
        return math.fsum(value for own in everyones for value in own) / self.num_shards

    def run(self, body: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """One step: calls the body and counts it. Returns what it returns.

        Where it raises before an optimizer has stepped, everything is as before: the step can be run again.
        """
        losses.at_step(self.step + 1)
        if self._recovery is not None:
            result = self._recovery.attempt(lambda: body(*args, **kwargs), runs=True)
        else:
            put_back = self.copy_state()
            try:
                result = body(*args, **kwargs)
            except BaseException:
                put_back()
                raise
        self.step += 1
        return result

    def between(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Collective, between two steps: calls a function in which ranks talk (an evaluation, a checkpoint).

        Under `ddprun --elastic` it is called again where a rank is lost meanwhile, so what it changes should be the
        same then; otherwise this is a plain call.
        """
        return losses.between(function, *args, **kwargs)

    def _exchange(self, value: T) -> list[T]:
        return self.process_group.exchange(value)

    # --- for ddp.job.recovery -----------------------------------------------------------------------------------------

    def copy_state(self) -> Callable[[], None]:
        """Returns what puts back that which a step changes before an optimizer has stepped."""
        nets = list(self._nets)
        before = _copies(nets)

        def put_back() -> None:
            self.shard = None
            _write(nets, before)

        return put_back

    def state_dict(self) -> dict[str, Any]:
        """What it takes to go on on any number of ranks; a sampler's place in its data is the step."""
        return {
            "step": self.step,
            "num_shards": self.num_shards,
            "seed": self.seed,
            "threads": self.threads,
            "fingerprint": dict(self.fingerprint),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Collective: goes on where `state_dict` was taken, with its shards and seed.

        A fingerprint that is another one is told by name (RuntimeWarning): the bits may be others from here on.
        Raises ValueError where another number of shards was asked for, or there are more ranks than shards.
        """
        shards = int(state_dict["num_shards"])
        if self._asked_for and shards != self.num_shards:
            raise ValueError(
                f"Job: the state is of a job with shards={shards}, this one was made with shards={self.num_shards}; "
                "shards define a job, so pass the same number, or none"
            )
        anew = shards != self.num_shards
        self.num_shards, self.seed = shards, int(state_dict["seed"])
        self.step, self.threads = int(state_dict["step"]), int(state_dict["threads"])
        self._check_size()
        engine.set_num_threads(self.threads)
        if self.process_group.rank == 0:
            now = fingerprint(self.threads)
            _warn_of(differences(state_dict["fingerprint"], now), "it goes on where something differs")
        if anew:
            for net in list(self._nets):
                net.renew_reducer()
        self._loaders.clear()
        seed_stream(self.seed, self.step, None)

    # --- for DistributedDataParallel ----------------------------------------------------------------------------------

    def problem(self, net: "DistributedDataParallel") -> Exception | None:
        """Why the job cannot train this module."""
        name = "DistributedDataParallel with a job"
        if net.process_group is not self.process_group:
            return ValueError(f"{name}: it has another process group than its job; pass the same to both")
        for path, module in net.module.named_modules():
            if isinstance(module, SyncBatchNorm):
                return ValueError(
                    f"{name}: {path or 'the module'} is a SyncBatchNorm, whose statistics are of all ranks' batches; "
                    "in a job they are of each shard's, so use BatchNorm"
                )
        if losses.minimum() and any(parameter.is_cuda for parameter in net.module.parameters()):
            return ValueError(f"{name}: on GPUs it does not outlive the loss of a rank; start it without --elastic")
        if not net.broadcast_buffers:
            return ValueError(f"{name}: buffers are those of shard 0; leave out broadcast_buffers=False")
        return None

    def enter(self, net: "DistributedDataParallel") -> None:
        """From now on `shards` is about this module, too."""
        self._entering = net
        if self._recovery is None:
            self.settle(True)

    def wrapped(self) -> list["DistributedDataParallel"]:
        """The models, in the order in which they were."""
        return list(self._nets)

    def settle(self, committed: bool) -> None:
        """Whether what this rank has done last counts: a module that was being wrapped is part of the job then."""
        if committed and self._entering is not None:
            self._nets[self._entering] = None
        self._entering = None

    def leave_behind(self) -> None:
        """Collective over the ranks that are left when some were lost: the shards are dealt anew."""
        self._loaders.clear()
        for net in list(self._nets):
            net.renew_reducer()

    def _position(self, batches: Iterable[Any]) -> Position:
        """Where the iteration over `batches` is, at the present step."""
        for position in self._loaders:
            if position.batches is batches:
                break
        else:
            position = Position(batches)
            self._loaders.append(position)
        position.seek(self.step, self.carried)
        return position


def _reducer(net: "DistributedDataParallel") -> ReducerOfShards:
    """That of a module wrapped with this job."""
    reducer = net.live_reducer()
    assert isinstance(reducer, ReducerOfShards)
    return reducer


def _copies(nets: Sequence["DistributedDataParallel"]) -> list[list[np.ndarray]]:
    """Of their buffers."""
    return [[array_of(buffer).copy() for buffer in net.current_buffers()] for net in nets]


def _write(nets: Sequence["DistributedDataParallel"], copies: list[list[np.ndarray]]) -> None:
    """What `_copies` gave, into the buffers. Versions stay: a backward may have saved them."""
    for net, arrays in zip(nets, copies, strict=True):
        for buffer, array in zip(net.current_buffers(), arrays, strict=True):
            array_of(buffer)[...] = array


def _warn_of(found: list[str], what: str) -> None:
    if found:
        text = f"Job: {what} that may change the last bits of its numbers: {'; '.join(found)}"
        warnings.warn(text, RuntimeWarning, stacklevel=4)
