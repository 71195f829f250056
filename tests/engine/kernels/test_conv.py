"""im2col and col2im against windows written out, for every stride, padding, dilation and group count."""

import itertools

import numpy as np
import pytest

from engine.kernels.windows import output_size
from engine.ops.conv.kernels import columns as conv
from tests.engine.kernels.samples import DTYPES, close, normal, shifted

GEOMETRIES = [
    {"kernel_size": kernel, "stride": stride, "padding": padding, "dilation": dilation}
    for kernel, stride, padding, dilation in itertools.product(
        ((1, 1), (3, 3), (2, 3)), ((1, 1), (2, 1), (3, 2)), ((0, 0), (1, 2), (4, 1)), ((1, 1), (2, 1), (1, 2))
    )
]
IMAGES = (
    ((2, 7, 9, 4), 1),
    ((1, 6, 5, 12), 1),
    ((2, 6, 7, 12), 3),
    ((2, 5, 6, 32), 2),
    ((3, 6, 6, 1), 1),
    ((0, 6, 6, 2), 1),
)


def reference(image, kernel_size, stride, padding, dilation, groups):
    """Columns (G, N * OH * OW, KH * KW * C / G), window by window from a padded image."""
    batch, height, width, channels = image.shape
    padded = np.pad(image, ((0, 0), (padding[0],) * 2, (padding[1],) * 2, (0, 0)))
    rows = output_size(height, kernel_size[0], stride[0], padding[0], dilation[0])
    columns = output_size(width, kernel_size[1], stride[1], padding[1], dilation[1])
    out = np.zeros((batch, rows, columns, *kernel_size, channels), image.dtype)
    for row, column in np.ndindex(rows, columns):
        top, left = row * stride[0], column * stride[1]
        bottom, right = top + dilation[0] * (kernel_size[0] - 1) + 1, left + dilation[1] * (kernel_size[1] - 1) + 1
        out[:, row, column] = padded[:, top : bottom : dilation[0], left : right : dilation[1]]
    run, area = channels // groups, kernel_size[0] * kernel_size[1]
    out = out.reshape(batch * rows * columns, area, groups, run).transpose(2, 0, 1, 3)
    return np.ascontiguousarray(out).reshape(groups, batch * rows * columns, area * run)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "groups"), IMAGES)
def test_im2col_and_its_adjoint(shape, groups, dtype):
    image = normal(shape, dtype)
    for geometry in GEOMETRIES:
        expected = reference(image, groups=groups, **geometry)
        stale = np.full_like(expected, np.nan)
        matrix = conv.im2col(image, groups=groups, out=stale, **geometry)
        assert matrix is stale
        np.testing.assert_array_equal(matrix, expected)

        cotangent = normal(expected.shape, dtype, seed=1)
        stale = np.full(shape, np.nan, dtype)
        back = conv.col2im(cotangent, shape, out=stale, **geometry)
        assert back is stale
        # <im2col(x), c> = <x, col2im(c)> for every x: here for the unit images, all at once.
        places = reference(np.arange(image.size, dtype="float64").reshape(shape) + 1, groups=groups, **geometry)
        summed = np.bincount(
            places.astype(np.int64).ravel(), weights=cotangent.astype("float64").ravel(), minlength=image.size + 1
        )
        close(back, summed[1:].reshape(shape), dtype)


def test_alignment_changes_nothing():
    image = normal((2, 6, 7, 16), "float32")
    matrix = conv.im2col(image, (3, 3), padding=(1, 1))
    back = conv.col2im(matrix, image.shape, (3, 3), padding=(1, 1))
    for shift in (1, 5):
        np.testing.assert_array_equal(conv.im2col(shifted(image, shift), (3, 3), padding=(1, 1)), matrix)
        moved = shifted(matrix, shift)
        np.testing.assert_array_equal(conv.col2im(moved, image.shape, (3, 3), padding=(1, 1)), back)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(0, 4), (3, 1), (5, 33)])
def test_add_to_rows(shape, dtype):
    rows, vector = normal(shape, dtype), normal(shape[1], dtype, seed=1)
    expected = rows + vector
    conv.add_to_rows(rows, vector)
    np.testing.assert_array_equal(rows, expected)
