"""Small functions: histogram, frexp, gradient, scatter_reduce and others; linear algebra composed of operators."""

import math
from collections.abc import Callable

import numpy as np
import pytest

import engine
from engine import linalg, special

M = engine.from_numpy(np.random.RandomState(1).standard_normal((2, 4, 4)))


def test_histogram_frexp_and_rounding() -> None:
    x = engine.tensor([1.0, 2.0, 2.5, 4.0])
    counts, edges = engine.histogram(x, 3)
    assert counts.tolist() == np.histogram(x.numpy(), 3)[0].tolist()
    np.testing.assert_allclose(edges.numpy(), np.histogram(x.numpy(), 3)[1], rtol=1e-6)
    assert engine.histogram(x, engine.tensor([0.0, 2.0, 5.0])).hist.tolist() == [1, 3]
    mantissa, exponent = engine.frexp(engine.tensor([8.0, -0.3, 0.0]))
    assert (mantissa * 2.0**exponent).tolist() == engine.tensor([8.0, -0.3, 0.0]).tolist()
    assert exponent.dtype is engine.int32
    assert engine.round(engine.tensor([1.256, -123.4]), decimals=1).tolist() == engine.tensor([1.3, -123.4]).tolist()
    assert engine.round(engine.tensor([156.0]), decimals=-1).item() == 160
    assert engine.tensor([1, 2]).round().tolist() == [1, 2]


def test_questions_and_constructors() -> None:
    assert engine.is_nonzero(engine.tensor([2]))
    assert not engine.is_signed(engine.tensor([1], dtype=engine.uint8))
    assert engine.is_same_size(engine.ones(2), engine.zeros(2))
    assert engine.nonzero_static(engine.tensor([0, 1, 1]), size=3).tolist() == [[1], [2], [-1]]
    assert engine.range(1, 2, 0.5).tolist() == [1.0, 1.5, 2.0]
    assert engine.scalar_tensor(2).dtype is engine.float32
    assert engine.linalg.vander(engine.tensor([2.0, 3.0]), N=3).tolist() == [[1, 2, 4], [1, 3, 9]]


def test_factors_multiply_to_the_matrix() -> None:
    p, lower, upper = linalg.lu(M)
    np.testing.assert_allclose((p @ lower @ upper).numpy(), M.numpy(), atol=1e-12)
    values, vectors = linalg.eig(M)
    np.testing.assert_allclose(
        (vectors * values.unsqueeze(-2)).numpy(), (M.to(engine.complex128) @ vectors).numpy(), atol=1e-12
    )
    np.testing.assert_allclose(
        linalg.matrix_exp(M * 3).numpy(),
        (vectors * (3 * values).exp().unsqueeze(-2) @ linalg.inv(vectors)).numpy().real,
        rtol=1e-9,
        atol=1e-9,
    )
    u, s, v = engine.svd(M)
    np.testing.assert_allclose((u * s.unsqueeze(-2) @ v.mH).numpy(), M.numpy(), atol=1e-12)
    b = engine.ones(2, 4, 1, dtype=engine.float64)
    np.testing.assert_allclose(engine.lu_solve(b, *linalg.lu_factor(M)).numpy(), linalg.solve(M, b).numpy(), atol=1e-12)


def test_special_functions_at_known_points() -> None:
    half = engine.tensor([0.5], dtype=engine.float64)
    assert special.ndtr(half * 0).item() == 0.5
    assert special.ndtri(special.ndtr(half)).item() == pytest.approx(0.5, abs=1e-12)
    assert special.gammainc(half * 2, half).item() == pytest.approx(1 - math.exp(-0.5), abs=1e-14)
    assert special.zeta(half * 4, half * 2).item() == pytest.approx(math.pi**2 / 6, abs=1e-13)
    assert special.multigammaln(half * 6, 1).item() == pytest.approx(math.lgamma(3), abs=1e-13)
    assert special.entr(engine.tensor([0.0, -1.0])).tolist() == [0.0, -math.inf]


