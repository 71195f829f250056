"""Direct convolution: against the formulation in window columns, over windows, groups, layouts and sizes of a tile.

Whole numbers add exactly in any order, so results are compared with ==.
"""

import numpy as np
import pytest

from engine.kernels import tiling, vectors
from engine.ops.conv import arrays as conv_arrays
from engine.ops.conv import direct as conv_direct
from engine.ops.shared.windows import ConvWindow
from engine.rules.layout import channels_last, channels_last_3d, contiguous_format
from tests.engine.kernels.samples import DTYPES

# channels, outputs, groups: less than a vector, whole vectors, more than two, and what is left over
CHANNELS = [(3, 5, 1), (16, 32, 1), (20, 72, 1), (8, 16, 4), (6, 4, 2), (1, 33, 1), (24, 48, 3), (4, 2, 2)]
# kernel, stride, padding, dilation
WINDOWS = [
    (3, 1, 1, 1),
    (3, 2, 1, 1),
    (2, 2, 0, 1),
    (3, 1, 2, 2),
    (1, 1, 0, 1),
    (1, 2, 0, 1),
    (4, 3, 1, 1),
    (2, 3, 0, 1),
]
SIZES = {1: (17,), 2: (9, 8), 3: (5, 4, 7)}


def whole(shape, dtype, seed):
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(dtype)


def last(array):
    """The same elements, channels-last in memory."""
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(array, 1, -1)), -1, 1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("row_major", [True, False])
@pytest.mark.parametrize("dims", SIZES)
def test_convolution_and_its_gradients(dims, row_major, dtype):
    tried = 0
    for channels, outputs, groups in CHANNELS:
        for kernel, stride, padding, dilation in WINDOWS:
            window = ConvWindow((stride,) * dims, (padding,) * dims, (dilation,) * dims, groups)
            if not conv_direct.serves(window, (kernel,) * dims, channels // groups):
                continue
            tried += 1
            size = SIZES[dims]
            x = whole((2, channels, *size), dtype, 1)
            weight = whole((outputs, channels // groups, *(kernel,) * dims), dtype, 2)
            bias = whole(outputs, dtype, 3)
            memory_format = contiguous_format
            if not row_major:
                x, weight = last(x), last(weight)
                memory_format = channels_last_3d if dims == 3 else channels_last
            out = conv_direct.forward(x, weight, bias, window, memory_format)
            np.testing.assert_array_equal(
                out, conv_arrays.convolve(np, x, weight, bias, window, memory_format), str(window)
            )
            g = whole(out.shape, dtype, 4) if row_major else last(whole(out.shape, dtype, 4))
            slope = conv_direct.weight_gradient(g, x, window, weight.shape, weight.strides)
            assert slope.strides == weight.strides
            np.testing.assert_array_equal(
                slope, conv_arrays.weight_gradient(np, g, x, window, weight.shape, None), str(window)
            )
            if conv_direct.serves_input_gradient(window, (kernel,) * dims, channels // groups):
                np.testing.assert_array_equal(
                    conv_direct.input_gradient(g, weight, size, window, memory_format),
                    conv_arrays.convolve_transposed(np, g, weight, None, size, window, memory_format),
                    str(window),
                )
    assert tried > 20


@pytest.mark.parametrize("dtype", DTYPES)
def test_many_weights_are_used_in_pieces(dtype):
    """Lines of 7 and 10 pixels, more weights than a panel holds, a bias, outputs that fill no vector."""
    for width, outputs in ((7, 40), (10, 64)):
        x, weight = whole((3, 300, 4, width), dtype, 5), whole((outputs, 300, 3, 3), dtype, 6)
        bias = whole(outputs, dtype, 7)
        window = ConvWindow((1, 1), (1, 1), (1, 1), 1)
        np.testing.assert_array_equal(
            conv_direct.forward(x, weight, bias, window, contiguous_format),
            conv_arrays.convolve(np, x, weight, bias, window, contiguous_format),
        )


@pytest.mark.parametrize("dtype", DTYPES)
def test_big_images_are_summed_in_bands(dtype):
    x, g = whole((1, 4, 130, 300), dtype, 8), whole((1, 16, 130, 300), dtype, 9)
    window = ConvWindow((1, 1), (1, 1), (1, 1), 1)
    np.testing.assert_array_equal(
        conv_direct.weight_gradient(g, x, window, (16, 4, 3, 3), (36, 9, 3, 1)),
        conv_arrays.weight_gradient(np, g, x, window, (16, 4, 3, 3), None),
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_result_does_not_depend_on_its_tile(dtype):
    """A pixel alone, in a short line and in a long one: the same bits."""
    random = np.random.default_rng(10)
    x = random.standard_normal((1, 24, 1, 30)).astype(dtype)
    weight = random.standard_normal((20, 24, 1, 3)).astype(dtype)
    window = ConvWindow((1, 1), (0, 0), (1, 1), 1)
    whole_line = conv_direct.forward(x, weight, None, window, contiguous_format)
    for first, length in ((0, 1), (5, 3), (9, 7), (11, 16)):
        part = conv_direct.forward(x[..., first : first + length + 2], weight, None, window, contiguous_format)
        np.testing.assert_array_equal(part, whole_line[..., first : first + length])


@pytest.mark.parametrize("across", [1, 2])
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("length", [0, 1, 3, 4, 7, 8, 14, 15, 28, 33, 224])
def test_tiles_cover_a_line(length, overlap, across):
    starts, sizes = tiling.tiles(length, overlap, vectors.tile_prices(across))
    assert set(sizes.tolist()) <= set(vectors.tile_prices(across))
    covered = [place for start, size in zip(starts, sizes, strict=True) for place in range(start, start + size)]
    assert sorted(set(covered)) == list(range(length))
    if not overlap:
        assert len(covered) == length


def test_tiles_of_two_vectors_fit_the_windows_of_public_models():
    assert {3, 5, 7} <= set(vectors.each_prices())
    for length in (3, 5, 7, 14, 28, 56):
        _, sizes = tiling.tiles(length, False, vectors.each_prices())
        assert len(sizes) == -(-length // 7)
