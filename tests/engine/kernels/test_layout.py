"""Images with zeros around them, and back: from any layout and into any."""

import numpy as np
import pytest

from engine.ops.conv.kernels import layout
from tests.engine.kernels.samples import DTYPES, normal


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 1, 5, 9, 3), (1, 2, 3, 8, 24), (2, 1, 1, 4, 4), (1, 1, 6, 17, 9)])
def test_padding_and_layout_change(shape, dtype):
    image = normal(shape, dtype)
    size = (shape[1] + 1, shape[2] + 3, shape[3] + 2)
    expected = np.zeros((shape[0], *size, shape[4]), dtype)
    expected[:, 0 : shape[1], 2 : 2 + shape[2], 1 : 1 + shape[3]] = image
    planes = np.moveaxis(np.ascontiguousarray(np.moveaxis(image, -1, 1)), 1, -1)
    gaps = np.repeat(image, 2, 3)[:, :, :, ::2]
    for given in (image, planes, gaps, np.asfortranarray(image)):
        np.testing.assert_array_equal(layout.pad(given, (0, 2, 1), size), expected)
        target = np.empty_like(given)
        layout.place(image, target)
        np.testing.assert_array_equal(target, image)


def test_what_needs_nothing_is_passed_on_and_what_may_not_be_written_is_refused():
    image = normal((2, 1, 5, 9, 16), "float32")
    assert layout.pad(image, (0, 0, 0), (1, 5, 9)) is image
    written = layout.pad(image, (0, 0, 0), (1, 5, 9), np.empty_like(image))
    np.testing.assert_array_equal(written, image)
    target = np.empty_like(image)
    target.flags.writeable = False
    with pytest.raises(TypeError, match=r"layout.place: expected .*float32\[5d\] to be written.* got .*read-only"):
        layout.place(image, target)
    with pytest.raises(TypeError, match=r"layout.pad: .* got \(float64\[5d\]"):
        layout._pad["f"](image.astype("float64"), image, 0, 0, 0)