X, PLACES = engine.zeros(3), engine.tensor([0, 1])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: X.scatter_reduce(0, PLACES, X, "max"), RuntimeError, "sum, prod, mean, amax or amin"),
        (lambda: X.index_reduce(0, PLACES, X[:2], "sum"), RuntimeError, "prod, mean, amax or amin"),
        (lambda: X.put(PLACES, X), RuntimeError, "same number of elements"),
        (lambda: engine.gradient(X[:1]), RuntimeError, r"at least edge_order\+1"),
        (lambda: engine.gradient(X, edge_order=3), RuntimeError, "edge_order=1 and edge_order=2"),
        (lambda: engine.frexp(PLACES), RuntimeError, "floating-point"),
        (lambda: engine.heaviside(X, X.double()), RuntimeError, "different dtypes"),
        (lambda: engine.meshgrid(engine.ones(2, 2)), RuntimeError, "0D or 1D"),
        (lambda: engine.is_nonzero(X), RuntimeError, "more than one value"),
        (lambda: linalg.lu_factor(engine.zeros(2, 2)), linalg.LinAlgError, "singular"),
        (lambda: linalg.lu(M, pivot=False), NotImplementedError, "without pivoting"),
        (lambda: special.multigammaln(engine.ones(1), 4), RuntimeError, "greater than"),
        (lambda: engine.round(PLACES, decimals=2), RuntimeError, "needs a floating point tensor"),
        (lambda: engine.autograd.forward_ad, AttributeError, "no forward mode; .*jvp"),
    ],
)
def test_errors(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_derivatives_that_are_not_defined_are_refused() -> None:
    a = engine.tensor([1.5], requires_grad=True)
    with pytest.raises(RuntimeError, match="derivative for igamma: input is not implemented"):
        engine.igamma(a, engine.tensor([1.0])).backward()
    x, index = engine.zeros(2, requires_grad=True), engine.tensor([0, 0])
    y = engine.ones(2).scatter_reduce(0, index, x, "prod")
    with pytest.raises(RuntimeError, match="factors of 0"):
        engine.autograd.grad(y.sum(), x, create_graph=True)


@pytest.mark.parametrize("dtype", [engine.bool, engine.int64, engine.float16, engine.bfloat16, engine.complex64])
def test_views_of_nothing_keep_their_dtype(dtype: engine.dtype) -> None:
    for view in (engine.zeros((0, 3), dtype=dtype)[:, 1], engine.zeros((3, 0), dtype=dtype)[1:2]):
        assert view.dtype is dtype
        assert view.storage_offset() == 1
        assert view.numel() == 0


@pytest.mark.parametrize("dtype", [engine.float16, engine.float32, engine.float64])
def test_bernoulli_of_one_number_is_an_array_of_none_dimensions(dtype: engine.dtype) -> None:
    drawn = engine.bernoulli(engine.ones((), dtype=dtype))
    assert isinstance(drawn.numpy(), np.ndarray)
    assert drawn.item() == 1
    assert drawn.dtype is dtype


def test_integers_are_computed_in_floating_point_where_pytorch_does() -> None:
    small = engine.tensor([0, 1], dtype=engine.uint8)
    assert special.ndtri(small).tolist() == [-math.inf, math.inf]
    np.testing.assert_allclose(engine.mvlgamma(engine.tensor([7, 9]), 3).numpy(), [18.7464, 30.3961], rtol=1e-5)
    assert special.zeta(engine.tensor([True]), engine.tensor([True])).tolist() == [math.inf]
    assert [each.dtype for each in engine.unravel_index(small, (2, 2))] == [engine.int64] * 2


def test_sum_to_size_of_one_number_sums_integers_in_int64() -> None:
    number = engine.tensor(3, dtype=engine.int32)
    assert number.sum_to_size(()).dtype is engine.int64
    assert engine.ones(3, 1, dtype=engine.int32).sum_to_size(3, 1).dtype is engine.int32


def test_no_differences_are_the_input_alone() -> None:
    x = engine.arange(3.0)
    assert engine.diff(x, 0, prepend=engine.ones(2), append=engine.ones(1)).tolist() == [0, 1, 2]


def test_masked_scatter_broadcasts_input_and_mask() -> None:
    mask = engine.tensor([[True, False, True], [False, True, False]])
    made = engine.masked_scatter(engine.zeros(3), mask, engine.tensor([1.0, 2.0, 3.0]))
    assert made.tolist() == [[1, 0, 2], [0, 3, 0]]
    assert engine.masked_scatter(engine.zeros(2, 3), mask[:1], engine.arange(4.0) + 1).tolist() == [
        [1, 0, 2],
        [3, 0, 4],
    ]


@pytest.mark.parametrize("accumulate", [False, True])
def test_index_put_by_a_mask_of_leading_axes(accumulate: bool) -> None:
    mask = engine.tensor([True, False, True])
    x = engine.ones(3, 2, requires_grad=True)
    row = engine.tensor([2.0, 5.0], requires_grad=True)
    y = x.index_put((mask,), row, accumulate)
    before = 1.0 if accumulate else 0.0
    assert y.tolist() == [[2 + before, 5 + before], [1, 1], [2 + before, 5 + before]]
    y.sum().backward()
    assert x.grad.tolist() == [[before] * 2, [1, 1], [before] * 2]
    assert row.grad.tolist() == [2, 2]
    assert engine.zeros(3, 2).index_put((mask,), engine.arange(4.0).view(2, 2)).tolist() == [[0, 1], [0, 0], [2, 3]]


def test_quantile_is_differentiated_by_its_fractions() -> None:
    q = engine.tensor([0.3, 0.6], requires_grad=True)
    engine.quantile(engine.tensor([[1.0, 5.0, 7.0], [2.0, 3.0, 9.0]]), q, 1).sum().backward()
    assert q.grad.tolist() == [10, 16]  # two intervals of half a unit each: 2 * (4 + 1), 2 * (2 + 6)


def test_hardtanh_limits_integers() -> None:
    functional = engine.nn.functional
    x = engine.tensor([-3, 0, 7])
    assert functional.hardtanh(x).tolist() == [-1, 0, 1]
    assert functional.relu6(x).tolist() == [0, 0, 6]
    assert functional.relu6(x).dtype is engine.int64


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_images_of_bytes_are_rounded_not_cut(mode: str) -> None:
    image = engine.from_numpy(np.random.RandomState(4).randint(64, 192, (1, 3, 7, 6)).astype(np.uint8))
    made = engine.nn.functional.interpolate(image, size=(5, 9), mode=mode)
    exact = engine.nn.functional.interpolate(image.double(), size=(5, 9), mode=mode).clamp(0, 255)
    assert made.dtype is engine.uint8
    assert (made.double() - exact).abs().max() <= 1.5  # each axis is rounded once
    with pytest.raises(NotImplementedError, match=f'"{mode}" not implemented for engine.int64'):
        engine.nn.functional.interpolate(image.long(), size=(5, 9), mode=mode)


def test_cov_of_complex_numbers_with_weights() -> None:
    random = np.random.RandomState(5)
    x = random.standard_normal((2, 4)) + 1j * random.standard_normal((2, 4))
    counts, weights = np.array([1, 2, 1, 3]), np.array([0.5, 1.0, 2.0, 0.25])
    got = engine.cov(engine.from_numpy(x), fweights=engine.from_numpy(counts), aweights=engine.from_numpy(weights))
    np.testing.assert_allclose(got.numpy(), np.cov(x, fweights=counts, aweights=weights), rtol=1e-10)


@pytest.mark.parametrize(
    ("mode", "answer"),
    [
        ("bilinear", [[31, 81, 94], [100, 150, 92], [169, 113, 55]]),
        ("bicubic", [[28, 83, 94], [99, 176, 94], [173, 111, 52]]),
    ],
)
def test_images_of_bytes_have_weights_of_sixteen_bits(mode: str, answer: list[list[int]]) -> None:
    """Which decide sums that lie near a half: PyTorch 2.13's own numbers."""
    image = engine.arange(16).mul(37).remainder(256).to(engine.uint8).reshape(1, 1, 4, 4)
    image = image.expand(1, 3, 4, 4)
    assert engine.nn.functional.interpolate(image, size=(3, 3), mode=mode)[0, 2].tolist() == answer


def test_gradient_of_logcumsumexp_over_a_wide_range_is_recorded_without_nan() -> None:
    input = engine.tensor([-800.0, 1.0, -500.0, 1e4], dtype=engine.float64, requires_grad=True)
    weights = engine.tensor([1.0, -2.0, 3.0, -4.0], dtype=engine.float64, requires_grad=True)
    (gradient,) = engine.autograd.grad(engine.logcumsumexp(input, 0), input, weights, create_graph=True)
    np.testing.assert_allclose(gradient.detach().numpy(), [1, 1, 0, -4], atol=1e-12)
    scales = engine.tensor([1.0, 2.0, 3.0, 4.0], dtype=engine.float64)
    second = engine.autograd.grad((gradient * scales).sum(), [input, weights])
    np.testing.assert_allclose(second[0].numpy(), [0, 0, 0, 0], atol=1e-10)
    np.testing.assert_allclose(second[1].numpy(), [1, 2, 2, 4], rtol=1e-12)


@pytest.mark.parametrize("rows", [2, 5])
def test_of_lstsq_the_solution_and_the_residuals_have_derivatives(rows: int) -> None:
    A = engine.randn(rows, 3, dtype=engine.float64, requires_grad=True)
    found = linalg.lstsq(A, engine.randn(rows, 2, dtype=engine.float64), driver="gelsd")
    assert [each.requires_grad for each in found] == [True, True, False, False]
    (gradient,) = engine.autograd.grad([found.solution, found.residuals], A, [engine.ones(3, 2), found.residuals])
    assert gradient.shape == A.shape
    assert gradient.isfinite().all()


def test_conj_physical_writes_bools() -> None:
    out = engine.zeros(2, dtype=engine.bool)
    assert engine.conj_physical(engine.tensor([True, False]), out=out) is out
    assert out.tolist() == [True, False]


def test_log_normal_needs_a_deviation() -> None:
    with pytest.raises(RuntimeError, match=r"expects std > 0\.0, but found std=0"):
        engine.ones(3).log_normal_(0, 0)


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_of_a_row_of_nothing_is_empty(training: bool) -> None:
    nothing = engine.zeros(0, requires_grad=True)
    out = engine.nn.functional.batch_norm(nothing, engine.zeros(0), engine.zeros(0), training=training)
    assert tuple(out.shape) == (0,)
    out.sum().backward()
    assert nothing.grad is not None


@pytest.mark.parametrize(
    "choose",
    [
        lambda x: engine.combinations(x, 4),
        lambda x: engine.gather(x.reshape(1, 3), 0, engine.zeros(0, dtype=engine.int64)),
        lambda x: engine.gather(x[0], 0, engine.zeros(0, 2, dtype=engine.int64)),
    ],
    ids=["combinations", "gather", "gather from a number"],
)
def test_what_chooses_nothing_is_recorded(choose):
    x = engine.randn(3, requires_grad=True)
    chosen = choose(x)
    assert not chosen.numel()
    chosen.sum().backward()
    assert x.grad.tolist() == [0.0, 0.0, 0.0]
