"""Linear algebra and einsum: PyTorch's values, layouts and derivatives; second derivatives; factors; errors."""

from collections.abc import Callable

import numpy as np
import pytest

import engine
from engine import linalg
from tests.data.operators.linalg import BATCH, CASES, POSITIVE, TALL, WIDE
from tests.engine.ops.checking import check_against_pytorch, check_second_order


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", CASES)
def test_values_and_first_derivatives(name: str, dtype: str) -> None:
    check_against_pytorch("linalg", name, CASES[name], dtype)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.twice])
def test_second_derivatives(name: str) -> None:
    check_second_order(CASES[name], tolerance=1e-4)


@pytest.mark.parametrize("matrix", [TALL, WIDE, BATCH], ids=["tall", "wide", "square"])
@pytest.mark.parametrize("full", [False, True])
def test_factors_multiply_to_the_matrix(matrix: np.ndarray, full: bool) -> None:
    a = engine.from_numpy(matrix)
    q, r = linalg.qr(a, "complete" if full else "reduced")
    np.testing.assert_allclose((q @ r).numpy(), matrix, atol=1e-12)
    u, s, vh = linalg.svd(a, full_matrices=full)
    size = s.shape[-1]
    np.testing.assert_allclose((u[..., :size] * s.unsqueeze(-2) @ vh[..., :size, :]).numpy(), matrix, atol=1e-12)
    assert linalg.qr(a, "r").Q.shape == (0,)


def test_eigenvectors_and_cholesky() -> None:
    a = engine.from_numpy(POSITIVE)
    values, vectors = linalg.eigh(a)
    np.testing.assert_allclose((vectors * values.unsqueeze(-2) @ vectors.mT).numpy(), POSITIVE, atol=1e-12)
    lower = linalg.cholesky(a)
    np.testing.assert_allclose((lower @ lower.mT).numpy(), POSITIVE, atol=1e-12)


def test_einsum_of_many_operands_agrees_with_numpy() -> None:
    arrays = [
        np.random.RandomState(i).standard_normal(shape) for i, shape in enumerate([(2, 3), (3, 4, 2), (4,), (2, 5)])
    ]
    result = engine.einsum("ab,bca,c,ad->dba", *map(engine.from_numpy, arrays))
    np.testing.assert_allclose(result.numpy(), np.einsum("ab,bca,c,ad->dba", *arrays), rtol=1e-12)


A = engine.zeros(2, 3)
EYE = engine.eye(2)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: linalg.inv(engine.zeros(2, 2)), linalg.LinAlgError, "linalg.inv: .*singular"),
        (lambda: linalg.solve(engine.zeros(2, 2), EYE), linalg.LinAlgError, "linalg.solve: .*singular"),
        (lambda: linalg.cholesky(-EYE), linalg.LinAlgError, "linalg.cholesky: .*not positive-definite"),
        (lambda: linalg.inv(A), RuntimeError, "must be batches of square matrices, but they are 2 by 3"),
        (lambda: linalg.eigh(A), RuntimeError, "must be batches of square matrices"),
        (lambda: linalg.det(engine.zeros(3)), RuntimeError, "at least 2 dimensions"),
        (lambda: linalg.inv(EYE.long()), RuntimeError, "expected a floating point"),
        (lambda: linalg.solve(EYE, engine.zeros(3, 1)), RuntimeError, r"Incompatible shapes of A and B .*2x2 and 3x1"),
        (lambda: linalg.solve(EYE, EYE.double()), RuntimeError, "same dtype"),
        (lambda: linalg.qr(EYE, "x"), RuntimeError, "unrecognized mode 'x'"),
        (lambda: linalg.matrix_norm(EYE, "x"), RuntimeError, "Order x not supported"),
        (lambda: linalg.cross(EYE, EYE), RuntimeError, "must have length 3. Got 2 and 2"),
        (lambda: linalg.multi_dot([EYE]), RuntimeError, "at least 2 tensors but got 1"),
        (lambda: EYE.unsqueeze(0).trace(), RuntimeError, "trace: expected a matrix"),
        (lambda: engine.einsum("ij->k", A), RuntimeError, "output subscript k does not appear"),
        (lambda: engine.einsum("ijk->i", A), RuntimeError, r"number of subscripts in the equation \(3\)"),
        (lambda: engine.einsum("ij,jk", A), RuntimeError, "fewer operands were provided"),
        (lambda: engine.einsum("ij", A, A), RuntimeError, "more operands were provided"),
        (
            lambda: engine.einsum("ij,jk", A, A),
            RuntimeError,
            "subscript j has size 2 for operand 1 which does not broadcast",
        ),
        (lambda: engine.einsum("i!->i", A), RuntimeError, "invalid subscript"),
        (lambda: engine.tensordot(A, A, 1), RuntimeError, "contracted dimensions need to match, but first has size 3"),
        (lambda: engine.inner(A, EYE), RuntimeError, "the last dimension must match"),
        (lambda: engine.cdist(A, EYE), RuntimeError, "same number of columns"),
        (lambda: linalg.vector_norm(engine.zeros(0), float("inf")), RuntimeError, "does not have an identity"),
    ],
)
def test_errors(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_derivatives_that_are_not_defined_are_refused() -> None:
    a = engine.from_numpy(TALL).requires_grad_()
    with pytest.raises(RuntimeError, match="mode='complete' and nrows > ncols"):
        linalg.qr(a, "complete")[0].sum().backward()
    with pytest.raises(RuntimeError, match="mode='r'"):
        linalg.qr(a, "r")[1].sum().backward()


@pytest.mark.parametrize(
    ("shape", "product"),
    [
        ((6, 4), lambda weight: engine.ones(5, 4) @ weight.T),
        ((6, 4), lambda weight: engine.ones(3, 5, 4) @ weight.T),
        ((6, 4), lambda weight: engine.addmm(engine.zeros(6), engine.ones(5, 4), weight.T)),
        ((4, 6), lambda weight: weight.T @ engine.ones(4, 5)),
    ],
)
def test_the_gradient_of_a_transposed_matrix_comes_in_the_order_of_the_matrix(
    shape: tuple[int, int], product: Callable[[engine.Tensor], engine.Tensor]
) -> None:
    weight = engine.rand(*shape, requires_grad=True)
    strides = []
    weight.register_hook(lambda gradient: strides.append(gradient.stride()))
    product(weight).square().sum().backward()
    assert strides == [weight.stride()]


COMPLEX = np.array([[4, 1 + 1j], [1 - 1j, 3]])


@pytest.mark.parametrize("matrix", [COMPLEX.real, COMPLEX], ids=["real", "complex"])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: linalg.eigh(x)[1].abs(),
        lambda x: linalg.eigh(x, UPLO="U")[1].abs(),
        lambda x: linalg.eigh(x)[0],
        lambda x: linalg.cholesky(x).abs(),
        lambda x: linalg.cholesky(x, upper=True).abs(),
    ],
    ids=["eigenvectors", "upper eigenvectors", "eigenvalues", "cholesky", "upper cholesky"],
)
def test_the_gradient_of_a_symmetric_matrix_is_symmetric(function: Callable, matrix: np.ndarray) -> None:
    """A leaf that is symmetric stays so in training."""
    x = engine.from_numpy(matrix.copy()).requires_grad_()
    values = function(x)
    (values * engine.arange(float(values.numel())).double().reshape(values.shape)).sum().backward()
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), x.grad.numpy().conj().T, atol=1e-12)
    assert np.abs(x.grad.numpy()[0, 1]) > 0


