"""The strides of results that do not simply follow their input. The numbers are PyTorch 2.13's."""

from collections.abc import Callable

import pytest

import engine
from engine import fft, linalg

X = engine.arange(60.0).reshape(3, 4, 5)
GAPS = engine.arange(24.0).reshape(3, 8)[:, ::2]
TURNED = engine.arange(12.0).reshape(4, 3).t()
IMAGE = engine.arange(32.0).reshape(1, 2, 4, 4).contiguous(memory_format=engine.channels_last)


def unpooled(image: engine.Tensor) -> engine.Tensor:
    """Maxima back where they were."""
    values, places = engine.nn.functional.max_pool2d(image, 2, return_indices=True)
    return engine.nn.functional.max_unpool2d(values, places, 2)


STRIDES: dict[str, tuple[Callable[[], engine.Tensor], tuple[int, ...]]] = {
    "fft2 over the ends": (lambda: fft.fft2(X, dim=(0, -1)), (5, 15, 1)),
    "fft2 over the first axes": (lambda: fft.fft2(X, dim=(1, 0)), (4, 1, 12)),
    "fft2 of turned axes": (lambda: fft.fft2(X.transpose(0, 2)), (12, 1, 4)),
    "ifft2 over the ends": (lambda: fft.ifft2(X, dim=(0, -1)), (5, 15, 1)),
    "rfft2 over the ends": (lambda: fft.rfft2(X, dim=(0, -1)), (3, 9, 1)),
    "rfft2 in another order": (lambda: fft.rfft2(X, dim=(2, 1)), (15, 1, 3)),
    "irfft2 over the ends": (lambda: fft.irfft2(X, dim=(0, -1)), (8, 24, 1)),
    "irfft2 over the first axes": (lambda: fft.irfft2(X, dim=(0, 1)), (6, 1, 18)),
    "fftn": (lambda: fft.fftn(X.transpose(0, 2)), (1, 5, 20)),
    "select_scatter into gaps": (lambda: engine.select_scatter(GAPS, GAPS[0], 0, 1), (8, 2)),
    "slice_scatter into gaps": (lambda: engine.slice_scatter(GAPS, GAPS[:1], 0, 0, 1), (8, 2)),
    "diagonal_scatter into gaps": (lambda: engine.diagonal_scatter(GAPS, GAPS[0, :3]), (8, 2)),
    "as_strided_scatter into gaps": (lambda: engine.as_strided_scatter(GAPS, GAPS[0, :2], (2,), (2,)), (8, 2)),
    "index_copy": (lambda: TURNED.index_copy(0, engine.tensor([0]), TURNED[1:2]), (4, 1)),
    "masked_scatter": (lambda: TURNED.masked_scatter(TURNED > 3, TURNED), (4, 1)),
    "put": (lambda: TURNED.put(engine.tensor([0]), TURNED[0, :1]), (1, 3)),
    "max_unpool2d of channels-last": (lambda: unpooled(IMAGE), (32, 1, 8, 2)),
    "unravel_index": (lambda: engine.unravel_index(engine.tensor([[3, 5], [1, 2]]), (2, 4))[0], (4, 2)),
    "the permutation of lu": (lambda: linalg.lu(X[:, :3, :3] + engine.eye(3) * 99)[0], (9, 3, 1)),
}


@pytest.mark.parametrize("name", STRIDES)
def test_strides(name: str) -> None:
    call, expected = STRIDES[name]
    assert call().stride() == expected


def test_what_is_written_into_gaps_is_right_and_differentiable() -> None:
    x, source = GAPS.clone().requires_grad_(), engine.zeros(4, requires_grad=True)
    written = engine.select_scatter((x * 1).as_strided((3, 2), (4, 2)), source[:2], 0, 1)
    assert written.tolist() == [[0.0, 4.0], [0.0, 0.0], [16.0, 20.0]]
    written.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[1.0, 0.0, 1.0, 0.0], [0.0] * 4, [1.0, 0.0, 1.0, 0.0]]


def test_the_permutation_of_lu_is_one() -> None:
    a = engine.tensor([[0.0, 1.0, 2.0], [3.0, 1.0, 0.0], [6.0, 5.0, 4.0]])
    p, lower, upper = linalg.lu(a)
    assert engine.allclose(p @ lower @ upper, a, atol=1e-6)
