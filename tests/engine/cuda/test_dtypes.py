"""Every operator on the device in the other dtypes: what the CPU computes the device computes, in half and single
precision with first derivatives and with integers; what it refuses is refused.
"""

import numpy as np
import pytest

import engine
from tests.engine.cuda.comparison import all_of, assert_values, twin, weights
from tests.engine.test_operators import RECORDED, results
from tests.op_samples import SAMPLES, Sample, names

pytestmark = pytest.mark.usefixtures("full_precision")

TOLERANCES = {"float32": 2e-3, "float16": 3e-2, "bfloat16": 2e-1}
TOLERANCES |= dict.fromkeys(("int64", "int32", "uint8", "bool"), 1e-12)  # of samples of complex numbers
REFUSALS = (RuntimeError, TypeError, ValueError, IndexError)
NAMES = [name for name in names() if name in SAMPLES and name not in RECORDED]


@pytest.mark.parametrize("kind", TOLERANCES)
def test_operators(kind: str, cuda: engine.device) -> None:
    all_of(
        (
            f"{name}, sample {number}: shapes {[np.shape(array) for array in sample.arrays]}",
            lambda name=name, sample=sample: compare(name, sample, kind, cuda),
        )
        for name in NAMES
        for number, sample in enumerate(SAMPLES[name][:3])
    )


def made(sample: Sample, kind: str) -> list[engine.Tensor]:
    floating = kind in ("float32", "float16", "bfloat16")
    tensors = []
    for position, array in enumerate(sample.arrays):
        tensor = engine.from_numpy(np.array(array))
        if tensor.dtype is engine.float64:
            tensor = tensor.to(getattr(engine, kind))
            if floating and sample.differentiable and position not in sample.constants:
                tensor.requires_grad_()
        tensors.append(tensor)
    return tensors


def rounding(expected: engine.Tensor) -> float:
    """Of a result of integers that is none: the last bits of the CPU's function and the device's differ."""
    return 4 * engine.finfo(expected.dtype).eps if expected.dtype.is_floating_point else 0.0


def compare(name: str, sample: Sample, kind: str, cuda: engine.device) -> None:
    here = made(sample, kind)
    there = [twin(each, cuda) for each in here]
    try:
        expected = results(sample.function(*here))
    except REFUSALS:
        with pytest.raises(REFUSALS):
            sample.function(*there)
        return
    found = results(sample.function(*there))
    for one, other in zip(found, expected, strict=True):
        assert_values(one, other, "values", max(TOLERANCES[kind], rounding(other)))
        assert one.stride() == other.stride()
    recorded = [place for place, out in enumerate(expected) if out.requires_grad]
    if recorded:
        directions = weights([expected[place] for place in recorded], 1)
        engine.autograd.backward([expected[place] for place in recorded], directions)
        engine.autograd.backward([found[place] for place in recorded], [each.to(cuda) for each in directions])
        for one, other in zip(there, here, strict=True):
            assert_values(one.grad, other.grad, "derivative", TOLERANCES[kind])
