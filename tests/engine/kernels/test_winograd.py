"""Convolution by Winograd's minimal filtering, against the formulation in window columns and the direct kernels.

Whole numbers add exactly in any order, and halves of them, too, so results are compared with ==.
"""

import numpy as np
import pytest

import engine
import engine.nn.functional as F
from engine.ops.conv import arrays as conv_arrays
from engine.ops.conv import direct as conv_direct
from engine.ops.conv import winograd as conv_winograd
from engine.ops.shared.windows import ConvWindow
from engine.rules.layout import channels_last, contiguous_format
from engine.sharing import threads
from tests.engine.kernels.samples import DTYPES

Array = np.ndarray

# channels and outputs: whole vectors, more than two, what is left over, less than two
CHANNELS = [(16, 32), (17, 19), (24, 72), (72, 16), (40, 33)]
SIZES = [(8, 6), (9, 7), (2, 3), (4, 13), (19, 10)]


def window(padding: int, dilation: tuple[int, int] = (1, 1), stride: int = 1) -> ConvWindow:
    return ConvWindow((stride, stride), (padding, padding), dilation, 1)


def whole(shape: tuple[int, ...], dtype: str, seed: int) -> Array:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(dtype)


def normal(shape: tuple[int, ...], dtype: str, seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def last(array: Array) -> Array:
    """The same elements, channels-last in memory."""
    return np.ascontiguousarray(array.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("row_major", [True, False])
@pytest.mark.parametrize("dilation", [(1, 1), (2, 2), (1, 3), (4, 2)])
@pytest.mark.parametrize("padding", [0, 1, 2])
def test_convolution_and_the_gradient_of_its_input(
    padding: int, dilation: tuple[int, int], row_major: bool, dtype: str
) -> None:
    compare(window(padding, dilation), 3, row_major, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("row_major", [True, False])
@pytest.mark.parametrize("padding", [(0, 0), (1, 1), (2, 2), (1, 2)])
def test_windows_of_four_that_move_by_two(padding: tuple[int, int], row_major: bool, dtype: str) -> None:
    compare(ConvWindow((2, 2), padding, (1, 1), 1), 4, row_major, dtype)


def compare(moves: ConvWindow, extent: int, row_major: bool, dtype: str) -> None:
    """With the formulation in columns. Sizes of the input are such that windows reach its end, and that they do not."""
    memory_format = contiguous_format if row_major else channels_last
    laid_out = np.ascontiguousarray if row_major else last
    for channels, outputs in CHANNELS:
        for size in SIZES:
            if min(moves.positions(size, (extent, extent))) < 1:
                continue
            x = laid_out(whole((3, channels, *size), dtype, 1))
            weight = laid_out(whole((outputs, channels, extent, extent), dtype, 2))
            bias = whole((outputs,), dtype, 3)
            out = conv_winograd.forward(x, weight, bias, moves, memory_format)
            np.testing.assert_array_equal(out, conv_arrays.convolve(np, x, weight, bias, moves, memory_format))
            assert out.flags.c_contiguous == row_major or out[0, 0].size == 1
            g = laid_out(whole(out.shape, dtype, 4))
            to_input = conv_winograd.input_gradient(g, weight, size, moves, memory_format)
            expected = conv_arrays.convolve_transposed(np, g, weight, None, size, moves, memory_format)
            np.testing.assert_array_equal(to_input, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("extent", "stride"), [(3, 1), (4, 2)])
def test_an_image_has_the_same_bits_alone_and_among_others(extent: int, stride: int, dtype: str) -> None:
    """As many tiles as are multiplied at a time, and more."""
    x, moves = normal((9, 16, 22 * stride, 22 * stride), dtype, 1), window(1, stride=stride)
    weight = normal((48, 16, extent, extent), dtype, 2)
    every = conv_winograd.forward(x, weight, None, moves, contiguous_format)
    gradient = conv_winograd.input_gradient(every, weight, x.shape[2:], moves, contiguous_format)
    for image in (0, 4, 8):
        one = conv_winograd.forward(x[image : image + 1], weight, None, moves, contiguous_format)
        np.testing.assert_array_equal(one[0], every[image])
        one = conv_winograd.input_gradient(one, weight, x.shape[2:], moves, contiguous_format)
        np.testing.assert_array_equal(one[0], gradient[image])


@pytest.mark.parametrize(("extent", "stride"), [(3, 1), (4, 2)])
def test_threads_change_no_bit(extent: int, stride: int) -> None:
    size, moves = (14 * stride, 15 * stride), window(1, stride=stride)
    x, weight, g = (
        normal((8, 32, *size), "f", 1),
        normal((40, 32, extent, extent), "f", 2),
        normal((8, 40, 14, 15), "f", 3),
    )
    before = threads.usable_threads()
    found = []
    try:
        for number in (1, 2, 3):
            threads.set_num_threads(number)
            found.append(
                [
                    conv_winograd.forward(x, weight, None, moves, contiguous_format),
                    conv_winograd.input_gradient(g, weight, size, moves, channels_last),
                ]
            )
    finally:
        threads.set_num_threads(before)
    for others in found[1:]:
        for one, other in zip(found[0], others, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("extent", "stride", "most"), [(3, 1, 1.0), (4, 2, 1.2)])
def test_it_is_as_exact_as_the_direct_kernels(extent: int, stride: int, most: float) -> None:
    size = (28 * stride, 28 * stride)
    x, weight, g = (
        normal((8, 64, *size), "f", 1),
        normal((64, 64, extent, extent), "f", 2),
        normal((8, 64, 28, 28), "f", 3),
    )
    wide = [array.astype("d") for array in (x, weight, g)]
    moves = window(1, stride=stride)

    def results(family, x: Array, weight: Array, g: Array) -> list[Array]:
        return [
            family.forward(x, weight, None, moves, contiguous_format),
            family.input_gradient(g, weight, size, moves, contiguous_format),
        ]

    for true, one, other in zip(
        results(conv_direct, *wide),
        results(conv_winograd, x, weight, g),
        results(conv_direct, x, weight, g),
        strict=True,
    ):
        assert np.square(one - true).mean() <= most * np.square(other - true).mean()


def test_which_convolutions_it_serves() -> None:
    def serves(
        weight: tuple[int, ...] = (32, 16, 3, 3), batch: int = 8, out: tuple[int, ...] = (8, 8), **other: object
    ) -> bool:
        return conv_winograd.serves(window(1)._replace(**other), weight, batch, out)

    assert serves()
    assert serves(padding=(2, 0))
    assert not serves(padding=(3, 0))
    assert not serves(stride=(1, 2))
    assert serves(dilation=(2, 4), padding=(4, 0))
    assert not serves(dilation=(3, 3))  # tiles of 12x12 pixels for 8x8
    assert not serves(groups=2)
    assert serves((32, 64, 4, 4), stride=(2, 2))
    assert serves((32, 64, 4, 4), stride=(2, 2), padding=(2, 1))
    assert not serves((32, 32, 4, 4), stride=(2, 2))
    assert not serves((32, 64, 4, 4), stride=(2, 2), padding=(3, 1))
    assert not serves((32, 64, 4, 4), stride=(2, 2), dilation=(2, 2))
    assert not serves((32, 64, 4, 4))
    assert not serves((32, 64, 4, 4), stride=(2, 1))
    assert not serves(stride=(2, 2))
    assert not serves((32, 16, 3, 1))
    assert not serves((32, 16, 3))
    assert not serves((64, 8, 3, 3))
    assert not serves((16, 16, 3, 3))
    assert not serves(batch=3)
    assert not serves(batch=100, out=(3, 3))  # four tiles for nine pixels


def test_the_parts_of_a_gradient_are_counted_as_outputs() -> None:
    moves = window(1, stride=2)
    assert conv_winograd.serves_input_gradient(moves, (32, 64, 4, 4), 4, (16, 15))
    assert not conv_winograd.serves_input_gradient(moves, (32, 64, 4, 4), 4, (14, 15))
    assert conv_winograd.serves_input_gradient(window(1), (32, 16, 3, 3), 8, (8, 8))


@pytest.mark.parametrize("memory_format", [contiguous_format, channels_last])
@pytest.mark.parametrize(("extent", "stride"), [(3, 1), (4, 2)])
def test_the_operator_and_its_input_gradient_take_it(
    extent: int, stride: int, memory_format: engine.memory_format
) -> None:
    size = (8 * stride, 8 * stride)
    x = engine.randn(8, 16 * stride * stride, *size).to(memory_format=memory_format).requires_grad_()
    weight = engine.randn(32, 16 * stride * stride, extent, extent).requires_grad_()
    out = F.conv2d(x, weight, stride=stride, padding=1)
    g = engine.randn_like(out)
    out.backward(g)
    arrays = [tensor.detach().numpy() for tensor in (x, weight, g)]
    moves = window(1, stride=stride)
    expected = conv_winograd.forward(arrays[0], arrays[1], None, moves, memory_format)
    np.testing.assert_array_equal(out.detach().numpy(), expected)
    to_input = conv_winograd.input_gradient(arrays[2], arrays[1], size, moves, memory_format)
    np.testing.assert_array_equal(x.grad.numpy(), to_input)
    with engine.no_grad():  # the other way round
        transposed = F.conv_transpose2d(g.to(memory_format=memory_format), weight, stride=stride, padding=1)
    np.testing.assert_array_equal(transposed.numpy(), to_input)


def test_a_weight_that_meets_nothing_but_zeros_has_no_gradient() -> None:
    """Adam would step it by what rounding leaves."""
    x, g = np.zeros((8, 16, 8, 8), "f"), np.zeros((8, 32, 8, 8), "f")
    x[..., 2:4], g[..., 3] = normal((8, 16, 8, 2), "f", 1), normal((8, 32, 8), "f", 2)
    weight = engine.randn(32, 16, 3, 3).requires_grad_()
    F.conv2d(engine.from_numpy(x), weight, padding=1).backward(engine.from_numpy(g))
    assert weight.grad is not None
    assert weight.grad[..., :2].all()
    assert not weight.grad[..., 2].any()  # these would meet the fifth column
