"""Pooling: PyTorch's numbers, second derivatives, NaN and ties, refusals."""

import numpy as np
import pytest

import engine
import engine.nn.functional as F
from engine.ops.pooling.max_pool import max_places, window_members
from tests.data.operators.pooling import CASES
from tests.engine.ops.checking import check_against_pytorch, check_second_order

NAN = float("nan")


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", CASES)
def test_values_and_first_derivatives(name: str, dtype: str) -> None:
    check_against_pytorch("pooling", name, CASES[name], dtype)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.twice])
def test_second_derivatives(name: str) -> None:
    check_second_order(CASES[name])


@pytest.mark.parametrize("layout", [engine.contiguous_format, engine.channels_last])
@pytest.mark.parametrize("kernel", [2, 3])
def test_a_window_with_nan_gives_its_last_nan(layout: engine.memory_format, kernel: int) -> None:
    plane = engine.arange(36, dtype=engine.float32).reshape(1, 1, 6, 6).repeat(1, 2, 1, 1)
    plane[0, 0, 0, 0] = plane[0, 0, 1, 1] = plane[0, 0, 3, 2] = NAN
    values, places = F.max_pool2d(plane.to(memory_format=layout), kernel, return_indices=True)
    assert values[0, 0].isnan().tolist() == (
        [[True, False, False], [False, True, False], [False] * 3] if kernel == 2 else [[True, False], [True, False]]
    )
    assert places[0, 0, 0, 0] == 7
    assert not values[0, 1].isnan().any()


@pytest.mark.parametrize("layout", [engine.contiguous_format, engine.channels_last])
def test_nan_and_infinity_stay_in_their_windows(layout: engine.memory_format) -> None:
    x = engine.ones(1, 2, 5, 5)
    x[0, 0, 0, 0], x[0, 1, 4, 4] = NAN, float("inf")
    y = F.adaptive_avg_pool2d(x.to(memory_format=layout), 3)
    assert y.isnan().sum() == 1
    assert y.isinf().sum() == 1
    assert (y[~(y.isnan() | y.isinf())] == 1).all()


@pytest.mark.parametrize("dtype", [engine.int64, engine.int32, engine.float16, engine.bfloat16])
@pytest.mark.parametrize("layout", [engine.contiguous_format, engine.channels_last])
def test_other_dtypes(dtype: engine.dtype, layout: engine.memory_format) -> None:
    x = engine.randint(-9, 9, (2, 3, 6, 5)).to(dtype).to(memory_format=layout)
    values, places = F.max_pool2d(x, 3, 2, 1, return_indices=True)
    expected, expected_places = F.max_pool2d(x.double(), 3, 2, 1, return_indices=True)
    assert values.dtype == dtype
    assert engine.equal(values.double(), expected)
    assert engine.equal(places, expected_places)


def test_compiled_maxima_are_those_of_the_array_formulation() -> None:
    rng = np.random.RandomState(0)
    for size, kernel, stride, padding, dilation in (
        ((7, 9), (2, 2), (2, 2), (0, 0), (1, 1)),
        ((7, 9), (3, 2), (1, 3), (1, 1), (2, 1)),
        ((4, 4), (2, 2), (2, 2), (0, 0), (1, 1)),
        ((6, 5), (1, 3), (2, 1), (0, 1), (1, 2)),
    ):
        x = rng.randint(0, 4, (2, 3, *size)).astype(np.float32)  # ties
        x.flat[::17] = np.nan
        values, places = F.max_pool2d(engine.from_numpy(x), kernel, stride, padding, dilation, return_indices=True)
        members = tuple(map(window_members, size, values.shape[2:], kernel, stride, padding, dilation))
        expected = [array.transpose(0, 3, 1, 2) for array in max_places(np, x.transpose(0, 2, 3, 1), members)]
        np.testing.assert_array_equal(values.numpy(), expected[0])
        np.testing.assert_array_equal(places.numpy(), expected[1])


def test_max_unpool_undoes_max_pool() -> None:
    x = engine.randn(2, 3, 4, 6)
    values, places = F.max_pool2d(x, 2, return_indices=True)
    back = F.max_unpool2d(values, places, 2)
    assert engine.equal(back, engine.where(back != 0, x, 0))
    assert (back != 0).sum() == values.numel()


def test_an_empty_batch_is_pooled_to_an_empty_batch() -> None:
    x = engine.zeros(0, 3, 6, 6).requires_grad_()
    for y in (F.max_pool2d(x, 2), F.avg_pool2d(x, 2), F.adaptive_avg_pool2d(x, 3), F.adaptive_max_pool2d(x, 2)):
        assert y.shape[0] == 0
        assert engine.autograd.grad(y.sum(), x)[0].shape == x.shape


@pytest.mark.parametrize(
    ("function", "shape", "arguments", "error", "message"),
    [
        ("max_pool2d", (2, 3, 8), (0,), RuntimeError, "max_pool2d: kernel size should be greater than zero"),
        ("max_pool2d", (8, 8), (2,), RuntimeError, r"max_pool2d: Expected 3D \(unbatched\) or 4D"),
        ("max_pool2d", (1, 3, 8, 8), (2, 2, 2), RuntimeError, "at most half of effective kernel size"),
        ("max_pool2d", (1, 3, 2, 2), (3,), RuntimeError, "Output size is too small"),
        ("max_pool2d", (1, 3, 8, 8), ((2, 2, 2),), RuntimeError, "kernel_size must be a single int or a sequence of 2"),
        ("max_pool2d", (1, 0, 8, 8), (2,), RuntimeError, "non-zero sizes but for the batch"),
        ("avg_pool2d", (1, 3, 8, 8), (2, None, 0, False, True, 0), RuntimeError, "divisor must be not zero"),
        ("avg_pool2d", (1, 3, 8, 8), ("2",), TypeError, "kernel_size must be an int"),
        ("adaptive_avg_pool2d", (1, 3, 8, 8), ((2, 2, 2),), RuntimeError, "output_size must have 2 elements"),
        ("adaptive_avg_pool2d", (1, 3, 8, 8), (-1,), RuntimeError, "greater than or equal to 0"),
    ],
)
def test_refusals(function: str, shape: tuple[int, ...], arguments: tuple, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        getattr(F, function)(engine.zeros(*shape), *arguments)


def test_means_of_integers_are_cut_off() -> None:
    x = (engine.arange(16) - 8).reshape(1, 1, 4, 4)
    assert F.avg_pool2d(x, 3, 2, 1, ceil_mode=True).tolist() == [[[[-2, -2, -1], [0, 2, 1], [1, 3, 1]]]]
    assert F.avg_pool2d(x, 3, 2, 1, count_include_pad=False).tolist() == [[[[-5, -4], [0, 2]]]]
    assert F.avg_pool2d(x, 3, 2, 1, divisor_override=4).tolist() == [[[[-5, -6], [0, 4]]]]
    assert F.avg_pool1d(x[0], 3, 3).tolist() == [[[-7], [-3], [1], [5]]]


@pytest.mark.parametrize(("function", "dtype"), [("avg_pool2d", engine.int32), ("adaptive_avg_pool2d", engine.int64)])
def test_other_integers_have_no_mean(function: str, dtype: engine.dtype) -> None:
    with pytest.raises(NotImplementedError, match=function):
        getattr(F, function)(engine.ones(1, 1, 4, 4, dtype=dtype), 2)
