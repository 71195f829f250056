"""Convolution on a GPU: values, gradients and layouts as on the CPU, second derivatives, which products and kernels it
takes, and no waiting for the device.
"""

import importlib

import numpy as np
import pytest

import engine
from engine.nn import functional as F
from tests import cuda_device
from tests.engine.cuda.comparison import layout_of

TOLERANCES = {engine.float32: 5e-6, engine.float64: 1e-13, engine.bfloat16: 2e-2}


@pytest.fixture(autouse=True)
def in_full_precision():
    engine.backends.cudnn.allow_tf32 = False
    yield
    engine.backends.cudnn.allow_tf32 = True


CASES = {
    "few channels": (F.conv2d, (2, 3, 8, 9), (6, 3, 3, 3), 6, {"padding": 1}),
    "strides": (F.conv2d, (2, 16, 8, 9), (32, 16, 3, 3), 32, {"padding": 1, "stride": 2}),
    "pointwise": (F.conv2d, (2, 16, 4, 5), (24, 16, 1, 1), 24, {}),
    "pointwise with strides": (F.conv2d, (2, 16, 4, 5), (24, 16, 1, 1), 24, {"stride": 2}),
    "depthwise": (F.conv2d, (2, 16, 4, 5), (16, 1, 3, 3), 16, {"padding": 1, "groups": 16}),
    "groups": (F.conv2d, (2, 32, 4, 5), (32, 16, 3, 3), 32, {"padding": 1, "groups": 2}),
    "same padding": (F.conv2d, (2, 8, 5, 5), (8, 8, 2, 4), 8, {"padding": "same"}),
    "transposed": (F.conv_transpose2d, (2, 16, 4, 5), (16, 8, 3, 3), 8, {"stride": 2, "output_padding": 1}),
    "one axis": (F.conv1d, (2, 16, 14), (8, 16, 3), 8, {"dilation": 2}),
    "three axes": (F.conv3d, (1, 8, 4, 5, 6), (8, 8, 3, 3, 3), 8, {"padding": 1}),
}


def results(device, function, arrays, dtype, last, options):
    leaves = [engine.tensor(array, dtype=dtype, device=device) for array in arrays]
    if last:
        leaves[0] = leaves[0].contiguous(memory_format=engine.channels_last)
    leaves = [leaf.requires_grad_() for leaf in leaves]
    out = function(*leaves, **options)
    (out * out).sum().backward()
    return out, [leaf.grad for leaf in leaves]


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("last", [False, True], ids=["row-major", "channels-last"])
@pytest.mark.parametrize("case", CASES)
def test_as_on_the_cpu(cuda: engine.device, case: str, last: bool, dtype):
    function, input, weight, outputs, options = CASES[case]
    if last and len(input) != 4:
        pytest.skip("channels-last is a layout of four axes")
    random = np.random.default_rng(0)
    arrays = [random.standard_normal(shape) for shape in (input, weight, (outputs,))]
    (out, slopes), (expected, wanted) = (
        results(device, function, arrays, dtype, last, options) for device in ("cuda", "cpu")
    )
    for mine, theirs in zip((out, *slopes), (expected, *wanted), strict=True):
        assert mine.is_cuda
        assert mine.dtype is dtype
        assert mine.shape == theirs.shape
        assert layout_of(mine) == layout_of(theirs)
        largest = theirs.detach().double().abs().max().item()
        difference = (mine.detach().cpu().double() - theirs.detach().double()).abs().max().item()
        assert difference <= TOLERANCES[dtype] * largest


def test_second_derivatives(cuda: engine.device):
    random = np.random.default_rng(1)
    arrays = [random.standard_normal(shape) for shape in ((1, 4, 5, 6), (4, 4, 3, 3), (4,))]
    found = []
    for device in ("cpu", "cuda"):
        leaves = [engine.tensor(array, dtype=engine.float32, device=device).requires_grad_() for array in arrays]
        out = F.conv2d(*leaves, padding=1, stride=2)
        first = engine.autograd.grad(out.square().sum(), leaves, create_graph=True)
        second = engine.autograd.grad(sum(each.square().sum() for each in first), leaves)
        found.append([each.cpu().numpy() for each in second])
    for theirs, mine in zip(*found, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4 * np.abs(theirs).max())


def test_integers_and_empty_images(cuda: engine.device):
    image = engine.arange(2 * 3 * 5 * 5, device=cuda).reshape(2, 3, 5, 5)
    weight = engine.arange(4 * 3 * 2 * 2, device=cuda).reshape(4, 3, 2, 2)
    expected = F.conv2d(image.cpu(), weight.cpu())
    assert engine.equal(F.conv2d(image, weight).cpu(), expected)
    none = engine.zeros(0, 3, 5, 5, device=cuda, requires_grad=True)
    filters = engine.ones(4, 3, 2, 2, device=cuda, requires_grad=True)
    out = F.conv2d(none, filters)
    out.sum().backward()
    assert out.shape == (0, 4, 4, 4)
    assert not filters.grad.any()


def test_columns_a_few_images_at_a_time(cuda: engine.device, monkeypatch: pytest.MonkeyPatch):
    # by import_module: in the package `conv` is the function
    monkeypatch.setattr(importlib.import_module("engine.ops.conv.gpu"), "_COLUMNS_BYTES", 5000)
    for last in (False, True):
        test_as_on_the_cpu(cuda, "few channels", last, engine.float64)
        test_as_on_the_cpu(cuda, "transposed", last, engine.float64)


@pytest.mark.parametrize("last", [False, True], ids=["row-major", "channels-last"])
def test_pointwise_is_a_product_without_copies_and_nothing_waits(cuda: engine.device, last: bool):
    if not cuda_device.ours():
        pytest.skip("looks at the launches that the CPU driver got")
    image = engine.ones(2, 16, 6, 6, device=cuda)
    if last:
        image = image.contiguous(memory_format=engine.channels_last)
    image.requires_grad_()
    pointwise = engine.ones(8, 16, 1, 1, device=cuda, requires_grad=True)
    window = engine.ones(8, 8, 3, 3, device=cuda, requires_grad=True)
    bias = engine.ones(8, device=cuda, requires_grad=True)

    def step():
        F.conv2d(F.conv2d(image, pointwise, bias), window, bias, padding=1).sum().backward()

    step()
    with cuda_device.counters() as count:
        product = F.conv2d(image.detach(), pointwise.detach())
    assert not any(name in ("conv", "tiles", "strided") for name in count.names)
    assert product.is_contiguous(memory_format=engine.channels_last if last else engine.contiguous_format)
    with cuda_device.counters() as count:
        step()
    assert count.synchronizations == 0, count.waits
    assert {"conv", "conv_weight", "add_parts"} <= set(count.names)


def test_tensor_float_32_is_the_default(cuda: engine.device, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(engine.backends.cudnn, "enabled", False)  # whose plans for so few pixels are exact
    random = np.random.default_rng(4)
    image, weight = (
        engine.tensor(random.standard_normal(shape), dtype=engine.float32, device=cuda)
        for shape in ((1, 8, 9, 9), (8, 8, 3, 3))
    )
    exact = F.conv2d(image, weight)
    engine.backends.cudnn.allow_tf32 = True
    difference = (exact - F.conv2d(image, weight)).abs().max().item()
    assert 1e-5 < difference < 1e-1
