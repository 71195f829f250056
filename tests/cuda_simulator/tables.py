"""What raw kernels touch: which pointers they only read, by their parameters' types, and which memory beside their
array arguments, by the tables of addresses that some of them take (engine/kernels/cuda).
"""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

from tests.cuda_simulator import memory

Touched = Iterator[tuple[int, int, bool]]  # address, bytes, whether they are written (and may be read)

_BYTES = {
    "float": 4,
    "double": 8,
    "float16": 2,
    "bfloat16": 2,
    "signed char": 1,
    "short": 2,
    "int": 4,
    "long long": 8,
    "unsigned char": 1,
    "bool": 1,
    "complex64": 8,
    "complex128": 16,
}


@cache
def only_read(code: str, name: str) -> frozenset[int]:
    """The positions of a kernel's parameters that are pointers to const."""
    plain = re.sub(r"//[^\n]*|/\*.*?\*/", "", code, flags=re.DOTALL)
    found = re.search(rf"__global__[^;{{]*?\b{re.escape(name)}\s*\(([^)]*)\)", plain)
    if found is None:
        return frozenset()
    parameters = enumerate(found[1].split(","))
    return frozenset(place for place, text in parameters if text.strip().startswith("const ") and "*" in text)


def beside(name: str, options: Sequence[str], arguments: Sequence[Any]) -> Touched:
    """The memory that a launch touches through addresses in its other arguments.

    Raises: NotImplementedError for a kernel that takes a table of device addresses and is not listed here.
    """
    if name not in _TABLES:
        _refuse_addresses(name, arguments)
    else:
        macros = dict(option[2:].split("=", 1) for option in options if option.startswith("-D") and "=" in option)
        yield from _TABLES[name]({key: _BYTES.get(value, 1) for key, value in macros.items()}, *arguments)


def _refuse_addresses(name: str, arguments: Sequence[Any]) -> None:
    for argument in arguments:
        fields = getattr(getattr(argument, "dtype", None), "fields", None) or {}
        for field, (kind, *_) in fields.items():
            if kind.base == np.uint64 and any(memory.is_device(int(each)) for each in np.ravel(argument[field])):
                raise NotImplementedError(f"{name} takes device addresses: say in {__name__} what it touches")


def _sum_slices(size: dict[str, int], ranks: Any, count: Any, divisor: Any, weighted: Any, wide: Any) -> Touched:
    length = int(count) * size["ELEMENT"]
    for address, weight in zip(ranks["addends"][: ranks["addend_count"]], ranks["weights"], strict=False):
        if not weighted or weight:
            yield int(address), length, False
    for address in ranks["targets"][: ranks["target_count"]]:
        yield int(address), length, True


def _each(write: bool) -> Callable[..., Touched]:
    def touched(size: dict[str, int], arrays: Any, *_: Any) -> Touched:
        for address, count in zip(arrays["addresses"], arrays["sizes"], strict=True):
            if count:
                yield int(address), int(count) * size["ELEMENT"], write

    return touched


def _dequantised_mean(size: dict[str, int], ranks: Any, scales: Any, count: Any, length: Any, divisor: Any) -> Touched:
    for number in range(int(ranks["addend_count"])):
        if ranks["weights"][number]:
            yield int(ranks["addends"][number]), int(count), False
            yield int(scales["addresses"][number]), -(-int(count) // int(length)) * 4, False
    yield int(ranks["targets"][0]), int(count) * size["ELEMENT"], True


def _advance(size: dict[str, int], options: Any, *_: Any) -> Touched:
    if options["lr_address"]:
        yield int(options["lr_address"]), 8 if options["lr_is_double"] else 4, False


def _update(size: dict[str, int], gradients: Any, states: Any, members: Any, *_: Any) -> Touched:
    table = np.dtype([("parameter", np.uint64), ("size", np.int64), ("offset", np.int64)])
    rows = np.array(members).view(table)
    for row, gradient in zip(rows, gradients["addresses"], strict=False):
        if row["size"]:
            yield int(row["parameter"]), int(row["size"]) * size["ELEMENT"], True
            yield int(gradient), int(row["size"]) * size["ELEMENT"], False
            for start in (*states["addresses"], states["master"]):
                if start:
                    yield int(start) + int(row["offset"]) * size["STATE"], int(row["size"]) * size["STATE"], True


_TABLES: dict[str, Callable[..., Touched]] = {
    "sum_slices": _sum_slices,
    "scale": _each(write=True),
    "clamp": _each(write=True),
    "partial_norms": _each(write=False),
    "dequantised_mean": _dequantised_mean,
    "advance": _advance,
    "update": _update,
}
