"""Depthwise convolution and its adjoints against windows written out, on integers: exact."""

import itertools

import numpy as np
import pytest

from engine.kernels.windows import output_size
from engine.ops.conv.kernels import depthwise
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


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels", [1, 7, 16])
def test_forward_and_adjoints(channels: int, dtype: str) -> None:
    rng = np.random.RandomState(0)
    for kernel_size, stride, padding, dilation in GEOMETRIES:
        moves = (stride, padding, dilation)
        image = rng.randint(-4, 5, (2, 7, 8, channels)).astype(dtype)
        filters = rng.randint(-4, 5, (*kernel_size, channels)).astype(dtype)
        out = tuple(map(output_size, (7, 8), kernel_size, stride, padding, dilation))
        expected = reference(image, filters, out, moves)
        np.testing.assert_array_equal(depthwise.forward(image, filters, out, *moves), expected)
        # Adjoint: <forward(x, w), g> = <x, input_gradient> = <w, filter_gradient>.
        gradient = rng.randint(-4, 5, expected.shape).astype(dtype)
        inner = float((expected * gradient).sum())
        to_image = depthwise.input_gradient(gradient, filters, (7, 8), *moves)
        to_filters = depthwise.filter_gradient(gradient, image, kernel_size, *moves)
        assert float((to_image.astype(float) * image).sum()) == inner
        assert float((to_filters.astype(float) * filters).sum()) == inner
