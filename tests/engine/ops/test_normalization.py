"""Normalisation: PyTorch's numbers, second derivatives, layouts, running statistics, refusals."""

import numpy as np
import pytest

import engine
import engine.nn.functional as F
from tests.data.operators.normalization import CASES
from tests.engine.ops.checking import check_against_pytorch, check_second_order


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", CASES)
def test_values_and_first_derivatives(name: str, dtype: str) -> None:
    check_against_pytorch("normalization", name, CASES[name], dtype)


@pytest.mark.parametrize("name", CASES)
def test_second_derivatives(name: str) -> None:
    check_second_order(CASES[name])


def _leaf(*shape: int, layout: engine.memory_format = engine.contiguous_format) -> engine.Tensor:
    return engine.randn(*shape).to(memory_format=layout).requires_grad_()


@pytest.mark.parametrize("function", ["batch_norm", "group_norm"])
@pytest.mark.parametrize("layout", [engine.contiguous_format, engine.channels_last])
def test_result_and_gradient_keep_the_memory_format(function: str, layout: engine.memory_format) -> None:
    x, w, b = _leaf(2, 4, 3, 5, layout=layout), _leaf(4), _leaf(4)
    if function == "batch_norm":
        y = F.batch_norm(x, engine.zeros(4), engine.ones(4), w, b, training=True)
    else:
        y = F.group_norm(x, 2, w, b)
    assert y.is_contiguous(memory_format=layout)
    gradients = engine.autograd.grad((y * engine.randn_like(y)).sum(), (x, w, b))
    assert gradients[0].is_contiguous(memory_format=layout)
    assert [gradient.stride() for gradient in gradients[1:]] == [(1,), (1,)]


def test_running_statistics_move_in_place_and_count_as_written() -> None:
    x, mean, var = engine.randn(8, 3, dtype=engine.float64), engine.zeros(3).double(), engine.ones(3).double()
    versions, address = mean._version, mean.data_ptr()
    for _ in range(2):
        F.batch_norm(x, mean, var, training=True, momentum=0.25)
    assert mean.data_ptr() == address
    assert mean._version == versions + 2
    np.testing.assert_allclose(mean.numpy(), (1 - 0.75**2) * x.numpy().mean(0), rtol=1e-12)
    np.testing.assert_allclose(var.numpy(), 0.75**2 + (1 - 0.75**2) * x.numpy().var(0, ddof=1), rtol=1e-12)


def test_forward_twice_then_backward_of_the_first() -> None:
    """Training does not save the running statistics, so moving them again is no error; evaluation does."""
    x, mean, var = _leaf(4, 3), engine.zeros(3), engine.ones(3)
    first = F.batch_norm(x, mean, var, training=True)
    F.batch_norm(x, mean, var, training=True)
    (first * first * first).sum().backward()
    assert x.grad is not None
    evaluated = F.batch_norm(x, mean, var, _leaf(3))
    mean.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        evaluated.sum().backward()


@pytest.mark.parametrize("dtype", [engine.float16, engine.bfloat16])
@pytest.mark.parametrize("layout", [engine.contiguous_format, engine.channels_last])
def test_half_precision_takes_statistics_in_single(dtype: engine.dtype, layout: engine.memory_format) -> None:
    x = (engine.randn(4, 6, 5, 5) * 3 + 20).to(dtype).to(memory_format=layout)
    w, b = engine.rand(6), engine.randn(6)
    close = {"rtol": 2e-2, "atol": 2e-2}
    mean, var = engine.zeros(6), engine.ones(6)
    y = F.batch_norm(x, mean, var, w, b, training=True)
    assert y.dtype == dtype
    assert engine.allclose(y.float(), F.batch_norm(x.float(), None, None, w, b, training=True), **close)
    assert engine.allclose(mean, 0.1 * x.float().mean((0, 2, 3)), rtol=1e-5)
    assert engine.allclose(
        F.group_norm(x, 3, w.to(dtype), b.to(dtype)).float(), F.group_norm(x.float(), 3, w, b), **close
    )
    rows = x[..., :4].contiguous()
    for function in (F.layer_norm, F.rms_norm):
        y = function(rows, (4,), w[:4].to(dtype))
        assert y.dtype == dtype
        assert engine.allclose(y.float(), function(rows.float(), (4,), w[:4]), **close)


def test_a_large_mean_costs_no_accuracy() -> None:
    x = engine.randn(64, 2, 8, 8, dtype=engine.float64, generator=engine.Generator().manual_seed(0))
    shifted = (x + 1000).float()
    expected = F.batch_norm(shifted.double(), None, None, training=True).numpy()
    for layout in (engine.contiguous_format, engine.channels_last):
        y = F.batch_norm(shifted.to(memory_format=layout), None, None, training=True)
        np.testing.assert_allclose(y.numpy(), expected, atol=1e-4)


def test_zero_size() -> None:
    for shape in ((0, 4), (3, 0)):
        x = engine.zeros(*shape).requires_grad_()
        y = F.layer_norm(x, shape[1:], engine.ones(*shape[1:]))
        assert y.shape == shape
        y.sum().backward()
        assert x.grad is not None
    x = engine.zeros(0, 4, 3, 3).requires_grad_()
    for y in (F.batch_norm(x, engine.zeros(4), engine.ones(4)), F.group_norm(x, 2), F.rms_norm(x, (3,))):
        assert y.shape == x.shape
        assert engine.autograd.grad(y.sum(), x)[0].shape == x.shape


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: F.batch_norm(x, engine.zeros(5), engine.ones(4)), RuntimeError, "running_mean should contain 4"),
        (lambda x: F.batch_norm(x, None, None), RuntimeError, "running_var to be defined when training=False"),
        (lambda x: F.batch_norm(x[:1, :, :1, :1], None, None, training=True), ValueError, "more than 1 value per chan"),
        (lambda x: F.batch_norm(x.long(), None, None, training=True), RuntimeError, "expected a floating point"),
        (lambda x: F.layer_norm(x, (4,)), RuntimeError, r"layer_norm: Given normalized_shape=\[4\], expected input"),
        (lambda x: F.layer_norm(x, (3,), engine.ones(4)), RuntimeError, "Expected weight to be of same shape"),
        (lambda x: F.layer_norm(x, ()), RuntimeError, "at least 1-dimensional"),
        (lambda x: F.rms_norm(x, (7,)), RuntimeError, r"rms_norm: Given normalized_shape=\[7\]"),
        (lambda x: F.group_norm(x, 3), RuntimeError, "divisible by num_groups"),
        (lambda x: F.group_norm(x, 2, engine.ones(3)), RuntimeError, "Expected weight to be a vector"),
    ],
)
def test_refusals(call: object, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        call(engine.randn(2, 4, 3, 3))  # type: ignore[operator]


@pytest.mark.parametrize("shape", [(0, 3), (0, 3, 4), (0, 3, 2, 2), (0, 3, 1, 2, 2), (2, 3, 0)])
def test_a_batch_without_elements_moves_no_statistics(shape: tuple[int, ...]) -> None:
    mean, variance, weight = engine.full((3,), 2.0), engine.full((3,), 3.0), engine.ones(3, requires_grad=True)
    x = engine.zeros(shape, requires_grad=True)
    out = engine.nn.functional.batch_norm(x, mean, variance, weight, training=True)
    out.sum().backward()
    assert out.shape == x.grad.shape == shape
    assert (mean.tolist(), variance.tolist(), weight.grad.tolist()) == ([2.0] * 3, [3.0] * 3, [0.0] * 3)
