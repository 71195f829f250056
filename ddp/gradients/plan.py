"""Pure planning: which parameter goes into which bucket, at which offset, with which strides. No MPI, no arrays."""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from ddp.transport.base import CACHE_LINE, round_up
from ddp.transport.timing import SumTimes
from engine.rules.layout import contiguous_strides, is_non_overlapping_and_dense

DEFAULT_CAP_BYTES = 25 * 1024 * 1024
FIRST_CAP_BYTES = 1024 * 1024
"""The first bucket to become ready is small, so that communication starts early; only when the user chose no cap."""
_LEAST_CAP_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Slot:
    """One parameter's place in a bucket: its index, and the view (in elements) that holds its gradient."""

    index: int
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BucketLayout:
    """A flat buffer of `count` elements with its slots. What lies between slots is padding and stays zero."""

    slots: tuple[Slot, ...]
    count: int


def choose_limits(nbytes: int, times: SumTimes | None) -> list[int]:
    """Limits of the buckets for gradients of so many bytes, where the user has chosen none.

    times: what a sum takes over a network; None within a host, where PyTorch's sizes are as good as any. Each bucket
    costs the time of an empty sum once more, and backward cannot hide the last one's bytes: the sum of both,
    nbytes / cap * seconds + cap * byte, is least where cap is the root of nbytes * seconds / byte.
    """
    if times is None:
        return [FIRST_CAP_BYTES, DEFAULT_CAP_BYTES]
    cap = math.sqrt(nbytes * times.seconds / times.byte) if times.byte else DEFAULT_CAP_BYTES
    cap = min(max(_LEAST_CAP_BYTES, int(cap)), DEFAULT_CAP_BYTES)
    return [min(FIRST_CAP_BYTES, cap), cap]


def compute_bucket_assignment(
    sizes: Sequence[int],
    keys: Sequence[Hashable],
    limits: Sequence[int],
    indices: Sequence[int] | None = None,
) -> tuple[list[list[int]], list[int]]:
    """Distribute tensors over buckets, in the given order.

    sizes: bytes of each tensor. keys: what may not be mixed, i.e. (dtype, device) of each. limits: bytes; a bucket is
    closed as soon as it holds at least as much, so it can exceed its limit by one tensor. Each key has its own bucket
    and its own place in the list of limits, whose last one repeats. indices: names of the tensors in that order, when
    it is not 0, 1, ... (the order in which gradients were ready).

    Returns the buckets as lists of indices, and the limit each was filled against. Without `indices` buckets are sorted
    by their lowest index; with them they are in the order in which they closed, the unfinished ones last, in the order
    of their first tensor.
    Raises ValueError if there is no limit, or the lists differ in length.
    Source: compute_bucket_assignment_by_size in torch/csrc/distributed/c10d/reducer.cpp.
    """
    names = range(len(sizes)) if indices is None else indices
    if not limits:
        raise ValueError("bucket assignment: expected at least one limit in bytes, got none")
    if not len(sizes) == len(keys) == len(names):
        raise ValueError(f"bucket assignment: got {len(sizes)} sizes, {len(keys)} keys and {len(names)} indices")
    closed: list[tuple[list[int], int]] = []
    unfinished: dict[Hashable, tuple[list[int], int]] = {}
    cursors: dict[Hashable, int] = {}
    for name, size, key in zip(names, sizes, keys, strict=True):
        cursor = cursors.setdefault(key, 0)
        members, filled = unfinished.get(key, ([], 0))
        members.append(name)
        filled += size
        if filled >= limits[cursor]:
            closed.append((members, limits[cursor]))
            unfinished.pop(key, None)
            cursors[key] = min(cursor + 1, len(limits) - 1)
        else:
            unfinished[key] = (members, filled)
    closed += [(members, limits[cursors[key]]) for key, (members, _) in unfinished.items()]
    if indices is None:
        closed.sort(key=lambda bucket: min(bucket[0]))
    return [members for members, _ in closed], [limit for _, limit in closed]


def plan_bucket(
    indices: Sequence[int],
    shapes: Sequence[tuple[int, ...]],
    strides: Sequence[tuple[int, ...]],
    itemsize: int,
) -> BucketLayout:
    """Lay out the parameters `indices` one after another in a flat buffer; `shapes` and `strides` of all parameters.

    A view has its parameter's strides where those are non-overlapping and dense, row-major ones otherwise, so that a
    gradient that obeys the layout contract is its bucket's memory. Every view starts on a cache line (PyTorch packs
    them without gaps): kernels read and write whole lines, and the padding is zero on every rank.
    """
    slots = []
    end = 0
    for index in indices:
        shape, stride = shapes[index], strides[index]
        if not is_non_overlapping_and_dense(shape, stride):
            stride = contiguous_strides(shape)
        offset = round_up(end, CACHE_LINE // itemsize)
        slots.append(Slot(index, offset, shape, stride))
        end = offset + math.prod(shape)
    return BucketLayout(tuple(slots), end)


def plan_buckets(
    parameters: Sequence[Any], keys: Sequence[Hashable], limits: Sequence[int], order: Sequence[int]
) -> list[BucketLayout]:
    """The buckets of `parameters` (tensors), filled in the order of these indices; see the two functions above."""
    sizes = [parameters[index].numel() * parameters[index].element_size() for index in order]
    assignment, _ = compute_bucket_assignment(sizes, [keys[index] for index in order], limits, order)
    shapes = [tuple(parameter.shape) for parameter in parameters]
    strides = [tuple(parameter.stride()) for parameter in parameters]
    return [plan_bucket(indices, shapes, strides, parameters[indices[0]].element_size()) for indices in assignment]
