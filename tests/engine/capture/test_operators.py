"""Every operator of the registry, on its samples and in several layouts, is replayed with the bits of eager runs."""

from collections.abc import Callable
from typing import Any

import pytest

import engine
from tests.engine.capture.test_equal import replays, same
from tests.engine.test_operators import NAMES, layouts, results, tensors
from tests.op_samples import SAMPLES

READS_VALUES = {"linalg_lu_factor"}  # its function looks at the pivots
CAPTURED = [name for name in NAMES if name in SAMPLES and name not in READS_VALUES]
GROUPS = 12  # operators share a step: recording one looks through all of Python's objects

Case = tuple[str, Callable[..., Any], list[engine.Tensor]]


def make(names: list[str]) -> tuple[list[Case], Callable[[engine.Tensor], list[list[engine.Tensor]]]]:
    """Functions with leaves, and a step that calls them on what it makes of these, forward and backward."""
    cases: list[Case] = [
        (name, sample.function, tensors(sample, layout, sample.differentiable))
        for name in names
        for sample in SAMPLES[name]
        for layout in layouts(sample)[-2:]
    ]

    def step(one: engine.Tensor) -> list[list[engine.Tensor]]:
        total, returned = one * 0, []
        for _, function, leaves in cases:
            found = results(function(*[leaf * one.to(leaf.dtype) if leaf.requires_grad else leaf for leaf in leaves]))
            for result in found:
                if result.requires_grad:
                    part = result.sum()
                    total = total + (engine.view_as_real(part).sum() if part.is_complex() else part)
            returned.append(found)
        total.backward()
        return returned

    return cases, step


@pytest.mark.parametrize("group", range(GROUPS))
def test_operators(group: int) -> None:
    (cases, step), (others, plain) = make(CAPTURED[group::GROUPS]), make(CAPTURED[group::GROUPS])
    compiled = engine.compile(plain)
    for number in range(4):
        one = engine.tensor(1.0 + 0.125 * number, dtype=engine.float64)
        for (name, _, _), expected, got in zip(cases, step(one), compiled(one), strict=True):
            assert same(expected, got), (name, number)
        for (name, _, leaves), (_, _, copies) in zip(cases, others, strict=True):
            for leaf, copy in zip(leaves, copies, strict=True):
                assert (leaf.grad is None) == (copy.grad is None), (name, number)
                assert leaf.grad is None or same(leaf.grad, copy.grad), (name, number)
    assert replays(compiled)
