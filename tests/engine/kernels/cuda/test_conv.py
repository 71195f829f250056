"""The convolution kernels on the formulas of `engine.ops.conv.arrays` in float64: windows, layouts, groups, for every
way of multiplying. Without a GPU the kernels run on the CPU (tests/cuda_driver).
"""

import ml_dtypes
import numpy as np
import pytest

import engine
from engine.memory import backend
from engine.ops.conv import arrays as conv_arrays
from engine.ops.conv import cuda as kernels
from engine.ops.shared.windows import ConvWindow, channels_first, channels_last
from engine.rules.layout import contiguous_format
from tests import cuda_device

# dtype, TF32, tolerance relative to the largest element, elements of 16 bytes
KINDS = {
    "float32": (np.dtype("f"), False, 3e-6, 4),
    "tf32": (np.dtype("f"), True, 2e-3, 4),
    "float16": (np.dtype("e"), False, 1.5e-3, 8),
    "bfloat16": (np.dtype(ml_dtypes.bfloat16), False, 1e-2, 8),
    "float64": (np.dtype("d"), False, 1e-13, 2),
}
every_kind = pytest.mark.parametrize("kind", ["float32", "tf32", "bfloat16"])
both_layouts = pytest.mark.parametrize("last", [False, True], ids=["row-major", "channels-last"])


def in_layout(array, last):
    """On the device; `cupy.asarray` makes rows of channels-last memory."""
    cupy = backend.require_cupy()
    if last:
        return channels_first(cupy.asarray(np.ascontiguousarray(channels_last(array))))
    return cupy.asarray(np.ascontiguousarray(array))


