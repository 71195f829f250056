"""Do all ranks make the same call? A collective is described by a few words, and the ranks compare those before bytes
move: a different order of calls, another shape, dtype, layout or root is an error on every rank instead of a hang or
wrong numbers.

What travels is two numbers a call, added up over the ranks (`ddp.execution.collective`): the digest of what must be
alike, and a balance of what goes from rank to rank, in which everything sent counts up and everything expected counts
down. The words themselves travel only when the sums are not as they should be.
"""

import os
import sys
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from types import FrameType
from typing import Any, NamedTuple

from ddp.execution.layouts import TensorLayout, find_difference
from ddp.world.ranks import name_ranks
from engine.errors.callers import INTERNAL

NOT_THE_USERS = [os.path.dirname(os.path.dirname(__file__)) + os.sep]
"""How the file names of frames begin between the user's call and this package; `ddp.torch_backend` adds PyTorch's."""

MODULUS = 1 << 64


class Call(NamedTuple):
    """One rank's call of a collective. Ranks are numbers in the group."""

    name: str
    details: tuple[tuple[str, Any], ...] = ()
    """What must be equal on all ranks: (argument, value)."""
    tensors: tuple[TensorLayout, ...] = ()
    """Tensors that must be laid out alike on all ranks."""
    sends: tuple[TensorLayout, ...] = ()
    """What goes to each rank; empty if all ranks get what `tensors` says."""
    expects: tuple[TensorLayout, ...] = ()
    """What is to come from each rank."""


class Account(NamedTuple):
    """A call as the other ranks are told of it when something is wrong."""

    call: Call
    place: str


@lru_cache(4096)
def digest(call: Call, rank: int) -> tuple[int, int]:
    """Two numbers below 2**64: equal on all ranks, and 0 in the sum over all ranks, if the calls fit together."""
    alike = _hash((call.name, call.details, call.tensors))
    balance = sum(_hash((rank, to, sent)) for to, sent in enumerate(call.sends)) - sum(
        _hash((source, rank, expected)) for source, expected in enumerate(call.expects)
    )
    return alike, balance % MODULUS


def _hash(value: object) -> int:
    return int.from_bytes(blake2b(repr(value).encode(), digest_size=8).digest(), "little")


def explain(accounts: Sequence[Account]) -> Exception:
    """The error for calls, one a rank, that do not fit together: the same on every rank.

    RuntimeError where the ranks call different collectives, as PyTorch's debug mode raises it; ValueError where the
    arguments differ.
    """
    calls = [account.call for account in accounts]
    first = calls[0]
    if any(call.name != first.name for call in calls):
        return RuntimeError(
            f"Detected mismatch between collectives on ranks: {_who_is_where(accounts)}; "
            "every rank must call the same collectives in the same order"
        )
    for rank, call in enumerate(calls):
        for (what, expected), (_, found) in zip(first.details, call.details, strict=True):
            if found != expected:
                return ValueError(
                    f"{first.name}: {what} differs between ranks: rank {rank} has {found} where rank 0 has {expected} "
                    f"({accounts[rank].place} and {accounts[0].place})"
                )
    difference = find_difference([call.tensors for call in calls])
    if difference is not None:
        return ValueError(
            f"{first.name}: tensors differ between ranks: {difference} ({_places(accounts)}); "
            "shape, strides and dtype must agree on all ranks"
        )
    for source, call in enumerate(calls):
        for to, sent in enumerate(call.sends):
            expected = calls[to].expects[source]
            if sent != expected:
                return ValueError(
                    f"{first.name}: rank {source} sends {sent} to rank {to}, which expects {expected} "
                    f"({_places(accounts)})"
                )
    raise AssertionError(f"calls that fit together were taken for different ones: {accounts}")


def _who_is_where(accounts: Sequence[Account]) -> str:
    groups: dict[tuple[str, str], list[int]] = {}
    for rank, account in enumerate(accounts):
        groups.setdefault((account.call.name, account.place), []).append(rank)
    return ", ".join(
        f"{name_ranks(ranks)} {'is' if len(ranks) == 1 else 'are'} in {name} ({place})"
        for (name, place), ranks in groups.items()
    )


def _places(accounts: Sequence[Account]) -> str:
    places: dict[str, list[int]] = {}
    for rank, account in enumerate(accounts):
        places.setdefault(account.place, []).append(rank)
    if len(places) == 1:
        return accounts[0].place
    return ", ".join(f"{name_ranks(ranks)}: {place}" for place, ranks in places.items())


def calling_line(frame: FrameType | None = None) -> str:
    """Where the user's code has called this package, as "file:line"."""
    frame = frame or sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((*NOT_THE_USERS, *INTERNAL)):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
