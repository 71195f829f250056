"""Interpolation and pixel shuffling: PyTorch's numbers, second derivatives, refusals."""

import pytest

import engine
import engine.nn.functional as F
from tests.data.operators.upsampling import CASES
from tests.engine.ops.checking import check_against_pytorch, check_second_order


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", CASES)
def test_values_and_first_derivatives(name: str, dtype: str) -> None:
    check_against_pytorch("upsampling", name, CASES[name], dtype)


@pytest.mark.parametrize("name", CASES)
def test_second_derivatives(name: str) -> None:
    check_second_order(CASES[name])


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_the_size_there_is_changes_nothing(mode: str) -> None:
    x = engine.randn(2, 3, 4, 5)
    y = F.interpolate(x, size=(4, 5), mode=mode)
    assert engine.equal(x, y)
    assert y.data_ptr() != x.data_ptr()


def test_nan_stays_with_its_neighbours() -> None:
    x = engine.ones(1, 1, 1, 8)
    x[..., 0] = float("nan")
    y = F.interpolate(x, scale_factor=(1.0, 2.0), mode="bilinear")
    assert y[0, 0, 0].isnan().tolist() == [True] * 3 + [False] * 13


@pytest.mark.parametrize("dtype", [engine.float16, engine.bfloat16, engine.uint8])
def test_nearest_copies_any_dtype(dtype: engine.dtype) -> None:
    x = engine.randint(0, 100, (1, 2, 3, 3)).to(dtype)
    y = F.interpolate(x, scale_factor=2)
    assert y.dtype == dtype
    assert engine.equal(y[:, :, ::2, 1::2], x)


def test_pixel_unshuffle_undoes_pixel_shuffle() -> None:
    x = engine.randn(2, 8, 3, 5)
    assert engine.equal(F.pixel_unshuffle(F.pixel_shuffle(x, 2), 2), x)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: F.interpolate(x), ValueError, "either size or scale_factor should be defined"),
        (lambda x: F.interpolate(x, 2, 2), ValueError, "only one of size or scale_factor"),
        (lambda x: F.interpolate(x, (2, 2, 2)), ValueError, "same number of spatial dimensions"),
        (lambda x: F.interpolate(x, 2, align_corners=True), ValueError, "align_corners option can only be set"),
        (lambda x: F.interpolate(x, 2, mode="trilinear"), NotImplementedError, "trilinear mode needs 5D input"),
        (lambda x: F.interpolate(x, 2, mode="sharp"), NotImplementedError, "Only 3D, 4D and 5D input"),
        (lambda x: F.interpolate(x, 0), RuntimeError, "sizes should be greater than 0"),
        (lambda x: F.interpolate(x, 2, antialias=True), ValueError, "Anti-alias option is restricted"),
        (lambda x: F.pixel_shuffle(x, 2), RuntimeError, "divisible by the square of upscale_factor"),
        (lambda x: F.pixel_unshuffle(x, 3), RuntimeError, "height and width to be divisible"),
    ],
)
def test_refusals(call: object, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        call(engine.ones(1, 2, 4, 4))  # type: ignore[operator]
