"""Random models, numbers of batches, uses and weights: `ddp.uneven` against a mean made by hand, compared with `==`.

Gradients are multiples of 12 times a power of two, so that means over 1 to 4 ranks are exact.
"""

from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ddp
import engine
from ddp import DistributedDataParallel
from ddp.hooks import allreduce_hook
from tests.ddp.gradients.test_reducer_random import MOST_RANKS, Layout, Model, layouts, seen


class Case(NamedTuple):
    """Of each rank: its batches, which are the factors of the parameters (0: not used)."""

    parameters: list[Layout]
    options: dict[str, Any]
    hooked: bool
    every: int
    """Batches of one step: all but the last of them are accumulated under no_sync."""
    batches: list[list[tuple[int, ...]]]


@st.composite
def cases(draw: Any) -> Case:
    parameters = draw(st.lists(layouts(), min_size=1, max_size=4))
    factors = st.tuples(*[st.sampled_from([0, 12, 24])] * len(parameters))
    options = {
        "bucket_cap_mb": draw(st.sampled_from([None, 1e-5, 5e-5])),
        "gradient_as_bucket_view": draw(st.booleans()),
        "find_unused_parameters": draw(st.booleans()),
    }
    batches = [draw(st.lists(factors, max_size=4)) for _ in range(MOST_RANKS)]
    return Case(parameters, options, draw(st.booleans()), draw(st.integers(1, 2)), batches)


@pytest.mark.mpi(ranks=[2, 3, 4], timeout=100)
@pytest.mark.filterwarnings("ignore::engine.LayoutWarning")
def test_against_a_mean_by_hand(group, ranks) -> None:
    """Hypothesis draws the same on every rank; a failure on one is made one on all, so that they shrink together."""

    @settings(max_examples={2: 40, 3: 15, 4: 10}[ranks], deadline=None, derandomize=True, database=None)
    @given(cases())
    def check(case: Case) -> None:
        problems = [problem for found in group.exchange(compare(group, case)) for problem in found]
        assert not problems, problems

    check()


def gradients(model: Model) -> list[np.ndarray | None]:
    return [None if p.grad is None else p.grad.to(engine.float64).numpy() for p in model.parameters()]


def mean(of_ranks: list[list[np.ndarray | None]]) -> list[Any]:
    """Of the ranks that have data; None where none of them has a gradient."""
    found = []
    for each in zip(*of_ranks, strict=True):
        there = [array for array in each if array is not None]
        found.append(sum(there) / len(of_ranks) if there else None)
    return [None if array is None else np.asarray(array).tolist() for array in found]


def compare(group: ddp.ProcessGroup, case: Case) -> list[str]:
    """What went wrong, in words."""
    own = case.batches[group.rank]
    longest = max(map(len, case.batches[: group.size()]))
    net, twin = DistributedDataParallel(Model(case.parameters), **case.options), Model(case.parameters)
    if case.hooked:
        net.register_comm_hook(None, allreduce_hook)
    results = []
    for number, factors in enumerate(ddp.uneven(own, net)):
        if number % case.every < case.every - 1:
            with net.no_sync():
                net(factors).backward()
            continue
        net(factors).backward()
        results.append([seen(parameter.grad) for parameter in net.module.parameters()])
        net.zero_grad()
    steps = -(-longest // case.every)
    problems = [] if len(results) == steps else [f"rank {group.rank}: {len(results)} steps instead of {steps}"]
    for step in range(steps):
        twin.zero_grad()
        for factors in own[step * case.every : (step + 1) * case.every]:
            twin(factors).backward()
        active = [rank for rank in range(group.size()) if len(case.batches[rank]) > step * case.every]
        everybody = group.exchange(gradients(twin))
        expected = mean([everybody[rank] for rank in active])
        if step < len(results) and results[step] != expected:
            problems.append(f"rank {group.rank}, step {step}: {results[step]} instead of {expected}")
    return problems
