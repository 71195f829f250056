"""Convolution of planes in small groups, of few channels, or to few outputs: against window columns on whole numbers,
which add exactly in any order, and bit for bit against the channels-last kernels.
"""

from typing import Any

import numpy as np
import pytest

from engine.kernels import tiling, vectors
from engine.ops.conv import arrays as conv_arrays
from engine.ops.conv import direct as conv_direct
from engine.ops.conv import planes as conv_planes
from engine.ops.shared.windows import ConvWindow
from engine.rules.layout import channels_last, contiguous_format
from tests.engine.kernels.samples import DTYPES, normal

Array = np.ndarray

# size, window, stride, padding, dilation: lines that share their padding and those that do not, windows that reach
# further than their padding and less far, phases that no window meets, cropped images, one axis to three
GEOMETRIES: list[tuple[Any, ...]] = [
    ((9, 8), (3, 3), (1, 1), (1, 1), (1, 1)),
    ((9, 8), (3, 3), (2, 2), (1, 1), (1, 1)),
    ((9, 8), (3, 3), (1, 1), (2, 2), (2, 2)),
    ((7, 7), (7, 7), (1, 1), (3, 3), (1, 1)),
    ((10, 11), (5, 5), (2, 2), (2, 2), (1, 1)),
    ((9, 9), (2, 2), (3, 3), (0, 0), (1, 1)),
    ((8, 9), (1, 3), (1, 1), (0, 1), (1, 1)),
    ((9, 11), (3, 3), (2, 1), (1, 2), (1, 2)),
    ((9, 9), (3, 2), (1, 1), (4, 3), (1, 1)),
    ((5, 4), (4, 4), (1, 2), (3, 3), (1, 1)),
    ((40,), (3,), (1,), (1,), (1,)),
    ((5, 4, 7), (3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1)),
    ((5, 4, 7), (3, 2, 3), (2, 1, 2), (1, 1, 0), (1, 1, 1)),
]
# channels, outputs, groups; of a group one output, several, and such that some blocks of outputs are not full
CHANNELS = [(5, 5, 5), (3, 6, 3), (8, 4, 2), (6, 9, 3), (7, 3, 1), (2, 14, 1), (4, 22, 2)]
RUNS = ((40, 50), (3, 3), (1, 1), (1, 1), (1, 1))  # many of the biggest tiles