def check(
    kind, shape, outputs, window, *, stride=1, padding=0, dilation=1, groups=1, last=False, more=0, weight_last=False
):
    """Runs the three kernels: an image of `shape`, a square window or one of these sizes, `more` rows of the result of
    the adjoint (output_padding).
    """
    cupy = backend.require_cupy()
    dtype, tf32, tolerance, _ = KINDS[kind]
    random = np.random.default_rng(0)
    axes = len(shape) - 2

    def every(value):
        return value if isinstance(value, tuple) else (value,) * axes

    moves = ConvWindow(every(stride), every(padding), every(dilation), groups)
    host_weight = random.standard_normal((outputs, shape[1] // groups, *every(window))).astype(dtype)
    image = random.standard_normal(shape).astype(dtype)
    bias = random.standard_normal(outputs).astype(dtype)
    out = moves.positions(shape[2:], every(window))
    slope = random.standard_normal((shape[0], outputs, *out)).astype(dtype)
    size = tuple(extent + more for extent in shape[2:])

    def empty(wanted, turned):
        return in_layout(np.full(wanted, 77, dtype), turned)

    weight = in_layout(host_weight, weight_last)
    source, gradient = (in_layout(array, last) for array in (image, slope))
    assert kernels.serves(weight.shape, dtype, moves)
    result = empty((shape[0], outputs, *out), last)
    kernels.convolve(source, weight, cupy.asarray(bias), result, moves, False, tf32)
    of_input = empty((*shape[:2], *size), last)
    kernels.convolve(gradient, weight, None, of_input, moves, True, tf32)
    of_weight = empty(host_weight.shape, weight_last)
    kernels.weight_gradient(gradient, source, of_weight, moves, tf32)

    wide = [array.astype(np.float64) for array in (image, host_weight, bias, slope)]
    expected = (
        conv_arrays.convolve(np, *wide[:3], moves, contiguous_format),
        conv_arrays.convolve_transposed(np, wide[3], wide[1], None, size, moves, contiguous_format),
        conv_arrays.weight_gradient(np, wide[3], wide[0], moves, host_weight.shape, ()),
    )
    for mine, theirs in zip((result, of_input, of_weight), expected, strict=True):
        largest = np.abs(theirs).max()
        np.testing.assert_allclose(mine.get().astype(np.float64) / largest, theirs / largest, rtol=0, atol=tolerance)


@every_kind
@both_layouts
def test_few_channels(cuda: engine.device, kind: str, last: bool):
    check(kind, (2, 3, 9, 8), 5, 3, padding=1, last=last)


@every_kind
@both_layouts
def test_several_tiles(cuda: engine.device, kind: str, last: bool):
    check(kind, (2, 2 * KINDS[kind][3], 9, 8), 40, 3, padding=1, last=last)


@every_kind
@both_layouts
def test_strides_and_dilations_with_common_factors(cuda: engine.device, kind: str, last: bool):
    channels = KINDS[kind][3]
    check(kind, (2, channels, 9, 14), 8, (3, 2), stride=(2, 4), padding=(1, 0), dilation=(2, 2), last=last, more=1)


@every_kind
@both_layouts
def test_windows_beside_each_other(cuda: engine.device, kind: str, last: bool):
    check(kind, (2, KINDS[kind][3], 8, 8), 16, 2, stride=2, last=last, weight_last=last)


@every_kind
@both_layouts
def test_groups(cuda: engine.device, kind: str, last: bool):
    channels = 4 * KINDS[kind][3]
    check(kind, (1, channels, 6, 6), channels, 3, padding=1, groups=2, last=last)


@both_layouts
def test_float16(cuda: engine.device, last: bool):
    check("float16", (2, 16, 9, 8), 40, 3, padding=1, last=last)


@every_kind
def test_one_and_three_axes(cuda: engine.device, kind: str):
    channels = KINDS[kind][3]
    check(kind, (2, channels, 15), 2 * channels, 3, stride=2, padding=2, dilation=3)
    check(kind, (2, channels, 4, 5, 6), 2 * channels, (2, 3, 2), stride=(1, 2, 1), padding=1, last=True)


@every_kind
def test_weight_gradient_in_several_parts(cuda: engine.device, kind: str):
    check(kind, (3, KINDS[kind][3], 16, 20), 8, 3, padding=1, last=True, weight_last=True)


def test_many_taps_and_unusual_strides(cuda: engine.device):
    cupy = backend.require_cupy()
    random = np.random.default_rng(2)
    wide = random.standard_normal((2, 6, 9, 20)).astype("f")
    image = cupy.asarray(wide)[:, 1:4, ::-1, ::2]
    weight = random.standard_normal((4, 3, 5, 7)).astype("f")
    moves = ConvWindow((1, 1), (2, 3), (1, 1), 1)
    out = cupy.empty((2, 4, 9, 10), "f")
    kernels.convolve(image, cupy.asarray(weight), None, out, moves, False, False)
    expected = conv_arrays.convolve(np, wide[:, 1:4, ::-1, ::2], weight, None, moves, contiguous_format)
    np.testing.assert_allclose(out.get(), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@both_layouts
def test_groups_of_few_channels(cuda: engine.device, kind: str, last: bool):
    check(kind, (2, 40, 7, 6), 40, 3, padding=1, groups=40, last=last)
    check(kind, (2, 6, 7, 6), 12, 3, stride=2, padding=1, dilation=2, groups=3, last=last)


def test_change_of_layout(cuda: engine.device):
    cupy = backend.require_cupy()
    for dtype in (np.dtype("f"), np.dtype("e"), np.dtype(ml_dtypes.bfloat16)):
        image = np.random.default_rng(0).standard_normal((3, 35, 5, 9)).astype(dtype)
        for given in (cupy.asarray(image), cupy.asarray(image[:, :, ::2].copy())[:, :, ::1]):
            changed = kernels.in_channels_last(given)
            assert changed.transpose(0, 2, 3, 1).flags.c_contiguous
            np.testing.assert_array_equal(changed.get(), given.get())
        again = kernels.in_channels_last(changed)
        assert again is changed


def test_equal_calls_give_equal_bits(cuda: engine.device):
    cupy = backend.require_cupy()
    random = np.random.default_rng(1)
    image, slope = (cupy.asarray(random.standard_normal((2, 8, 12, 12)).astype("f")) for _ in range(2))
    moves = ConvWindow((1, 1), (1, 1), (1, 1), 1)
    results = []
    for seed in range(2):
        out = cupy.empty((8, 8, 3, 3), "f")
        with cuda_device.order(seed):
            kernels.weight_gradient(slope, image, out, moves, False)
        results.append(out.get())
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize(("kind", "last"), [("float32", False), ("bfloat16", True)])
def test_accesses_are_in_bounds_and_in_order(cuda: engine.device, kind: str, last: bool):
    channels = KINDS[kind][3]
    with cuda_device.checked(seed=5):
        check(kind, (1, channels, 5, 7), 8, 3, stride=2, padding=1, last=last)
        check(kind, (1, 3, 5, 5), 3, 3, padding=1, groups=3, last=last)


def test_what_is_not_served(cuda: engine.device):
    plain = ConvWindow((1, 1), (0, 0), (1, 1), 1)
    assert not kernels.serves((4, 4, 3, 3), np.dtype("d"), plain)
    assert not kernels.serves((4, 4, 3, 3), np.dtype("l"), plain)
    assert kernels.serves((4, 1, 3, 3), np.dtype("d"), plain._replace(groups=4))
