"""Padding, unfold and fold: PyTorch's numbers, second derivatives, refusals."""

import pytest

import engine
import engine.nn.functional as F
from tests.data.operators.padding import CASES
from tests.engine.ops.checking import check_against_pytorch, check_second_order


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", CASES)
def test_values_and_first_derivatives(name: str, dtype: str) -> None:
    check_against_pytorch("padding", name, CASES[name], dtype)


@pytest.mark.parametrize("name", CASES)
def test_second_derivatives(name: str) -> None:
    check_second_order(CASES[name])


def test_dtypes_that_are_not_floating_point() -> None:
    for dtype in (engine.int64, engine.bool, engine.uint8):
        x = engine.ones(1, 1, 2, 2).to(dtype)
        assert F.pad(x, (1, 0)).tolist() == F.pad(x.float(), (1, 0)).to(dtype).tolist()
        assert F.pad(x, (1, 0, 0, 0), "circular").dtype == dtype


def test_negative_padding_crops_to_nothing() -> None:
    x = engine.arange(6.0).reshape(2, 3).requires_grad_()
    y = F.pad(x, (-3, 0))
    assert y.shape == (2, 0)
    y.sum().backward()
    assert x.grad is not None
    assert not x.grad.any()


def test_fold_of_unfold_counts_the_windows_of_each_pixel() -> None:
    x = engine.ones(1, 1, 4, 4)
    assert F.fold(F.unfold(x, 2), (4, 4), 2)[0, 0].tolist() == [[1, 2, 2, 1], [2, 4, 4, 2], [2, 4, 4, 2], [1, 2, 2, 1]]


def test_an_empty_batch() -> None:
    x = engine.zeros(0, 2, 4, 4).requires_grad_()
    columns = F.unfold(x, 3)
    assert columns.shape == (0, 18, 4)
    for y in (F.fold(columns, (4, 4), 3), F.pad(x, (1, 1)), F.pad(x, (1, 1, 1, 1), "reflect")):
        assert y.shape[:2] == (0, 2)
        assert engine.autograd.grad(y.sum(), x, retain_graph=True)[0].shape == x.shape


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: F.pad(x, (1,)), RuntimeError, "Padding length must be divisible by 2"),
        (lambda x: F.pad(x, (1,) * 10), RuntimeError, "less than or equal to two times the input dimension"),
        (lambda x: F.pad(x, (-3, -3)), RuntimeError, "resulted in a negative output size"),
        (lambda x: F.pad(x, (4, 0, 0, 0), "reflect"), RuntimeError, "Padding size should be less than"),
        (lambda x: F.pad(x, (5, 0, 0, 0), "circular"), RuntimeError, "wrapping around more than once"),
        (lambda x: F.pad(x, (1, 1), "mirror"), NotImplementedError, "Unrecognised padding mode mirror"),
        (lambda x: F.pad(x, (1, 1), "reflect"), NotImplementedError, "Only 2D, 3D, 4D, 5D padding"),
        (lambda x: F.pad(x, (1, 1, 1, 1), "reflect", 2.0), ValueError, "doesn't take in value argument"),
        (lambda x: F.unfold(x, 5), RuntimeError, "unfold: Given spatial size"),
        (lambda x: F.unfold(x, 0), RuntimeError, "unfold: kernel_size should be greater than zero"),
        (lambda x: F.fold(x[0], (4, 4), 3), RuntimeError, "divisible by the product of kernel_size"),
        (lambda x: F.fold(x.reshape(4, 6), (4, 4), 2), RuntimeError, "number of sliding blocks"),
    ],
)
def test_refusals(call: object, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        call(engine.ones(1, 2, 3, 4))  # type: ignore[operator]
