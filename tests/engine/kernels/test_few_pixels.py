"""Convolutions that are one product each: of few pixels, whose windows become rows, and of windows of one pixel.

On whole numbers, which add exactly in any order, against the formulation in window columns.
"""

from typing import Any

import numpy as np
import pytest

import engine
import engine.nn.functional as F
from engine.ops.conv import arrays as conv_arrays
from engine.ops.conv import few_pixels as conv_few
from engine.ops.conv import pointwise as conv_pointwise
from engine.ops.conv.kernels import unfold
from engine.ops.shared.windows import ConvWindow
from engine.rules.layout import channels_last, contiguous_format
from tests.engine.kernels.samples import DTYPES

Array = np.ndarray

# size, window, stride, padding, dilation: windows that reach out on all sides, on none, further than the image
GEOMETRIES: list[tuple[Any, ...]] = [
    ((2, 2), (3, 3), (1, 1), (1, 1), (1, 1)),
    ((5, 4), (3, 2), (2, 1), (0, 1), (1, 1)),
    ((7, 6), (3, 3), (1, 2), (2, 2), (2, 3)),
    ((4, 4), (4, 4), (2, 2), (1, 1), (1, 1)),
    ((3, 3), (2, 5), (1, 1), (4, 4), (1, 1)),
    ((6, 5), (1, 1), (2, 2), (0, 0), (1, 1)),
]


def whole(shape: tuple[int, ...], dtype: str, seed: int) -> Array:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_few_pixels(dtype: str) -> None:
    for size, kernel, stride, padding, dilation in GEOMETRIES:
        window = ConvWindow(stride, padding, dilation, 1)
        x, weight = whole((3, 5, *size), dtype, 1), whole((7, 5, *kernel), dtype, 2)
        bias = whole((7,), dtype, 3)
        out = conv_few.forward(x, weight, bias, window, contiguous_format)
        np.testing.assert_array_equal(out, conv_arrays.convolve(np, x, weight, bias, window, contiguous_format))
        assert out.flags.c_contiguous
        g = whole(out.shape, dtype, 4)
        to_weight = conv_few.weight_gradient(g, x, window, weight.shape, weight.strides)
        np.testing.assert_array_equal(to_weight, conv_arrays.weight_gradient(np, g, x, window, weight.shape, None))
        assert to_weight.strides == weight.strides
        for more in (0, 1):  # output_padding
            extent = tuple(each + more for each in size)
            to_input = conv_few.input_gradient(g, weight, extent, window, contiguous_format)
            expected = conv_arrays.convolve_transposed(np, g, weight, None, extent, window, contiguous_format)
            np.testing.assert_array_equal(to_input, expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_fold_is_the_adjoint_of_unfold(dtype: str) -> None:
    moves = (2, 1), (1, 2), (1, 2)
    image, rows = whole((2, 3, 7, 8), dtype, 1), whole((2, 4, 8, 3 * 9), dtype, 2)
    out, back = np.empty_like(rows), np.empty_like(image)
    unfold.unfold(image, (3, 3), moves, out)
    unfold.fold(rows, (3, 3), moves, back)
    assert (out * rows).sum() == (image * back).sum()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("size", [(1, 1), (3, 4), (9, 9)])
def test_windows_of_one_pixel(size: tuple[int, int], last: bool, dtype: str) -> None:
    window = ConvWindow((1, 1), (0, 0), (1, 1), 1)
    x, weight, bias = whole((3, 6, *size), dtype, 1), whole((10, 6, 1, 1), dtype, 2), whole((10,), dtype, 3)
    g, layout = whole((3, 10, *size), dtype, 4), channels_last if last else contiguous_format
    assert conv_pointwise.serves(window, (1, 1), size, size)
    results = [
        (
            conv_pointwise.forward(x, weight, bias, window, layout),
            conv_arrays.convolve(np, x, weight, bias, window, layout),
        ),
        (
            conv_pointwise.input_gradient(g, weight, x.shape[2:], window, layout),
            conv_arrays.convolve_transposed(np, g, weight, None, size, window, layout),
        ),
    ]
    for result, expected in results:
        np.testing.assert_array_equal(result, expected)
        assert engine.from_numpy(result).is_contiguous(memory_format=layout)
    to_weight = conv_pointwise.weight_gradient(g, x, window, weight.shape, weight.strides)
    np.testing.assert_array_equal(to_weight, conv_arrays.weight_gradient(np, g, x, window, weight.shape, None))


def test_a_transposed_convolution_of_one_pixel_may_make_room() -> None:
    x, weight = engine.ones(2, 3, 4, 4, requires_grad=True), engine.ones(3, 5, 1, 1, requires_grad=True)
    y = F.conv_transpose2d(x, weight, dilation=2, output_padding=1)
    assert y.shape == (2, 5, 5, 5)
    assert y.sum() == 2 * 5 * 16 * 3
    y.sum().backward()
    assert (x.grad == 5).all()
    assert (weight.grad == 32).all()


@pytest.mark.parametrize("shape", [(1, 64, 2, 2), (2, 96, 3, 2)])
def test_who_is_served(shape: tuple[int, ...]) -> None:
    window = ConvWindow((1, 1), (1, 1), (1, 1), 1)
    batch, channels, *size = shape
    weight = channels, channels, 3, 3
    assert conv_few.serves(window, weight, batch, tuple(size), row_major=True)
    assert not conv_few.serves(window, weight, batch, tuple(size), row_major=False)
    assert not conv_few.serves(window, weight, 8 * batch, tuple(size), row_major=True)
    # what the operator chooses gives the same
    x, w = (engine.from_numpy(whole(each, "float32", 1)).requires_grad_() for each in (shape, weight))
    y = F.conv2d(x, w, padding=1)
    y.backward(y.detach())
    other, w2 = (each.detach().to(memory_format=engine.channels_last).requires_grad_() for each in (x, w))
    z = F.conv2d(other, w2, padding=1)
    z.backward(z.detach())
    for one, two in ((y, z), (x.grad, other.grad), (w.grad, w2.grad)):
        assert (one == two).all()
