"""Depthwise convolution and its adjoints against windows written out, on integers: exact."""

import itertools

import numpy as np
import pytest

from engine.kernels.windows import output_size
from engine.ops.conv import arrays as conv_arrays
from engine.ops.conv import direct as conv_direct
from engine.ops.shared.windows import ConvWindow
from engine.rules.layout import MemoryFormat, channels_last, contiguous_format
from tests.engine.kernels.samples import DTYPES

GEOMETRIES = list(
    itertools.product(((3, 3), (2, 3), (1, 1)), ((1, 1), (2, 1)), ((0, 0), (1, 2), (3, 3)), ((1, 1), (2, 1)))
)


def reference(image: np.ndarray, filters: np.ndarray, out: tuple[int, int], moves: tuple) -> np.ndarray:
    (stride, padding, dilation), (high, wide) = moves, filters.shape[:2]
    padded = np.pad(image, ((0, 0), (padding[0],) * 2, (padding[1],) * 2, (0, 0)))
    total = np.zeros((len(image), *out, image.shape[3]))
    for i, j in np.ndindex(high, wide):
        rows = slice(i * dilation[0], i * dilation[0] + (out[0] - 1) * stride[0] + 1, stride[0])
        columns = slice(j * dilation[1], j * dilation[1] + (out[1] - 1) * stride[1] + 1, stride[1])
        total += padded[:, rows, columns] * filters[i, j]
    return total


def planes(image: np.ndarray) -> np.ndarray:
    """(N, H, W, C) as a view (N, C, H, W)."""
    return image.transpose(0, 3, 1, 2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels", [2, 7, 11, 16, 40])
def test_forward_and_adjoints(channels: int, dtype: str) -> None:
    rng = np.random.RandomState(0)
    for kernel_size, stride, padding, dilation in GEOMETRIES:
        moves = (stride, padding, dilation)
        window = ConvWindow(stride, padding, dilation, channels)
        image = rng.randint(-4, 5, (2, 7, 8, channels)).astype(dtype)
        filters = rng.randint(-4, 5, (*kernel_size, channels)).astype(dtype)
        weight = filters.transpose(2, 0, 1)[:, None]
        out = tuple(map(output_size, (7, 8), kernel_size, stride, padding, dilation))
        expected = reference(image, filters, out, moves)
        assert conv_direct.serves(window, kernel_size, 1)
        result = conv_direct.forward(planes(image), weight, None, window, channels_last)
        np.testing.assert_array_equal(result, planes(expected))
        # Adjoint: <forward(x, w), g> = <x, input_gradient> = <w, weight_gradient>.
        gradient = rng.randint(-4, 5, expected.shape).astype(dtype)
        inner = float((expected * gradient).sum())
        if conv_direct.serves_input_gradient(window, kernel_size, 1):
            to_image = conv_direct.input_gradient(planes(gradient), weight, (7, 8), window, channels_last)
            assert float((to_image.astype(float) * planes(image)).sum()) == inner
        to_weight = conv_direct.weight_gradient(planes(gradient), planes(image), window, weight.shape, weight.strides)
        assert float((to_weight.astype(float) * weight).sum()) == inner


@pytest.mark.parametrize("memory_format", [contiguous_format, channels_last])
def test_several_filters_a_channel(memory_format: MemoryFormat) -> None:
    rng = np.random.RandomState(1)
    x, weight, bias = (rng.randint(-4, 5, shape).astype("float32") for shape in ((2, 5, 9, 8), (15, 1, 3, 3), (15,)))
    window = ConvWindow((2, 1), (1, 1), (1, 1), 5)
    out = conv_direct.forward(x, weight, bias, window, memory_format)
    np.testing.assert_array_equal(out, conv_arrays.convolve(np, x, weight, bias, window, memory_format))
    g = rng.randint(-4, 5, out.shape).astype("float32")
    to_input = conv_direct.input_gradient(g, weight, (9, 8), window, memory_format)
    expected = conv_arrays.convolve_transposed(np, g, weight, None, (9, 8), window, memory_format)
    np.testing.assert_array_equal(to_input, expected)
    assert to_input.strides == expected.strides
    to_weight = conv_direct.weight_gradient(g, x, window, weight.shape, weight.strides)
    np.testing.assert_array_equal(to_weight, conv_arrays.weight_gradient(np, g, x, window, weight.shape, None))
