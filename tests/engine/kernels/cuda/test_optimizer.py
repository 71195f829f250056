"""The CUDA steps on raw arrays: against the compiled ones of the CPU bit for bit, and no access out of place.

What they do in optimizers is tested in tests/engine/cuda/test_optim.py.
"""

import numpy as np
import pytest

import engine
from engine.memory import backend
from engine.optim import cuda as optimizer
from engine.optim import kernels as on_cpu
from tests import cuda_device

SIZES = (20_000, 5, 0, 64)


def members(algorithm: str, values: list[np.ndarray], states: int, master: bool = False):
    cupy = backend.require_cupy()
    _, total = optimizer.places([each.size for each in values])
    kind = np.float32 if master else values[0].dtype
    parameters = [cupy.asarray(each) for each in values]
    state = [cupy.zeros(total, kind) for _ in range(states)]
    steps = cupy.zeros(len(values), np.float32)
    copy = cupy.zeros(total, kind) if master else None
    return parameters, state, steps, optimizer.Members(algorithm, parameters, state, steps, (), copy)


def samples(dtype: str, seed: int, sizes: tuple[int, ...] = SIZES) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(size).astype(dtype) for size in sizes]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("decoupled", [False, True])
def test_adam_has_the_bits_of_the_cpu(cuda: engine.device, dtype: str, amsgrad: bool, decoupled: bool):
    """Where pow gives the same on both: as on the CPU driver."""
    if not cuda_device.ours():
        pytest.skip("a GPU's pow may differ in the last bit")
    values = samples(dtype, 0)
    parameters, state, steps, plan = members("Adam", values, 2 + amsgrad)
    kept = [[np.zeros(each.size, dtype) for each in values] for _ in range(3)]
    options = {"lr": 0.01, "weight_decay": 0.1, "eps": 1e-8, "maximize": False, "other": decoupled, "a": 0.9, "b": 0.99}
    for step in range(1, 4):
        gradients = samples(dtype, step)
        there = [backend.require_cupy().asarray(each) for each in gradients]
        plan.set_options(options)
        plan.point_at(list(map(backend.address, there)))
        plan.step()
        for value, gradient, m, v, largest in zip(values, gradients, *kept, strict=True):
            on_cpu.adam(
                *(value, gradient, m, v),
                step=step,
                lr=0.01,
                beta1=0.9,
                beta2=0.99,
                eps=1e-8,
                weight_decay=0.1,
                decoupled=decoupled,
                maximum=largest if amsgrad else None,
            )
    for mine, theirs in zip(parameters, values, strict=True):
        np.testing.assert_array_equal(mine.get(), theirs)
    starts, _ = optimizer.places(SIZES)
    for flat, each in zip(state, kept, strict=False):
        for start, theirs in zip(starts, each, strict=True):
            np.testing.assert_array_equal(flat[start : start + theirs.size].get(), theirs)
    assert steps.get().tolist() == [3.0] * len(SIZES)


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_has_the_bits_of_the_cpu(cuda: engine.device, nesterov: bool):
    values = samples("float32", 0)
    parameters, _, _, plan = members("Sgd", values, 1)
    buffers = [np.zeros(each.size, np.float32) for each in values]
    options = {"lr": 0.1, "weight_decay": 0.01, "maximize": True, "other": False, "a": 0.9, "b": 1.0, "one": nesterov}
    for step in range(3):
        gradients = samples("float32", 7 + step)
        there = [backend.require_cupy().asarray(each) for each in gradients]
        plan.set_options(options)
        plan.point_at(list(map(backend.address, there)))
        plan.step()
        for value, gradient, buffer in zip(values, gradients, buffers, strict=True):
            on_cpu.sgd(
                *(value, gradient, buffer),
                lr=0.1,
                momentum=0.9,
                weight_decay=0.01,
                nesterov=nesterov,
                maximize=True,
                first_step=step == 0,
            )
    for mine, theirs in zip(parameters, values, strict=True):
        np.testing.assert_array_equal(mine.get(), theirs)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_no_access_is_wrong(cuda: engine.device, seed: int, dtype: str):
    """Bounds, alignment and races, aligned and not, threads and blocks in order and permuted."""
    if not cuda_device.ours():
        pytest.skip("the CPU driver checks accesses")
    values = samples(dtype, 0, (8200, 5, 0, 33))
    parameters, _, _, plan = members("Adam", values, 3, master=dtype == "float16")
    longer = [backend.require_cupy().asarray(np.append(each, each[:1])) for each in values]
    gradients = [each[1:] if number % 2 else each[: values[number].size] for number, each in enumerate(longer)]
    options = {"lr": 0.1, "weight_decay": 0.1, "eps": 1e-3, "maximize": False, "other": True, "a": 0.9, "b": 0.99}
    before = [each.get() for each in parameters]
    with cuda_device.checked(seed):
        plan.set_options(options)
        plan.point_at(list(map(backend.address, gradients)))
        plan.step()
    assert all((mine.get() != each).any() for mine, each in zip(parameters, before, strict=True) if each.size)
