"""Every operator of the registry on the device beside the CPU, on the samples of tests/op_samples in several layouts:
values, dtypes, shapes, strides, first and second derivatives by random projections; and that nothing waits for the
device but what says so here.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import engine
from engine.calls.namespaces import OPERATORS
from tests import cuda_device
from tests.engine.cuda.comparison import all_of, assert_same, assert_values, described, twin, weights
from tests.engine.test_operators import RECORDED, layouts, results, tensors
from tests.op_samples import SAMPLES, Sample, names

# The host must know values for the size of the result, for an error that PyTorch raises as well, or for the way to go.
_REPORT = "an error of cuSOLVER is raised at once, as PyTorch does"
WAITS = {
    **dict.fromkeys(("linalg_cholesky", "linalg_eig", "linalg_eigh", "linalg_inv", "linalg_lu_factor"), _REPORT),
    **dict.fromkeys(("linalg_qr", "linalg_slogdet", "linalg_solve", "linalg_svd"), _REPORT),
    "cumprod": "zeros among the elements have a formula of their own, which takes quadratic time",
}


def derivatives(
    outs: list[engine.Tensor], leaves: list[engine.Tensor], directions: list[engine.Tensor], again: bool
) -> Any:
    found = engine.autograd.grad(outs, leaves, directions, create_graph=again, retain_graph=True, allow_unused=True)
    return list(found)


# LAPACK and cuSOLVER choose signs, phases and the order of eigenvalues each in its own way: equal values are asked of
# the CPU driver only, which calls LAPACK.
CHOSEN = {"linalg_eig", "linalg_eigh", "linalg_qr", "linalg_svd"}


def test_exceptions_are_operators() -> None:
    assert not (WAITS.keys() | CHOSEN) - OPERATORS.keys()


def test_every_operator_is_compared() -> None:
    missing = [name for name in OPERATORS if name not in SAMPLES]
    assert not missing, f"add samples to tests/op_samples for: {', '.join(missing)}"


NAMES = [name for name in names() if name in SAMPLES]
GROUPS = 12  # tests: one an operator would look for what the CPU driver has found as often


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True:UserWarning")
@pytest.mark.parametrize("group", range(GROUPS))
def test_operators(group: int, cuda: engine.device) -> None:
    all_of(
        (
            f"{name}, sample {number}: shapes {[np.shape(array) for array in sample.arrays]}, {layout}",
            lambda name=name, sample=sample, layout=layout: compare(name, sample, layout, cuda),
        )
        for name in NAMES[group::GROUPS]
        for number, sample in enumerate(SAMPLES[name])
        for layout in layouts(sample)
    )


@contextmanager
def nothing_waits(name: str) -> Iterator[None]:
    """Inside it nothing may wait for the device, which a real one does not tell."""
    if not cuda_device.ours() or name in WAITS:
        yield
        return
    with cuda_device.counters() as count:
        yield
    assert not count.synchronizations, f"{name} waits for the device"


def compare(name: str, sample: Sample, layout: str, cuda: engine.device) -> None:
    here = tensors(sample, layout, differentiable=sample.differentiable or name in RECORDED)
    there = [twin(each, cuda) for each in here]
    expected = results(sample.function(*here))
    with nothing_waits(name):
        found = results(sample.function(*there))
    assert len(found) == len(expected)
    if name in CHOSEN and not cuda_device.ours():
        assert [described(each) for each in found] == [described(each) for each in expected]
        return
    for one, other in zip(found, expected, strict=True):
        assert one.device is cuda
        assert_same(one, other, "values")
    if not sample.differentiable:
        return
    leaves = [place for place, each in enumerate(here) if each.requires_grad]
    outs = [place for place, out in enumerate(expected) if out.requires_grad]
    first = weights([expected[place] for place in outs], 1)
    first_there = [each.to(cuda) for each in first]
    if not sample.twice or layout not in ("row-major", "column-major"):
        engine.autograd.backward([expected[i] for i in outs], first)
        with nothing_waits(name):
            engine.autograd.backward([found[i] for i in outs], first_there)
        for place in leaves:
            assert_same(there[place].grad, here[place].grad, "gradients of leaves")
        return
    slopes = derivatives([expected[i] for i in outs], [here[i] for i in leaves], first, True)
    slopes_there = derivatives([found[i] for i in outs], [there[i] for i in leaves], first_there, True)
    for one, other in zip(slopes_there, slopes, strict=True):
        assert_values(one, other, "first derivatives")
    recorded = [place for place, slope in enumerate(slopes) if slope is not None and slope.requires_grad]
    if not recorded:
        return
    second = weights([slopes[place] for place in recorded], 2)
    for one, other in zip(
        derivatives(
            [slopes_there[i] for i in recorded], [there[i] for i in leaves], [each.to(cuda) for each in second], False
        ),
        derivatives([slopes[i] for i in recorded], [here[i] for i in leaves], second, False),
        strict=True,
    ):
        assert_values(one, other, "second derivatives")