@pytest.mark.parametrize("upper", [False, True])
def test_the_gradient_of_a_factor_is_not_masked(upper: bool) -> None:
    """PyTorch 2.13's numbers."""
    factor = engine.tensor([[2.0, 0.0], [1.0, 3.0]])
    factor = (factor.T if upper else factor).clone().requires_grad_()
    engine.cholesky_solve(engine.ones(2, 1), factor, upper=upper).sum().backward()
    assert factor.grad is not None
    expected = np.array([[-2 / 9, -2 / 27], [-1 / 18, -1 / 54]])
    np.testing.assert_allclose(factor.grad.numpy(), expected.T if upper else expected, rtol=1e-6)
    factor.grad = None
    engine.cholesky_inverse(factor, upper=upper).sum().backward()
    np.testing.assert_allclose(factor.grad.numpy(), expected.T if upper else expected, rtol=1e-6)


def test_the_upper_factor_comes_from_the_upper_triangle() -> None:
    a = engine.tensor([[4.0, 2.0], [99.0, 10.0]])
    assert linalg.cholesky(a, upper=True).tolist() == [[2.0, 1.0], [0.0, 3.0]]


def test_losses_that_turn_with_the_phase_are_refused() -> None:
    x = engine.from_numpy(COMPLEX.copy()).requires_grad_()
    with pytest.raises(RuntimeError, match="phi"):
        linalg.eigh(x)[1].sum().abs().backward()


@pytest.mark.parametrize("shape", [(3, 5), (5, 3)])
def test_the_gradient_of_a_full_svd_ignores_what_completes_the_bases(shape: tuple[int, int]) -> None:
    values = np.random.RandomState(2).standard_normal(shape)
    gradients = []
    for full in (True, False):
        a = engine.from_numpy(values.copy()).requires_grad_()
        u, s, vh = linalg.svd(a, full_matrices=full)
        loss = u[:, :3].abs().sum() + s.sum() + vh[:3].abs().square().cumsum(0).sum()
        loss.backward()
        gradients.append(a.grad.numpy())
    np.testing.assert_allclose(*gradients, rtol=1e-10)
    a = engine.from_numpy(values.copy()).requires_grad_()
    u, _, vh = linalg.svd(a)
    (u[:, 3:].sum() + vh[3:].sum()).backward()
    assert a.grad.abs().max() == 0


@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (2, 2, 4), (0, 3, 5)])
@pytest.mark.parametrize("complex_numbers", [False, True])
def test_lu_of_matrices_that_are_not_square_has_derivatives(shape: tuple[int, ...], complex_numbers: bool) -> None:
    random = np.random.RandomState(3)
    values = random.standard_normal(shape)
    if complex_numbers:
        values = values + 1j * random.standard_normal(shape)
    a = engine.from_numpy(values).requires_grad_()
    assert engine.autograd.gradcheck(lambda a: linalg.lu_factor(a)[0], (a,))
    assert engine.autograd.gradgradcheck(lambda a: linalg.lu_factor(a)[0], (a,))


def test_complex_pivots_are_chosen_as_lapack_does() -> None:
    # |3 + 3i| is smaller than |5|, the sum of the parts is larger
    a = engine.tensor([[5.0, 1.0], [3.0 + 3.0j, 2.0]], dtype=engine.complex128)
    assert linalg.lu_factor(a)[1].tolist() == [2, 2]
