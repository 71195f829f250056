"""NumPy's scalars, arrays and functions beside Tensors; the answers are those of PyTorch 2.13 with NumPy 2."""

import enum
import operator

import numpy as np
import pytest

import engine

T = engine.tensor([1.0, 4.0, 9.0])
M = engine.arange(6.0).reshape(2, 3)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        pytest.param(lambda t: np.float64(3) * t, [3.0, 12.0, 27.0], id="np.float64(3) * t"),
        pytest.param(lambda t: np.sqrt(64) * t, [8.0, 32.0, 72.0], id="np.sqrt(64) * t"),
        pytest.param(lambda t: np.float32(2) + t, [3.0, 6.0, 11.0], id="np.float32(2) + t"),
        pytest.param(lambda t: np.float64(3) - t, [2.0, -1.0, -6.0], id="np.float64(3) - t"),
        pytest.param(lambda t: np.int64(36) / t, [36.0, 9.0, 4.0], id="np.int64(36) / t"),
        pytest.param(lambda t: np.float64(2) ** t, [2.0, 16.0, 512.0], id="np.float64(2) ** t"),
        pytest.param(lambda t: np.int64(3) * t, [3.0, 12.0, 27.0], id="np.int64(3) * t"),
        pytest.param(lambda t: np.array(2.0) * t, [2.0, 8.0, 18.0], id="np.array(2.0) * t"),
        pytest.param(lambda t: t * np.float64(2), [2.0, 8.0, 18.0], id="t * np.float64(2)"),
    ],
)
def test_a_numpy_scalar_on_either_side_is_a_number(call, expected):
    t = T.clone().requires_grad_()
    result = call(t)
    assert type(result) is engine.Tensor
    assert result.dtype is engine.float32
    assert result.tolist() == expected
    result.sum().backward()
    assert t.grad.shape == t.shape


@pytest.mark.parametrize("compare", [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge])
def test_a_numpy_scalar_is_compared_with_every_element(compare):
    result = compare(np.float64(4), T)
    assert result.dtype is engine.bool
    assert result.tolist() == [compare(4.0, x) for x in T.tolist()]


@pytest.mark.parametrize(
    "compute", [operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod]
)
@pytest.mark.parametrize("kind", ["float32", "float64", "int64"])
def test_an_array_on_either_side_gives_the_tensor_of_what_numpy_computes(compute, kind):
    array = np.array([2, 3, 4], dtype=kind)
    for result, expected in [
        (compute(T, array), compute(T.numpy(), array)),
        (compute(array, T), compute(array, T.numpy())),
    ]:
        assert type(result) is engine.Tensor
        np.testing.assert_array_equal(result.numpy(), expected, strict=True)


def test_matrix_products_with_arrays():
    weights = np.arange(12.0, dtype=np.float32).reshape(3, 4)
    for result, expected in [
        (M @ weights, M.numpy() @ weights),
        (weights.T @ M.t(), weights.T @ M.t().numpy()),
        (np.matmul(M, T), M.numpy() @ T.numpy()),
    ]:
        assert type(result) is engine.Tensor
        np.testing.assert_array_equal(result.numpy(), expected, strict=True)


@pytest.mark.parametrize("function", [np.exp, np.sqrt, np.negative, np.sign])
def test_a_numpy_function_of_a_tensor_is_a_tensor(function):
    result = function(T)
    assert type(result) is engine.Tensor
    np.testing.assert_array_equal(result.numpy(), function(T.numpy()), strict=True)
    assert type(function(engine.tensor(4.0))) is engine.Tensor


def test_masks_that_numpy_makes_are_uint8():
    result = np.isnan(engine.tensor([1.0, float("nan")]))
    assert result.dtype is engine.uint8
    assert result.tolist() == [0, 1]


@pytest.mark.parametrize("compute", [operator.mul, operator.matmul])
def test_numpy_computes_with_nothing_that_has_a_history(compute):
    t, array = T.clone().requires_grad_(), np.ones(3)
    for operands in [(t, array), (array, t)]:
        with pytest.raises(RuntimeError, match=r"tensor\.detach\(\)\.numpy\(\)"):
            compute(*operands)
    with pytest.raises(RuntimeError, match=r"tensor\.detach\(\)\.numpy\(\)"):
        np.exp(t)


class Scaling:
    def __rmatmul__(self, other):
        return ("asked", other)

    def __rmul__(self, other):
        return ("asked", other)


def test_an_operand_that_is_no_tensor_is_asked_for_its_reflected_operator():
    assert (T @ Scaling())[1] is T
    assert (T * Scaling())[1] is T
    with pytest.raises(TypeError, match="unsupported operand type"):
        T @ "text"


class Number(enum.IntEnum):
    THREE = 3


def test_a_subclass_of_a_python_number_counts_as_that():
    for result in (T * Number.THREE, T + Number.THREE, Number.THREE - T):
        assert result.dtype is T.dtype
        assert result.numpy().dtype == T.numpy().dtype
    assert (T * Number.THREE).tolist() == (T * 3).tolist()
