"""The header of a gradient bucket: what each rank says of the gradients that it sends, summed over the ranks with them.

It is one record, `Header`, followed by a number for each parameter of the bucket: whether the rank had a gradient of
it. All are float64 and summed in rank order, exact for integers up to 2**53. A transport knows of `weight` only, which
it reads in the header of every rank before it sums an element. What is to travel with each bucket in future is another
field here; nobody counts positions.
"""

from collections.abc import Iterable
from struct import Struct
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


class Header(NamedTuple):
    """What a rank says; after the sum, what all ranks said together."""

    weight: float
    """Of this rank's gradients in the mean."""
    failed: float = 0.0
    """1 where an exception ended this rank's backward."""
    failed_rank: float = 0.0
    """That rank's number; of several the sum, which means nothing."""
    incomplete: float = 0.0
    """1 where this rank had no gradient of some parameter."""
    out_of_data: float = 0.0
    """1 where this rank has no further batch."""
    voices: float = 0.0
    """1 where this rank says where its replica is (`ddp.gradients.drift`): in a number below 2**26,"""
    states: float = 0.0
    """this one,"""
    squares: float = 0.0
    """and its square, which add up to the square of the mean only where all are alike."""


_FIELDS = len(Header._fields)
_RECORD = Struct(f"{_FIELDS}d")  # half the time of a slice of an array, and a bucket is filled and read in every step
_WEIGHT = Header._fields.index("weight")


def length(parameters: int) -> int:
    """How many numbers the header of a bucket of so many parameters has."""
    return _FIELDS + parameters


def write(numbers: Numbers, header: Header, used: Any = 0) -> None:
    """Fills a header. used: for each parameter whether this rank had a gradient of it, or one value for all."""
    _RECORD.pack_into(numbers.data, 0, *header)
    numbers[_FIELDS:] = used


def read(numbers: Numbers) -> Header:
    """The record."""
    return tuple.__new__(Header, _RECORD.unpack_from(numbers.data))  # its own constructor is in Python


def users(numbers: Numbers) -> Numbers:
    """For each parameter how many ranks had a gradient of it: a view."""
    return numbers[_FIELDS:]


def weights(headers: Iterable[Numbers] | Numbers) -> list[float]:
    """Of several ranks' headers; also of those that have nothing but a weight."""
    if isinstance(headers, np.ndarray):
        of_rows: list[float] = headers[:, _WEIGHT].tolist()
        return of_rows
    return [float(header[_WEIGHT]) for header in headers]


def write_weight(numbers: Numbers, weight: float) -> None:
    """In a header that has nothing else, or before anything else is known."""
    numbers[_WEIGHT] = weight
