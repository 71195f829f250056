"""Are the replicas still one model? The first bucket's header says where its rank is; ranks that differ are named.

A rank says of itself: its step (forwards in training mode so far, or a job's step), the learning rates of the
optimizers that have stepped its parameters, and in every fourth step a checksum of a part of the parameters, each time
of another one, so that in one round all of them had their turn: two tensors a part, or 256 KiB, so a round of n small
tensors takes 2 n steps. These become one number x. A header carries 1, x and x * x, which are summed with it: all x
were equal exactly where n times the sum of squares is the square of the sum. So nothing is sent that would not be sent
anyway, and every rank learns of it in the same bucket; only then do they tell each other the details.

Parameters on a GPU are left out: a checksum would have to wait for the device.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol
from warnings import warn
from weakref import ref

import numpy as np

import engine
from ddp.transport.headers import Header
from engine.optim import Optimizer
from engine.tensor import array_of
from engine.tensor.flat import flat_view

# Steps from one part to the next: what a step of a small model costs is mostly to begin, with code that is in no cache.
_PERIOD = 4
# Bytes of a part, and tensors. The checksum of 64 KiB takes 6 µs, that of a small tensor 2, and 4 where nothing is
# in a cache: with 8 tensors a part, a step of 9 linear layers of width 16 took 5 µs more.
_PART_BYTES = 1 << 18
_PART_TENSORS = 2
_MOST_PARTS = 1000  # of larger models parts are larger
_EXACT_BITS = 53  # of a float64's integers
_AT_MOST = 5  # differences that an error lists
_NAN = float("-inf")  # stands for a rate that is none: those who have it are alike


class HasStep(Protocol):
    """What counts the steps of a job (`ddp.job`)."""

    step: int


class Piece(NamedTuple):
    """Of one parameter: bytes [begin, end) of its memory, as so many words of a type."""

    parameter: int
    begin: int
    end: int
    words: int
    word: type[np.unsignedinteger[Any]]


class Statement(NamedTuple):
    """Where a rank is, in one backward."""

    step: int
    rates: tuple[float, ...]
    sums: tuple[tuple[str, int], ...]
    """Name and checksum of the parameters in this step's part."""


