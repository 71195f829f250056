"""Pooling in both layouts against windows written out; ties, NaN, padding and ceil mode as in PyTorch."""

import itertools

import numpy as np
import pytest

from engine.ops.pooling.kernels import avg_pool, max_pool
from tests.engine.kernels.samples import DTYPES, close, normal

SHAPES = ((2, 3, 7, 9), (1, 16, 6, 6), (3, 1, 5, 8), (1, 2, 5, 39), (1, 2, 6, 27), (0, 2, 6, 6))
WINDOWS = list(itertools.product(((2, 2), (3, 3), (3, 2)), ((2, 2), (1, 1), (1, 3), (3, 2)), ((0, 0), (1, 1))))


def sizes(shape, kernel_size, stride, padding, dilation=(1, 1), ceil=False):
    """Output size; in ceil mode the last window must begin inside the image or its left padding."""
    result = []
    for size, k, s, p, d in zip(shape[2:], kernel_size, stride, padding, dilation, strict=True):
        span = size + 2 * p - d * (k - 1) - 1 + (s - 1 if ceil else 0)
        places = span // s + 1
        result.append(places - 1 if ceil and (places - 1) * s >= size + p else places)
    return tuple(result)


def both_layouts(x):
    """The same image as planes and as channels-last, with the way back to (N, C, H, W)."""
    batch, channels = x.shape[:2]
    yield x.reshape(-1, *x.shape[2:]), lambda y: y.reshape(batch, channels, *y.shape[1:])
    yield np.ascontiguousarray(x.transpose(0, 2, 3, 1)), lambda y: y.transpose(0, 3, 1, 2)


def window(row, column, shape, kernel_size, stride, padding, dilation):
    """Positions (h, w) of a window that lie in the image, in row-major order."""
    return [
        (h, w)
        for h in (row * stride[0] - padding[0] + i * dilation[0] for i in range(kernel_size[0]))
        for w in (column * stride[1] - padding[1] + j * dilation[1] for j in range(kernel_size[1]))
        if 0 <= h < shape[2] and 0 <= w < shape[3]
    ]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dilation", [(1, 1), (2, 1)])
def test_max_pool(shape, dilation, dtype):
    # Few distinct values, so that many windows have ties: the first wins.
    x = np.random.default_rng(0).integers(-3, 3, shape).astype(dtype)
    x.ravel()[::17] = np.nan
    x.ravel()[5::13] = -np.inf
    x[:, -1, :3] = -np.inf  # windows of nothing else, at the edge, too
    for (kernel_size, stride, padding), ceil in itertools.product(WINDOWS, (False, True)):
        output = sizes(shape, kernel_size, stride, padding, dilation, ceil)
        expected = np.zeros((*shape[:2], *output), dtype)
        places = np.zeros(expected.shape, np.int32)
        g = np.random.default_rng(1).integers(-9, 9, expected.shape).astype(dtype)
        gradient = np.zeros(shape, dtype)
        for row, column in np.ndindex(*output):
            inside = window(row, column, shape, kernel_size, stride, padding, dilation)
            for plane in np.ndindex(*shape[:2]):
                best = inside[0]
                for place in inside[1:]:
                    if x[(*plane, *place)] > x[(*plane, *best)] or np.isnan(x[(*plane, *place)]):
                        best = place
                expected[(*plane, row, column)] = x[(*plane, *best)]
                places[(*plane, row, column)] = best[0] * shape[3] + best[1]
                gradient[(*plane, *best)] += g[(*plane, row, column)]
        for (image, restore), (incoming, _) in zip(both_layouts(x), both_layouts(g), strict=True):
            out, indices = max_pool.max_pool2d_forward(image, output, kernel_size, stride, padding, dilation)
            np.testing.assert_array_equal(restore(out), expected)
            np.testing.assert_array_equal(restore(indices), places)
            back = max_pool.max_pool2d_backward(incoming, indices, image.shape, out=np.full_like(image, np.nan))
            np.testing.assert_array_equal(restore(back), gradient)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("kernel_size", "stride", "padding"), [((2, 2), (2, 2), (0, 0)), ((3, 3), (1, 1), (1, 1))])
@pytest.mark.parametrize("planes", [1, 63, 64, 65, 150])
def test_small_planes_give_together_what_each_gives_alone(planes, kernel_size, stride, padding, dtype):
    x = normal((planes, 4, 4), dtype)
    window = sizes((1, *x.shape), kernel_size, stride, padding), kernel_size, stride, padding
    together = max_pool.max_pool2d_forward(x, *window)
    alone = [max_pool.max_pool2d_forward(x[plane : plane + 1], *window) for plane in range(planes)]
    for number, found in enumerate(together):
        np.testing.assert_array_equal(found, np.concatenate([one[number] for one in alone]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("include", [True, False])
@pytest.mark.parametrize("override", [None, 5])
def test_avg_pool(shape, include, override, dtype):
    x = normal(shape, dtype)
    for (kernel_size, stride, padding), ceil in itertools.product(WINDOWS, (False, True)):
        output = sizes(shape, kernel_size, stride, padding, ceil=ceil)
        expected = np.zeros((*shape[:2], *output))
        g = normal(expected.shape, dtype, seed=1)
        gradient = np.zeros(shape)
        for row, column in np.ndindex(*output):
            inside = window(row, column, shape, kernel_size, stride, padding, (1, 1))
            padded = 1
            for place, size, k, s, p in zip((row, column), shape[2:], kernel_size, stride, padding, strict=True):
                padded *= min(place * s - p + k, size + p) - (place * s - p)
            divisor = override or (padded if include else len(inside))
            for h, w in inside:
                expected[:, :, row, column] += x[:, :, h, w].astype("float64") / divisor
                gradient[:, :, h, w] += g[:, :, row, column].astype("float64") / divisor
        options = (kernel_size, stride, padding, include, override)
        for (image, restore), (incoming, _) in zip(both_layouts(x), both_layouts(g), strict=True):
            close(restore(avg_pool.avg_pool2d_forward(image, output, *options)), expected, dtype)
            back = avg_pool.avg_pool2d_backward(incoming, image.shape, *options, out=np.full_like(image, np.nan))
            close(restore(back), gradient, dtype)