def whole(shape: tuple[int, ...], dtype: str, seed: int) -> Array:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("channels", "outputs", "groups"), CHANNELS)
def test_forward_and_gradients(channels: int, outputs: int, groups: int, dtype: str) -> None:
    for size, kernel, stride, padding, dilation in [*GEOMETRIES, RUNS]:
        window = ConvWindow(stride, padding, dilation, groups)
        x, bias = whole((2, channels, *size), dtype, 1), whole((outputs,), dtype, 3)
        weight = whole((outputs, channels // groups, *kernel), dtype, 2)
        out = conv_planes.forward(x, weight, bias, window, contiguous_format)
        np.testing.assert_array_equal(out, conv_arrays.convolve(np, x, weight, bias, window, contiguous_format))
        assert out.flags.c_contiguous
        g = whole(out.shape, dtype, 4)
        to_weight = conv_planes.weight_gradient(g, x, window, weight.shape, weight.strides)
        np.testing.assert_array_equal(to_weight, conv_arrays.weight_gradient(np, g, x, window, weight.shape, None))
        assert to_weight.strides == weight.strides
        if conv_direct.serves_input_gradient(window, kernel, channels // groups):
            to_input = conv_planes.input_gradient(g, weight, size, window, contiguous_format)
            expected = conv_arrays.convolve_transposed(np, g, weight, None, size, window, contiguous_format)
            np.testing.assert_array_equal(to_input, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("channels", "outputs", "groups"), [(20, 20, 20), (8, 8, 2), (9, 3, 1), (3, 14, 1)])
def test_bits_are_those_of_channels_last(channels: int, outputs: int, groups: int, stride: int, dtype: str) -> None:
    window = ConvWindow((stride, stride), (1, 1), (1, 1), groups)
    x, weight = normal((2, channels, 13, 18), dtype, 1), normal((outputs, channels // groups, 3, 3), dtype, 2)
    bias = normal((outputs,), dtype, 3)
    out = conv_planes.forward(x, weight, bias, window, contiguous_format)
    np.testing.assert_array_equal(out, conv_direct.forward(x, weight, bias, window, channels_last))
    g = normal(out.shape, dtype, 4)
    to_input = conv_planes.input_gradient(g, weight, (13, 18), window, contiguous_format)
    np.testing.assert_array_equal(to_input, conv_direct.input_gradient(g, weight, (13, 18), window, channels_last))


def test_weights_in_the_strides_asked_for_and_gradients_of_any() -> None:
    window = ConvWindow((1, 1), (1, 1), (1, 1), 4)
    x = whole((2, 4, 6, 7), "float32", 1)
    g = np.broadcast_to(whole((1, 1, 6, 7), "float32", 2), (2, 4, 6, 7))
    strides = (36, 4, 12, 4)  # channels-last
    to_weight = conv_planes.weight_gradient(g, x, window, (4, 1, 3, 3), strides)
    assert to_weight.strides[2:] == strides[2:]
    np.testing.assert_array_equal(to_weight, conv_arrays.weight_gradient(np, g, x, window, (4, 1, 3, 3), None))


def test_who_is_served() -> None:
    window = ConvWindow((1, 1), (1, 1), (1, 1), 32)
    assert conv_planes.serves(window, (32, 1, 3, 3), (16, 16), np.dtype("float32"), row_major=True)
    assert not conv_planes.serves(window, (32, 1, 3, 3), (16, 16), np.dtype("float32"), row_major=False)
    assert not conv_planes.serves(window, (32, 1, 3, 3), (8, 8), np.dtype("float32"), row_major=True)
    dense = window._replace(groups=1)
    for weight, out, served in (
        ((32, 32, 3, 3), (16, 16), False),
        ((2, 32, 3, 3), (16, 16), True),
        ((32, 3, 3, 3), (16, 16), True),
        ((3, 32, 1, 1), (16, 16), False),  # a product
        ((3, 32, 9), (256,), False),
    ):
        assert conv_planes.serves(dense, weight, out, np.dtype("float32"), row_major=True) == served
    assert not conv_planes.serves(
        window._replace(groups=2), (64, 32, 3, 3), (16, 16), np.dtype("float32"), row_major=True
    )


def test_who_is_served_a_gradient_of_the_input() -> None:
    dense, narrow = ConvWindow((1, 1), (1, 1), (1, 1), 1), ConvWindow((2, 2), (1, 1), (1, 1), 8)
    for window, weight, size, served in (
        (narrow, (64, 8, 3, 3), (16, 16), True),
        (narrow, (64, 8, 3, 3), (8, 8), False),
        (narrow, (128, 16, 3, 3), (16, 16), False),
        (dense, (3, 64, 3, 3), (16, 16), True),
        (dense, (64, 3, 3, 3), (16, 16), False),
        (dense, (64, 64, 1, 1), (16, 16), False),
        (dense._replace(stride=(2, 2)), (3, 64, 3, 3), (16, 16), False),
    ):
        assert conv_planes.serves_input_gradient(window, weight, size, row_major=True) == served
    assert not conv_planes.serves_input_gradient(narrow, (64, 8, 3, 3), (16, 16), row_major=False)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("channels", "outputs", "groups"), [(3, 14, 1), (4, 22, 2)])
def test_bits_do_not_depend_on_which_outputs_are_computed_together(
    channels: int, outputs: int, groups: int, dtype: str
) -> None:
    window = ConvWindow((1, 1), (1, 1), (1, 1), groups)
    x, weight = normal((3, channels, 17, 19), dtype, 1), normal((outputs, channels // groups, 3, 3), dtype, 2)
    out = conv_planes.forward(x, weight, None, window, contiguous_format)
    g = normal(out.shape, dtype, 3)
    to_weight = conv_planes.weight_gradient(g, x, window, weight.shape, weight.strides)
    for o in range(outputs):
        group = o // (outputs // groups)
        of_group = x[:, group * (channels // groups) :][:, : channels // groups]
        alone, one = window._replace(groups=1), weight[o : o + 1]
        np.testing.assert_array_equal(
            out[:, o : o + 1], conv_planes.forward(of_group, one, None, alone, contiguous_format)
        )
        to_one = conv_planes.weight_gradient(g[:, o : o + 1], of_group, alone, one.shape, one.strides)
        np.testing.assert_array_equal(to_weight[o : o + 1], to_one)


@pytest.mark.parametrize("outputs", [1, vectors.product_outputs()])
@pytest.mark.parametrize("length", [1, 9, 25, 49, 72])
def test_products_of_a_window_are_summed_once_each(length: int, outputs: int) -> None:
    starts, sizes = tiling.tiles(length, False, vectors.product_prices(outputs))
    assert starts.tolist() == np.cumsum([0, *sizes])[:-1].tolist()
    assert sum(sizes) == length
