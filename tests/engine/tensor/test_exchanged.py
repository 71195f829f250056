"""Exchanges of a tensor's memory are noted, and nothing makes one by another way."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import engine
from engine.tensor.exchanged import exchanged

ROOT = Path(engine.__file__).parents[1]


def test_one_method_exchanges_the_memory_of_a_tensor() -> None:
    """Another assignment would be one that no optimizer sees."""
    written = re.compile(r"(\w+)\._array\b(?:, \w+\._spec)?(?:, \w+\._output_nr)? = ")
    found = []
    for package in ("engine", "ddp"):
        for file in sorted((ROOT / package).rglob("*.py")):
            found += [(file.relative_to(ROOT).as_posix(), name) for name in written.findall(file.read_text())]
    assert sorted(found) == [
        ("engine/autograd/saved.py", "self"),  # no tensors
        ("engine/calls/arguments.py", "alias"),  # made just before
        ("engine/calls/operands.py", "self"),
        ("engine/calls/operands.py", "self"),
        ("engine/capture/intercepts.py", "after"),  # made just before
        ("engine/tensor/tensor.py", "self"),  # __init__
        ("engine/tensor/tensor.py", "self"),  # _take_memory
    ]


def test_exchanges_are_noted() -> None:
    changes: list[Callable[[engine.Tensor], Any]] = [
        lambda tensor: setattr(tensor, "data", engine.ones(3)),
        lambda tensor: tensor.set_(engine.ones(3)),
        lambda tensor: tensor.unsqueeze_(0),
        lambda tensor: tensor.resize_(7),
    ]
    for change in changes:
        tensor, before = engine.ones(2), exchanged.last
        change(tensor)
        assert exchanged.last is not before
    tensor, before = engine.empty(0), exchanged.last
    engine.add(engine.ones(8), 1, out=tensor)
    assert exchanged.last is not before
