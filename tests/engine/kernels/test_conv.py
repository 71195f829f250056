"""col2im against windows written out, for every stride, padding, dilation and group count."""

import itertools
from math import prod

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
def test_col2im(shape, groups, dtype):
    for geometry in GEOMETRIES:
        places = reference(np.arange(prod(shape), dtype="float64").reshape(shape) + 1, groups=groups, **geometry)
        cotangent = normal(places.shape, dtype, seed=1)
        stale = np.full(shape, np.nan, dtype)
        back = conv.col2im(cotangent, shape, out=stale, **geometry)
        assert back is stale
        summed = np.bincount(
            places.astype(np.int64).ravel(), weights=cotangent.astype("float64").ravel(), minlength=prod(shape) + 1
        )
        close(back, summed[1:].reshape(shape), dtype)


def test_alignment_changes_nothing():
    shape = (2, 6, 7, 16)
    matrix = normal((1, 2 * 6 * 7, 9 * 16), "float32")
    back = conv.col2im(matrix, shape, (3, 3), padding=(1, 1))
    for shift in (1, 5):
        moved = shifted(matrix, shift)
        np.testing.assert_array_equal(conv.col2im(moved, shape, (3, 3), padding=(1, 1)), back)
