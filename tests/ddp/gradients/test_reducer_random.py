"""Random models and random sequences of steps: the Reducer against `ddp.gradients.reference`, compared with `==`."""

from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ddp.gradients.reference
import engine
import engine.nn as nn
from ddp import DistributedDataParallel

MOST_RANKS = 4
DTYPES = (engine.float32, engine.float64, engine.float16, engine.bfloat16)


class Layout(NamedTuple):
    """A parameter: its sizes in the order of memory, the permutation that makes them its shape, and gaps or none."""

    sizes: tuple[int, ...]
    order: tuple[int, ...]
    gaps: bool
    dtype: engine.dtype

    def make(self) -> nn.Parameter:
        memory = (
            engine.zeros(*self.sizes[:-1], 2 * self.sizes[-1], dtype=self.dtype) if self.sizes else engine.zeros(())
        )
        if not self.sizes:
            return nn.Parameter(memory.to(self.dtype))
        tensor = memory[..., ::2] if self.gaps else engine.zeros(*self.sizes, dtype=self.dtype)
        return nn.Parameter(tensor.permute(self.order))


class Step(NamedTuple):
    """One forward and backward. `used[rank]`: the factors of that rank, 0 for a parameter that it does not use."""

    used: tuple[tuple[int, ...], ...]
    synchronize: bool
    zero: bool | None
    """zero_grad(set_to_none=zero) before, or None for no zeroing."""


@st.composite
def layouts(draw: Any) -> Layout:
    sizes = draw(st.lists(st.integers(0, 4), max_size=3))
    order = draw(st.permutations(range(len(sizes))))
    return Layout(tuple(sizes), tuple(order), draw(st.booleans()), draw(st.sampled_from(DTYPES)))


@st.composite
def trainings(draw: Any) -> tuple[list[Layout], dict[str, Any], list[Step]]:
    parameters = draw(st.lists(layouts(), min_size=1, max_size=6))
    options = {
        "bucket_cap_mb": draw(st.sampled_from([None, 1e-5, 5e-5])),
        "gradient_as_bucket_view": draw(st.booleans()),
        "find_unused_parameters": draw(st.booleans()),
    }
    factors = st.tuples(*[st.sampled_from([0, 12, 24])] * len(parameters))
    step = st.builds(Step, st.tuples(*[factors] * MOST_RANKS), st.booleans(), st.sampled_from([None, True, False]))
    return parameters, options, draw(st.lists(step, min_size=1, max_size=4))


class Model(nn.Module):
    def __init__(self, parameters: list[Layout]) -> None:
        super().__init__()
        self.weights = nn.ParameterList([layout.make() for layout in parameters])
        self.always = nn.Parameter(engine.zeros(2))  # a rank whose backward reaches nothing at all would not take part

    def forward(self, factors: tuple[int, ...]) -> engine.Tensor:
        """The gradient of a parameter is its factor times a pattern of 0, 1 and 2 (few bits, for half precision)."""
        total = self.always.sum() * 12
        for weight, factor in zip(self.weights, factors, strict=True):
            if factor:
                pattern = np.arange(weight.numel()).reshape(tuple(weight.shape)) % 3
                total = total + (weight * engine.from_numpy(np.asarray(pattern)).to(weight.dtype) * factor).sum()
        return total


def seen(gradient: engine.Tensor | None) -> Any:
    return None if gradient is None else gradient.to(engine.float64).tolist()


@pytest.mark.mpi(ranks=[2, 3, 4], timeout=100)
@pytest.mark.filterwarnings("ignore::engine.LayoutWarning")
def test_against_the_reference(group, ranks) -> None:
    """Hypothesis draws the same on every rank; a failure on one is made one on all, so that they shrink together."""

    @settings(max_examples={2: 150, 3: 60, 4: 40}[ranks], deadline=None, derandomize=True, database=None)
    @given(trainings())
    def check(training: Any) -> None:
        compare(group, *training)

    check()


def compare(group: ddp.ProcessGroup, parameters: list[Layout], options: dict[str, Any], steps: list[Step]) -> None:
    net = DistributedDataParallel(Model(parameters), **options)
    twin = Model(parameters)
    used_since = [False] * len(parameters)
    for number, step in enumerate(steps):
        if step.zero is not None:
            net.zero_grad(set_to_none=step.zero)
            twin.zero_grad(set_to_none=step.zero)
            used_since = [before and not step.zero for before in used_since]
        own, everyone = step.used[group.rank], step.used[: group.size()]
        if step.synchronize:
            net(own).backward()
        else:
            with net.no_sync():
                net(own).backward()
        twin(own).backward()
        used_since = [before or any(used) for before, used in zip(used_since, zip(*everyone, strict=True), strict=True)]
        if step.synchronize:
            touched = [weight for weight, used in zip(twin.weights, used_since, strict=True) if used]
            ddp.gradients.reference.average_gradients([twin.always, *touched])
            used_since = [False] * len(parameters)
        found = [seen(weight.grad) for weight in net.module.parameters()]
        expected = [seen(weight.grad) for weight in twin.parameters()]
        problems = [
            f"rank {rank}, step {number}: {given} where the reference has {wanted}"
            for rank, (given, wanted) in enumerate(group.exchange((found, expected)))
            if given != wanted
        ]
        assert not problems, problems
        for weight in net.module.weights:
            if weight.grad is not None and options["gradient_as_bucket_view"] and weight.is_non_overlapping_and_dense():
                assert weight.grad.stride() == weight.stride()
