"""jacobian, hessian, vjp, jvp, vhp, hvp."""

import pytest

import engine
from engine.autograd import gradcheck
from engine.autograd.functional import hessian, hvp, jacobian, jvp, vhp, vjp

A = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]


def tensor(data, **options):
    return engine.tensor(data, dtype=engine.float64, **options)


def linear_and_square(x, y):
    return tensor(A) @ x + y.sum(), x * x


def cubes(x, y):
    return (x**3).sum() + (x * y).sum() * 2


X, Y = [1.0, -2.0], [3.0, 0.5]


def test_jacobian():
    assert jacobian(lambda x: tensor(A) @ x, tensor(X)).tolist() == A
    (by_x, by_y), (squares, nothing) = jacobian(linear_and_square, (tensor(X), tensor(Y)))
    assert by_x.tolist() == A
    assert by_y.tolist() == [[1.0, 1.0]] * 3
    assert squares.tolist() == [[2.0, 0.0], [0.0, -4.0]]
    assert nothing.tolist() == [[0.0, 0.0]] * 2
    assert not by_x.requires_grad


def test_jacobian_shapes():
    x = engine.ones(2, 3)
    assert jacobian(lambda x: x.sum(0), x).shape == (3, 2, 3)
    assert jacobian(lambda x: x.sum(), x).shape == (2, 3)
    assert jacobian(lambda x: x[:0], x).shape == (0, 3, 2, 3)
    assert isinstance(jacobian(lambda x: x.sum(), (x,)), tuple)


def test_jacobian_is_the_same_with_vectorize():
    x = tensor(X)
    assert jacobian(lambda x: x.exp(), x, vectorize=True).tolist() == jacobian(lambda x: x.exp(), x).tolist()
    with pytest.raises(RuntimeError, match="not supported together"):
        jacobian(lambda x: x, x, vectorize=True, strict=True)
    with pytest.raises(NotImplementedError, match="forward-mode"):
        jacobian(lambda x: x, x, strategy="forward-mode")


def test_hessian():
    assert hessian(lambda x: (x**3).sum(), tensor(X)).tolist() == [[6.0, 0.0], [0.0, -12.0]]
    (xx, xy), (yx, yy) = hessian(cubes, (tensor(X), tensor(Y)))
    assert xx.tolist() == [[6.0, 0.0], [0.0, -12.0]]
    assert xy.tolist() == yx.tolist() == [[2.0, 0.0], [0.0, 2.0]]
    assert yy.tolist() == [[0.0, 0.0]] * 2
    with pytest.raises(RuntimeError, match=r"single Tensor with a single element, got shape \[2\]"):
        hessian(lambda x: x, tensor(X))


def test_vjp_and_jvp():
    outputs, product = vjp(lambda x: tensor(A) @ x, tensor(X), tensor([1.0, 0.0, 2.0]))
    assert outputs.tolist() == [-3.0, -5.0, -7.0]
    assert product.tolist() == [11.0, 14.0]
    outputs, product = jvp(lambda x: tensor(A) @ x, tensor(X), tensor([1.0, 10.0]))
    assert outputs.tolist() == [-3.0, -5.0, -7.0]
    assert product.tolist() == [21.0, 43.0, 65.0]
    _, product = vjp(lambda x: (x * x).sum(), tensor(X))
    assert product.tolist() == [2.0, -4.0]
    _, product = jvp(lambda x: x * engine.ones(3, dtype=engine.float64), tensor(2.0))
    assert product.tolist() == [1.0] * 3
    _, (by_x, by_y) = vjp(linear_and_square, (tensor(X), tensor(Y)), (tensor([1.0, 1.0, 1.0]), tensor([0.0, 1.0])))
    assert by_x.tolist() == [9.0, 8.0]
    assert by_y.tolist() == [3.0, 3.0]


def test_vhp_and_hvp():
    v = (tensor([1.0, 2.0]), tensor([3.0, 4.0]))
    for product in (vhp, hvp):
        output, (by_x, by_y) = product(cubes, (tensor(X), tensor(Y)), v)
        assert output.item() == -7.0 + 2 * (3.0 - 1.0)
        assert by_x.tolist() == [12.0, -16.0]
        assert by_y.tolist() == [2.0, 4.0]


def test_create_graph_makes_results_differentiable():
    x = tensor(X, requires_grad=True)
    assert jacobian(lambda x: x**3, x, create_graph=True).requires_grad
    assert gradcheck(lambda x: jacobian(lambda x: x**3, x, create_graph=True), x)
    assert gradcheck(lambda x: hessian(lambda x: (x**4).sum(), x, create_graph=True), x)
    v = tensor([1.0, 2.0], requires_grad=True)
    for product in (vjp, jvp):
        assert gradcheck(lambda x, v: product(lambda x: x**3, x, v, create_graph=True), (x, v))  # noqa: B023
    for product in (vhp, hvp):
        assert gradcheck(lambda x, v: product(lambda x: (x**4).sum(), x, v, create_graph=True), (x, v))  # noqa: B023


def test_nothing_is_accumulated_and_results_are_detached():
    x = tensor(X, requires_grad=True)
    for result in (
        jacobian(lambda x: x * x, x),
        hessian(lambda x: (x**3).sum(), x),
        *vjp(lambda x: x * x, x, tensor(X)),
    ):
        assert not result.requires_grad
    assert x.grad is None


def test_strict_mode_refuses_independence():
    x = tensor(X)
    for call in (
        lambda: jacobian(lambda x: engine.ones(2), x, strict=True),
        lambda: vjp(lambda x: engine.ones(2), x, engine.ones(2), strict=True),
        lambda: jvp(lambda x: engine.ones(2), x, tensor(X), strict=True),
        lambda: jacobian(lambda x, y: x * 2, (x, x), strict=True),
        lambda: hessian(lambda x: x.sum(), x, strict=True),
        lambda: vhp(lambda x: x.sum(), x, x, strict=True),
        lambda: hvp(lambda x: x.sum(), x, x, strict=True),
    ):
        with pytest.raises(RuntimeError, match="independent"):
            call()
    assert hessian(lambda x: x.sum(), x).tolist() == [[0.0, 0.0]] * 2
    assert jacobian(lambda x: engine.ones(2), x).tolist() == [[0.0, 0.0]] * 2


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: vjp(lambda x: x, x), RuntimeError, "The vector v can only be None"),
        (
            lambda x: vjp(lambda x: x, x, tensor([1.0])),
            RuntimeError,
            r"Entry 0 of v has invalid size: should be \[2\] but got \[1\]",
        ),
        (lambda x: jvp(lambda x: x, x, (x, x)), RuntimeError, "v is a tuple of invalid length: should be 1 but got 2"),
        (lambda x: jacobian(lambda x: x, [1.0]), TypeError, "must be a Tensor or a tuple of Tensors but got list"),
        (lambda x: jacobian(lambda x: (x, 2), x), TypeError, "index 1 of the outputs .* must be a Tensor but got int"),
    ],
    ids=["none", "size", "length", "input", "output"],
)
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call(tensor(X))