class Drift:
    """What one rank says of its replica, and what it hears of the others'.

    parameters: (name, parameter), alike on every rank. voices: how many statements are summed, at most. job: whose step
    is to be the same on all ranks, and says whose turn it is; without one it is the number of forwards, and a turn
    comes with each statement. raises: whether a drift is an error, or only a warning.
    """

    def __init__(
        self,
        parameters: Sequence[tuple[str, engine.Tensor]],
        voices: int,
        job: "HasStep | None",
        raises: bool,
    ) -> None:
        self.raises = raises
        self._names = [name for name, _ in parameters]
        self._parameters = [parameter for _, parameter in parameters]
        self._job = job
        self.forwards = 0
        """In training mode, so far: the wrapper counts them."""
        self._optimizers: set[ref[Optimizer]] = set()
        self._ids = {id(parameter) for parameter in self._parameters}
        self.parts = _plan([parameter.nbytes if parameter.device.type == "cpu" else 0 for _, parameter in parameters])
        """What is looked at in the first, fifth, ... step of a round."""
        self._turn = -1
        self._mask = (1 << (_EXACT_BITS - voices.bit_length()) // 2) - 1
        self._said: tuple[int, list[float], list[Piece], list[int]] = 0, [], [], []

    @property
    def round(self) -> int:
        """Steps in which every parameter was looked at."""
        return _PERIOD * len(self.parts)

    @property
    def said(self) -> Statement:
        """The last one of this rank."""
        step, rates, part, totals = self._said
        sums = ((self._names[piece.parameter], total) for piece, total in zip(part, totals, strict=True))
        return Statement(step, tuple(rates), tuple(sums))

    def tell(self, exchange: Callable[[Statement], list[Statement]], rank: int) -> None:
        """Collective, where not all statements were alike: says which, and in what.

        exchange: gives every rank's statement. rank: this one.
        Raises RuntimeError, on every rank, or warns on rank 0.
        """
        everyones = exchange(self.said)
        text = (
            f"DistributedDataParallel: the replicas have drifted apart: {in_words(everyones)}. Every rank must take "
            "the same steps with the same optimizer, and load the same file; where replicas are to differ, say "
            'on_drift="ignore"'
        )
        if self.raises:
            raise RuntimeError(text)
        if rank == 0:
            warn(text, RuntimeWarning, stacklevel=3)

    def note(self, optimizer: Optimizer) -> None:
        """It is about to step. If it steps parameters of this replica, its learning rates are to be alike."""
        if ref(optimizer) in self._optimizers:
            return
        for group in optimizer.param_groups:
            if not self._ids.isdisjoint(map(id, group["params"])):
                self._optimizers.add(ref(optimizer, self._optimizers.discard))
                return

    def state(self) -> tuple[float, float, float]:
        """Of this rank now, as a header carries it; the next part's turn comes."""
        rates = []
        for weak in tuple(self._optimizers):
            optimizer = weak()
            for group in () if optimizer is None else optimizer.param_groups:
                if "lr" in group:
                    rate = float(group["lr"])
                    rates.append(rate if rate == rate else _NAN)
        if len(rates) > 1:  # how many groups there are, and in which order, is no matter
            rates = sorted({*rates})
        step = self.forwards if self._job is None else self._job.step
        self._turn = self._turn + 1 if self._job is None else step
        turn, rest = divmod(self._turn, _PERIOD)
        part: list[Piece] = []
        totals: list[int] = []
        if not rest and self.parts:
            part = self.parts[turn % len(self.parts)]
            totals = [_checksum(self._parameters[piece.parameter], piece) for piece in part]
        self._said = step, rates, part, totals
        number = hash((step, *totals, *rates)) & self._mask  # of numbers, so it is the same in every process
        return 1.0, number, number * number


def is_in(told: Header) -> bool:
    """Whether a header that was summed tells of different statements."""
    return int(told.voices) * int(told.squares) != int(told.states) ** 2


def in_words(everyones: Sequence[Statement]) -> str:
    """Who differs from most others (or from rank 0), and in what."""
    problems = [
        f"{who} at step {step}, others at step {usual}"
        for who, step, usual in _others([each.step for each in everyones])
    ]
    problems += [
        f"{who} with learning rate {_plain(rates)}, others with {_plain(usual)}"
        for who, rates, usual in _others([each.rates for each in everyones])
    ]
    for name in dict.fromkeys(name for each in everyones for name, _ in each.sums):
        found = _others([dict(each.sums).get(name) for each in everyones])
        problems += [f"{who} with another value of parameter {name}" for who, _, _ in found]
    more = f", and {len(problems) - _AT_MOST} more" if len(problems) > _AT_MOST else ""
    return "; ".join(problems[:_AT_MOST]) + more


def _others(found: list[Any]) -> list[tuple[str, Any, Any]]:
    """The ranks with another value than most, that value, and the usual one; of equally frequent ones the first."""
    usual = max(found, key=found.count)
    ranks: dict[Any, list[int]] = {}
    for rank, value in enumerate(found):
        if value != usual:
            ranks.setdefault(value, []).append(rank)
    return [
        (f"rank {each[0]}" if len(each) == 1 else f"ranks {', '.join(map(str, each))}", value, usual)
        for value, each in ranks.items()
    ]


def _plain(rates: tuple[float, ...]) -> str:
    return ", ".join("nan" if each == _NAN else f"{each:g}" for each in rates) or "none yet"


def _plan(sizes: Sequence[int]) -> list[list[Piece]]:
    """Parts of all tensors of these sizes in bytes."""
    most = max(_PART_BYTES, -(-sum(sizes) // _MOST_PARTS) // 8 * 8)
    parts: list[list[Piece]] = []
    part: list[Piece] = []
    room = most
    for index, size in enumerate(sizes):
        for begin in range(0, size, most):
            end = min(begin + most, size)
            if part and (end - begin > room or len(part) == _PART_TENSORS):
                parts.append(part)
                part, room = [], most
            word = np.uint64 if (end - begin) % 8 == 0 else np.uint32 if (end - begin) % 4 == 0 else np.uint8
            part.append(Piece(index, begin, end, (end - begin) // word().itemsize, word))
            room -= end - begin
    return [*parts, part] if part else parts


def _checksum(parameter: engine.Tensor, piece: Piece) -> int:
    """The sum of the words of a piece of memory: another one wherever one bit is another."""
    array = array_of(parameter)
    if not array.flags.c_contiguous:
        flat = flat_view(parameter)
        array = np.ascontiguousarray(parameter.detach().numpy()) if flat is None else flat
    return int(np.add.reduce(np.ndarray(piece.words, piece.word, array, piece.begin), dtype=np.uint64))
