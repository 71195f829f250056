"""Every operator of the registry on its samples (tests/op_samples), in several layouts: values against NumPy,
results laid out as the rule says, the same on the meta device, first and second derivatives against finite differences.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import engine
from engine.autograd.gradcheck import gradcheck, gradgradcheck
from engine.calls.namespaces import OPERATORS
from tests.op_samples import REFUSED, SAMPLES, Sample, names

NAMES = list(names())


def sliced(array: np.ndarray) -> np.ndarray:
    """The same elements with gaps between them."""
    return np.repeat(array, 2, -1)[..., ::2]


def channels_last(array: np.ndarray) -> np.ndarray:
    """The same elements, the second axis fastest in memory."""
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(array, 1, -1)), -1, 1) if array.ndim > 2 else array


LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "row-major": np.ascontiguousarray,
    "column-major": np.asfortranarray,
    "sliced": sliced,
    "channels-last": channels_last,
}


def tensors(sample: Sample, layout: str, differentiable: bool) -> list[engine.Tensor]:
    """The sample's inputs as leaves in a layout; floating point ones require gradients where the sample says so."""
    made = []
    for position, array in enumerate(sample.arrays):
        array = np.asarray(array)
        placed = LAYOUTS[layout](array) if array.ndim else array.copy()
        assert placed.shape == array.shape
        tensor = engine.from_numpy(placed)
        floating = differentiable and array.dtype.kind in "fc" and position not in sample.constants
        made.append(tensor.requires_grad_() if floating else tensor)
    return made


RECORDED = {"copy", "scatter_view"}  # what in-place writes are recorded as, and only then called


def results(value: Any) -> list[engine.Tensor]:
    """What a sample's function gave, as a list."""
    return list(value) if isinstance(value, tuple | list) else [value]


def layouts(sample: Sample) -> list[str]:
    """The layouts that make a difference to a sample."""
    ranks = {np.ndim(array) for array in sample.arrays}
    if not sample.relayout or max(ranks) < 1 or not any(np.size(array) for array in sample.arrays):
        return ["row-major"]
    return [
        "row-major",
        "sliced",
        *(["column-major"] if max(ranks) > 1 else []),
        *(["channels-last"] if max(ranks) > 2 else []),
    ]


def test_every_operator_has_samples() -> None:
    missing = [name for name in OPERATORS if name not in SAMPLES]
    assert not missing, f"add samples to tests/op_samples for: {', '.join(missing)}"


def test_every_operator_has_a_sample_without_elements() -> None:
    missing = [
        name
        for name, samples in SAMPLES.items()
        if name not in REFUSED and not any(np.size(array) == 0 for sample in samples for array in sample.arrays)
    ]
    assert not missing, f"add samples without elements to tests/op_samples for: {', '.join(missing)}"
    assert not REFUSED.keys() - SAMPLES.keys()


def test_every_elementwise_operator_has_samples_that_broadcast() -> None:
    missing = [
        name
        for name, operator in OPERATORS.items()
        if operator.elementwise
        and len(operator.inputs) > 1
        and not any(len({np.shape(array) for array in sample.arrays}) > 1 for sample in SAMPLES[name])
    ]
    assert not missing, f"add samples of several shapes to tests/op_samples for: {', '.join(missing)}"


UNDEFINED = {"floor_divide", "heaviside"}  # recorded, as in PyTorch, and refused in backward


def test_every_derivative_is_checked() -> None:
    """gradcheck and gradgradcheck run for each operator that has a derivative rule."""
    rules = [name for name, operator in OPERATORS.items() if operator.grad_mask]
    missing = [
        name
        for name in rules
        if name not in UNDEFINED and not any(sample.differentiable and sample.twice for sample in SAMPLES[name])
    ]
    assert not missing, f"add samples with second derivatives to tests/op_samples for: {', '.join(missing)}"


@pytest.mark.parametrize("name", sorted(UNDEFINED))
def test_undefined_derivatives_are_refused_in_backward(name: str) -> None:
    x = engine.tensor([2.5, -1.5], requires_grad=True)
    with pytest.raises(RuntimeError, match=f"derivative for {name} is not implemented"):
        getattr(engine, name)(x, engine.tensor(2.0)).sum().backward()


@pytest.mark.full
@pytest.mark.parametrize("name", [name for name in NAMES if name in SAMPLES])
def test_operator(name: str) -> None:
    for number, sample in enumerate(SAMPLES[name]):
        for layout in layouts(sample):
            try:
                check_values(name, sample, layout)
                check_derivatives(sample, layout)
            except Exception as error:
                error.add_note(f"{name}, sample {number}: shapes {[np.shape(a) for a in sample.arrays]}, {layout}")
                raise


def check_values(name: str, sample: Sample, layout: str) -> None:
    """Values, layouts, dtypes; the meta device says the same."""
    inputs = tensors(sample, layout, differentiable=name in RECORDED)
    if name in OPERATORS:
        OPERATORS[name].plans.clear()
    outs = results(sample.function(*inputs))
    assert OPERATORS[name].plans, "the sample does not call its operator"
    if name in RECORDED:
        outs = [out.detach() for out in outs]
    meta = [engine.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta") for x in inputs]
    for out, planned in zip(outs, results(sample.function(*meta)), strict=True):
        assert (planned.shape, planned.stride(), planned.dtype) == (out.shape, out.stride(), out.dtype)
        assert planned.is_meta
    for out in outs:
        array = out._array
        assert array.shape == out.shape
        assert array.dtype == out.dtype.numpy
        for size, step, expected in zip(out.shape, array.strides, out.stride(), strict=True):
            assert size < 2 or not out.numel() or step == expected * array.itemsize, (array.strides, out.stride())
        assert (out.requires_grad, out.grad_fn) == (False, None)
    if sample.reference is not None:
        expected = sample.reference(*sample.arrays)
        for out, value in zip(outs, expected if isinstance(expected, tuple) else (expected,), strict=True):
            np.testing.assert_allclose(out.numpy(), value, rtol=1e-7, atol=1e-9)
            assert out.shape == np.shape(value)


def check_derivatives(sample: Sample, layout: str) -> None:
    """First derivatives in every layout, second ones row-major and column-major."""
    inputs = tensors(sample, layout, differentiable=sample.differentiable)
    if not sample.differentiable:
        assert not any(out.requires_grad for out in results(sample.function(*inputs)))
        return
    function = lambda *given: tuple(results(sample.function(*given)))  # noqa: E731
    outs = function(*inputs)
    assert any(out.requires_grad for out in outs)
    assert gradcheck(function, inputs, fast_mode=True, check_undefined_grad=layout == "row-major")
    if sample.twice and layout in ("row-major", "column-major"):
        assert gradgradcheck(function, inputs, fast_mode=True, check_undefined_grad=False)
