"""Pooling kernels beside the CPU's operators, in both layouts. Without a GPU they run on the CPU
(tests/cuda_driver).
"""

from typing import Any

import numpy as np
import pytest

import engine
import engine.nn.functional as F
from engine.ops.pooling import cuda as pool
from engine.ops.shared.windows import pooled_shape
from tests import cuda_device
from tests.engine.kernels.cuda.arrays import KINDS, Array, close, drawn, here, there

# image, and keywords of the public functions
FIXED: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 7), {"kernel_size": 3, "stride": 2, "padding": 1}),
    ((2, 3, 6, 5), {"kernel_size": 2}),
    ((1, 5, 7, 9), {"kernel_size": (3, 2), "stride": (1, 2), "padding": (1, 0), "ceil_mode": True}),
    ((2, 2, 5, 4, 3), {"kernel_size": 2, "stride": 1, "padding": 1}),
]
DILATED: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((1, 2, 9, 8), {"kernel_size": 3, "padding": 1, "dilation": 2}),
    ((2, 2, 8), {"kernel_size": 3, "stride": 1, "padding": 1, "dilation": 3}),
]
both_layouts = pytest.mark.parametrize("last", [False, True], ids=["planes", "channels-last"])


def laid(array: np.ndarray, last: bool) -> Array:
    return there(np.moveaxis(array, 1, -1)) if last else there(array.reshape(-1, *array.shape[2:], 1))


def back(array: Array, shape: tuple[int, ...], last: bool) -> Array:
    if last:
        return array.transpose(0, array.ndim - 1, *range(1, array.ndim - 1))
    return array.reshape(*shape[:2], *array.shape[1:-1])


def windows_of(shape: tuple[int, ...], options: dict[str, Any]) -> pool.Windows:
    dims = len(shape) - 2

    def axes(value: Any) -> tuple[int, ...]:
        return (value,) * dims if isinstance(value, int) else value

    kernel = axes(options["kernel_size"])
    stride, padding = axes(options.get("stride", kernel)), axes(options.get("padding", 0))
    dilation = axes(options.get("dilation", 1))
    out = pooled_shape("pool", shape, kernel, stride, padding, dilation, options.get("ceil_mode", False))
    return pool.windows_of(shape[2:], out, kernel, stride, padding, dilation)


def check_maximum(kind: str, x: np.ndarray, windows: pool.Windows, function: Any, last: bool) -> None:
    leaf = engine.tensor(x.astype("d"), requires_grad=True)
    expected, places = function(leaf)
    best, place = pool.max_pool_forward(laid(x, last), windows)
    assert best.dtype == x.dtype
    np.testing.assert_array_equal(here(back(best, x.shape, last)), expected.detach().numpy())
    np.testing.assert_array_equal(back(place, x.shape, last).get(), places.numpy())
    g = drawn(2, tuple(expected.shape), kind)
    expected.backward(engine.tensor(g.astype("d")))
    found = pool.max_pool_backward(laid(g, last), place, windows)
    close(back(found, x.shape, last), leaf.grad.numpy(), kind)


def check_average(kind: str, shape: tuple[int, ...], options: dict[str, Any], last: bool) -> None:
    x = drawn(1, shape, kind)
    dims = len(shape) - 2
    average = getattr(F, f"avg_pool{dims}d")
    for count_padding, divisor in ((True, None), (False, None), (True, 3)):
        leaf = engine.tensor(x.astype("d"), requires_grad=True)
        more = {} if dims == 1 else {"divisor_override": divisor}
        if dims == 1 and divisor:
            continue
        expected = average(leaf, **options, count_include_pad=count_padding, **more)
        windows = windows_of(shape, options)
        found = pool.avg_pool_forward(laid(x, last), windows, count_padding, divisor)
        close(back(found, shape, last), expected.detach().numpy(), kind)
        g = drawn(2, tuple(expected.shape), kind)
        expected.backward(engine.tensor(g.astype("d")))
        found = pool.avg_pool_backward(laid(g, last), windows, count_padding, divisor)
        close(back(found, shape, last), leaf.grad.numpy(), kind)


def maximum(shape: tuple[int, ...], options: dict[str, Any]) -> Any:
    function = getattr(F, f"max_pool{len(shape) - 2}d")
    return lambda x: function(x, **options, return_indices=True)


@both_layouts
@pytest.mark.parametrize("kind", KINDS)
def test_fixed_windows(cuda: engine.device, kind: str, last: bool):
    for shape, options in FIXED + DILATED:
        x = np.random.default_rng(1).integers(-9, 9, shape).astype(KINDS[kind][0])  # with ties
        check_maximum(kind, x, windows_of(shape, options), maximum(shape, options), last)
    for shape, options in FIXED:
        check_average(kind, shape, options, last)


@both_layouts
def test_adaptive_windows(cuda: engine.device, last: bool):
    for shape, size in (((2, 3, 7), (3,)), ((2, 3, 5, 8), (3, 5)), ((1, 2, 4, 3, 5), (2, 3, 7))):
        function = getattr(F, f"adaptive_max_pool{len(size)}d")
        x = drawn(1, shape, "float32")
        windows = pool.windows_of(shape[2:], size)
        check_maximum("float32", x, windows, lambda x, f=function, s=size: f(x, s, return_indices=True), last)
        leaf = engine.tensor(x.astype("d"), requires_grad=True)
        expected = getattr(F, f"adaptive_avg_pool{len(size)}d")(leaf, size)
        expected.sum().backward()
        close(
            back(pool.avg_pool_forward(laid(x, last), windows, True, None), shape, last),
            expected.detach().numpy(),
            "float32",
        )
        ones = np.ones(tuple(expected.shape), "f")
        found = pool.avg_pool_backward(laid(ones, last), windows, True, None)
        close(back(found, shape, last), leaf.grad.numpy(), "float32")


def test_infinities_and_nan(cuda: engine.device):
    x = np.array([[[-np.inf, -np.inf, 1, np.nan, 2, np.nan, np.inf, np.inf]]], "f")
    for kernel in (2, 4):
        options = {"kernel_size": kernel}
        check_maximum("float32", x, windows_of(x.shape, options), maximum(x.shape, options), False)


def test_accesses(cuda: engine.device):
    with cuda_device.checked(3):
        for last in (False, True):
            shape, options = FIXED[2]
            check_maximum(
                "float16", drawn(1, shape, "float16"), windows_of(shape, options), maximum(shape, options), last
            )
            check_average("float16", shape, options, last)
