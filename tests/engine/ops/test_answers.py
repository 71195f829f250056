"""What PyTorch answers in corner cases of its operators: empty batches, 0-dim tensors, integers, arguments given by
position or by name. The numbers are PyTorch 2.13's.
"""

import math
import re
from collections.abc import Callable
from typing import Any

import pytest

import engine
from engine import linalg, special


def listed(value: Any) -> Any:
    """Tensors, or containers of them, as plain lists."""
    if isinstance(value, engine.Tensor):
        return value.tolist()
    return [listed(each) for each in value] if isinstance(value, tuple | list) else value


M = engine.tensor([[1.0, 2.0], [3.0, 5.0]])
ROW = engine.arange(6.0).reshape(2, 3)
PLACES = engine.tensor([0, 1])

ANSWERS: dict[str, tuple[Callable[[], Any], Any]] = {
    "meshgrid of xy": (
        lambda: engine.meshgrid(engine.arange(2), engine.arange(3), indexing="xy"),
        [[[0, 1], [0, 1], [0, 1]], [[0, 0], [1, 1], [2, 2]]],
    ),
    "var_mean, unbiased by position": (lambda: engine.var_mean(M, False), [2.1875, 2.75]),
    "std_mean, unbiased by position": (lambda: engine.std_mean(M * 0, False), [0.0, 0.0]),
    "flip by name": (lambda: engine.flip(engine.arange(3), dims=(0,)), [2, 1, 0]),
    "flip by name, a method": (lambda: ROW.flip(dims=[0, 1]), [[5.0, 4.0, 3.0], [2.0, 1.0, 0.0]]),
    "roll": (lambda: engine.roll(ROW, (1, 2), (0, 1)), [[4.0, 5.0, 3.0], [1.0, 2.0, 0.0]]),
    "index_add_ of a number": (lambda: M.new_zeros(()).index_add_(0, engine.tensor(0), M.new_ones(())), 1.0),
    "index_copy of a number": (lambda: engine.index_copy(M.new_zeros(()), 0, engine.tensor([0]), M.new_ones(())), 1.0),
    "index_copy of one element": (
        lambda: engine.index_copy(engine.zeros(3), 0, engine.tensor(1), M.new_ones(())),
        [0.0, 1.0, 0.0],
    ),
    "addmm of integers cuts factors off": (
        lambda: engine.addmm(engine.ones(2, 2).long(), engine.ones(2, 3).long(), engine.ones(3, 2).long(), alpha=1.6),
        [[4, 4], [4, 4]],
    ),
    "baddbmm of integers cuts factors off": (
        lambda: engine.baddbmm(*(engine.ones(1, 2, 2).long(),) * 3, beta=0.2, alpha=2.6).flatten(),
        [4, 4, 4, 4],
    ),
    "addmv_ of integers": (
        lambda: engine.ones(2).long().addmv_(engine.ones(2, 2).long(), PLACES, beta=0.5),
        [1, 1],
    ),
    "addmm of bfloat16 rounds once": (
        lambda: engine.addmm(
            engine.ones(1).bfloat16(), engine.ones(1, 3).bfloat16(), engine.ones(3, 1).bfloat16(), beta=0.3, alpha=0.7
        ),
        [[2.40625]],
    ),
    "a beta of 0 leaves NaN out": (lambda: engine.addmm(M * math.nan, M, M, beta=0), [[7.0, 12.0], [18.0, 31.0]]),
    "the same of vectors": (lambda: engine.addmv(M[0] * math.nan, M, M[0], beta=0), [5.0, 13.0]),
    "the same of batches": (
        lambda: engine.addbmm(M * math.nan, M[None], M[None], beta=0),
        [[7.0, 12.0], [18.0, 31.0]],
    ),
    "the same of outer products": (
        lambda: engine.addr(M * math.nan, M[0], M[0], beta=0),
        [[1.0, 2.0], [2.0, 4.0]],
    ),
    "addr of bools": (lambda: engine.addr(M > 9, M[0] > 0, M[0] > 1, beta=False), [[False, True], [False, True]]),
    "tensordot of an axis of size 1": (
        lambda: engine.tensordot(engine.ones(1, 1, 1), engine.arange(4.0).reshape(2, 1, 2), [[0, 1], [2, 0]]),
        [[6.0]],
    ),
    "arange of int64 truncates its bounds": (lambda: engine.arange(-0.9, 2.1, 2.0, dtype=engine.int64), [0]),
    "arange of int32 its start and step": (lambda: engine.arange(-0.9, 2.1, 2.0, dtype=engine.int32), [0, 2]),
    "linspace between tensors": (lambda: engine.linspace(engine.tensor(0.0), engine.tensor(1), 3), [0.0, 0.5, 1.0]),
    "gradient without a spacing": (lambda: engine.gradient(M[1], spacing=None), [[2.0, 2.0]]),
    "prelu of a number": (lambda: engine.nn.functional.prelu(engine.tensor(-2.0), engine.tensor([0.25])), -0.5),
    "entr of half precision": (lambda: str(special.entr(M.bfloat16()).dtype), "engine.bfloat16"),
    "normal in the dtype of the mean": (lambda: str(engine.normal(M.double(), M).dtype), "engine.float64"),
    "bernoulli of one probability": (lambda: engine.bernoulli(M, 1.0), [[1.0, 1.0], [1.0, 1.0]]),
    "vander of a number": (lambda: linalg.vander(engine.tensor(2.0), N=3), [[1.0, 2.0, 4.0]]),
    "pinv of a symmetric matrix": (
        lambda: (linalg.pinv(engine.tensor([[2.0, 9.0], [0.0, 4.0]]), hermitian=True) * 4).round(),
        [[2.0, 0.0], [0.0, 1.0]],
    ),
    "pinv without small singular values": (
        lambda: linalg.pinv(engine.tensor([[2.0, 0.0], [0.0, 0.1]]), atol=0.5),
        [[0.5, 0.0], [0.0, 0.0]],
    ),
    "pinverse by position": (
        lambda: engine.pinverse(engine.tensor([[2.0, 0.0], [0.0, 0.1]]), 0.5),
        [[0.5, 0.0], [0.0, 0.0]],
    ),
    "tensorsolve over axes": (
        lambda: linalg.tensorsolve(2 * engine.eye(4).reshape(4, 2, 2), M, dims=(0,)),
        [0.5, 1.0, 1.5, 2.5],
    ),
    "scatter that adds": (lambda: engine.scatter(M[0], 0, PLACES[1:], 3.0, reduce="add"), [1.0, 5.0]),
    "scatter_ that multiplies": (
        lambda: M[0].clone().scatter_(0, PLACES[1:], value=3.0, reduce="multiply"),
        [1.0, 6.0],
    ),
    "gather of no indices": (lambda: engine.gather(M, 0, engine.zeros(0, dtype=engine.uint8)), []),
    "trace": (lambda: engine.trace(M), 6.0),
    "round_ to decimals": (lambda: engine.tensor([123.0]).round_(decimals=-1), [120.0]),
    "round_ of integers": (lambda: engine.tensor([1, 2]).round_(), [1, 2]),
    "square of bools": (lambda: engine.square(engine.tensor([True])) + 1, [2]),
    "xlog1py of a tiny number": (lambda: special.xlog1py(engine.tensor(2.0), 1e-10).item() > 1e-10, True),
    "channels-last places of grid_sample": (
        lambda: engine.nn.functional.grid_sample(
            engine.ones(1, 1, 3, 3),
            engine.zeros(1, 2, 2, 2).to(memory_format=engine.channels_last),
            align_corners=False,
        ).flatten(),
        [1.0] * 4,
    ),
    "no dropout of a vector": (lambda: engine.nn.functional.feature_alpha_dropout(M[0], training=False), [1.0, 2.0]),
    "positive is the tensor itself": (lambda: engine.positive(M) is M and engine.conj_physical(M) is M, True),
    "normalize into an empty tensor": (
        lambda: engine.nn.functional.normalize(engine.tensor([[3.0, 4.0]]), out=engine.empty(0)).shape,
        [1, 2],
    ),
    "cov in the wider dtype": (lambda: str(engine.cov(M.bfloat16(), aweights=engine.ones(2)).dtype), "engine.float32"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_answers(name: str) -> None:
    call, expected = ANSWERS[name]
    assert listed(call()) == expected


REFUSALS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "meshgrid of an unknown kind": (lambda: engine.meshgrid(M[0], indexing="yx"), RuntimeError, 'one of "xy" or "ij"'),
    "meshgrid of two dtypes": (lambda: engine.meshgrid(M[0], engine.arange(2)), RuntimeError, "the same dtype"),
    "probabilities and an index to ignore": (
        lambda: engine.nn.functional.cross_entropy(M, M, ignore_index=1),
        RuntimeError,
        "not supported for floating point target",
    ),
    "addmm of two dtypes": (lambda: engine.addmm(M.double(), M, M), RuntimeError, "the same dtype"),
    "addmm into a larger shape": (lambda: engine.addmm(engine.ones(3, 2, 2), M, M), RuntimeError, "expands to"),
    "addmm of bools": (lambda: engine.addmm(M > 0, M > 0, M > 0), NotImplementedError, "not implemented"),
    "addr of integers by a fraction": (
        lambda: engine.addr(PLACES, PLACES, PLACES, alpha=0.5),
        RuntimeError,
        "integral",
    ),
    "arange of bools": (lambda: engine.arange(2, dtype=engine.bool), NotImplementedError, "not implemented"),
    "arange to infinity": (lambda: engine.arange(math.inf), RuntimeError, "unsupported range"),
    "linspace between vectors": (lambda: engine.linspace(M[0], 1, 3), RuntimeError, "0-dimensional"),
    "prelu of two dtypes": (lambda: engine.prelu(M, M[0, :1].double()), RuntimeError, "Type promoting"),
    "normal of a negative spread": (lambda: engine.normal(M, -M), RuntimeError, "std >= 0"),
    "normal of integers": (lambda: engine.normal(PLACES, 1.0), NotImplementedError, "not implemented"),
    "bernoulli above 1": (lambda: engine.bernoulli(M), RuntimeError, "in [0, 1]"),
    "weights that are integers": (lambda: engine.multinomial(PLACES, 1), RuntimeError, "only supports floating-point"),
    "normalize into integers": (
        lambda: engine.nn.functional.normalize(M, out=engine.empty(2, 2, dtype=engine.int64)),
        RuntimeError,
        "can't be cast",
    ),
    "square_ of bools": (lambda: (M > 0).square_(), RuntimeError, "square"),
    "heaviside_ of two dtypes": (lambda: M.clone().heaviside_(M.double()), RuntimeError, "different dtypes"),
    "narrow from a vector": (lambda: engine.narrow(M, 0, PLACES, 1), RuntimeError, "0-dim integral"),
    "istft of another number of frequencies": (
        lambda: engine.istft(M.to(engine.complex64), n_fft=8),
        RuntimeError,
        "frequency dimension",
    ),
    "an unknown driver": (lambda: linalg.lstsq(M, M, driver="qr"), RuntimeError, "gels, gelsy, gelsd, gelss"),
    "the maximum of a tensor and a number": (lambda: engine.maximum(M, 2), TypeError, "'other' (position 2)"),
    "a number compared with a tensor": (lambda: engine.eq(1, M), TypeError, "'input' (position 1)"),
    "a power of two numbers": (lambda: engine.pow(2, 3), TypeError, "must be Tensor, not int"),
    "the largest of a number": (lambda: engine.max(2, M), TypeError, "max(): argument 'input'"),
    "clamp_min of a number": (lambda: engine.clamp_min(2, 3), TypeError, "must be Tensor, not int"),
    "isclose to a number": (lambda: engine.isclose(M, 2.0), TypeError, "must be Tensor, not float"),
    "isclose within less than nothing": (lambda: engine.isclose(M, M, rtol=-1), RuntimeError, "greater than or equal"),
    "heaviside of a number": (lambda: engine.heaviside(M, 1.0), TypeError, "'values' (position 2)"),
    "ldexp by a number": (lambda: engine.ldexp(M, 1), TypeError, "'other' (position 2)"),
    "hstack of nothing": (lambda: engine.hstack([]), RuntimeError, "non-empty"),
    "gradient along one axis twice": (lambda: engine.gradient(M, dim=(1, 1)), RuntimeError, "multiple times"),
    "linspace of a fractional number": (lambda: engine.linspace(0, 1, 3.0), TypeError, "must be int"),
    "arange by less than 1": (
        lambda: engine.arange(0, 2, 0.5, dtype=engine.int64),
        ValueError,
        "nonzero",
    ),
    "a complex value for integers": (
        lambda: engine.masked_fill(PLACES, PLACES > 0, engine.tensor(1j)),
        RuntimeError,
        "cannot be converted",
    ),
    "renorm of a vector": (lambda: engine.renorm(M[0], 2, 0, 1), RuntimeError, "at least 2 dimensions"),
    "slopes from above to below": (lambda: engine.rrelu(M, 0.3, 0.1), RuntimeError, "Lower bound"),
    "more axes than there can be": (lambda: engine.zeros([1] * 65), RuntimeError, "up to 64 dims"),
    "an image without channels": (
        lambda: engine.nn.functional.adaptive_avg_pool2d(M, (2, 2)),
        ValueError,
        "should be at least 3",
    ),
    "an unknown reduction": (
        lambda: engine.nn.functional.multi_margin_loss(M, M[0], reduction="abc"),
        ValueError,
        "not a valid value for reduction",
    ),
    "an input of another dtype than the cell's": (lambda: engine.nn.RNN(2, 3)(M.double()), ValueError, "one dtype"),
    "circular padding of a vector": (lambda: engine.nn.CircularPad2d(1)(M), ValueError, "expected 3D or 4D input"),
    "a complex delta": (lambda: engine.nn.HuberLoss(delta=1j), TypeError, "float or int"),
    "meshgrid of nothing": (lambda: engine.meshgrid(), RuntimeError, "non-empty"),
    "roll by nothing": (lambda: engine.roll(M, ()), RuntimeError, "`shifts` required"),
    "roll by more than there are axes": (lambda: engine.roll(M, (1, 2), (0,)), RuntimeError, "shifts: 2, dims: 1"),
    "integers as degrees in place": (lambda: engine.tensor([90]).deg2rad_(), RuntimeError, "can't be cast"),
    "logit of integers in place": (lambda: engine.tensor([0, 1]).logit_(), RuntimeError, "can't be cast"),
    "float_power in place of floats": (lambda: engine.tensor([2.0]).float_power_(2), RuntimeError, "engine.float64"),
    "mean as integers": (lambda: M.mean(dtype=engine.int64), RuntimeError, "could not infer output dtype"),
    "index_add of another shape": (
        lambda: engine.index_add(ROW, 0, engine.tensor([0, 1]), engine.ones(2, 1)),
        RuntimeError,
        "must match self tensor shape",
    ),
    "index_add of another dtype": (
        lambda: engine.index_add(ROW, 0, engine.tensor([0]), engine.ones(1, 3, dtype=engine.int64)),
        RuntimeError,
        "same dtype",
    ),
    "index_copy of more rows than indices": (
        lambda: engine.index_copy(ROW, 0, engine.tensor([0]), ROW),
        IndexError,
        "must match self tensor shape",
    ),
    "cov of negative frequencies": (lambda: engine.cov(M, fweights=engine.tensor([-1, 2])), RuntimeError, "negative"),
    "cov of too many frequencies": (lambda: engine.cov(M, fweights=engine.arange(3)), RuntimeError, "same numel"),
    "cov of fractional frequencies": (lambda: engine.cov(M, fweights=M[0]), RuntimeError, "integral dtype"),
    "cov of negative weights": (lambda: engine.cov(M, aweights=-M[0]), RuntimeError, "negative"),
    "cov of whole weights": (lambda: engine.cov(M, aweights=engine.arange(2)), RuntimeError, "floating point dtype"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name: str) -> None:
    call, error, message = REFUSALS[name]
    with pytest.raises(error, match=re.escape(message)):
        call()


def test_another_size_on_the_same_storage() -> None:
    x = engine.arange(8.0)
    assert x[2:4].resize_(2, 2).tolist() == [[2.0, 3.0], [4.0, 5.0]]
    assert x[:2].resize_(2, 1).zero_().tolist() == [[0.0], [0.0]]
    assert x.tolist() == [0.0, 0.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    assert x.resize_(0).resize_(3).tolist() == [0.0, 0.0, 2.0]
    assert engine.arange(4.0).resize_(9)[:4].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert engine.arange(4.0).resize_as_(engine.zeros(2, 2)).tolist() == [[0.0, 1.0], [2.0, 3.0]]
    turned = ROW.clone().t()
    assert turned.resize_(3, 2).stride() == (1, 3)  # the same size: nothing changes
    assert turned.resize_(2, 3).tolist() == ROW.tolist()
    image = engine.arange(16.0).resize_(2, 2, 2, 2, memory_format=engine.channels_last)
    assert image.is_contiguous(memory_format=engine.channels_last)
    assert image[0, 0].tolist() == [[0.0, 2.0], [4.0, 6.0]]


@pytest.mark.parametrize(
    "drawn",
    [
        lambda x: engine.normal(x, x),
        lambda x: engine.bernoulli(x),
        lambda x: linalg.matrix_power(x, 0),
        lambda x: engine.addmm(x, M, M, beta=0),
    ],
    ids=["normal", "bernoulli", "matrix_power", "addmm"],
)
def test_what_does_not_depend_on_its_input_has_a_gradient_of_0(drawn: Callable[[engine.Tensor], engine.Tensor]) -> None:
    x = engine.full((2, 2), 0.5, requires_grad=True)
    drawn(x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[0.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize(
    ("driver", "residuals", "rank", "values"),
    [(None, (0,), (), (0,)), ("gels", (1,), (0,), (0,)), ("gelsd", (1,), (), (2,)), ("gelss", (1,), (), (2,))],
)
@pytest.mark.parametrize("dtype", [engine.float64, engine.complex128])
def test_the_driver_says_what_comes_with_least_squares(
    driver: str | None, residuals: tuple, rank: tuple, values: tuple, dtype: engine.dtype
) -> None:
    a = engine.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]], dtype=dtype)
    found = linalg.lstsq(a, engine.ones(3, 1, dtype=dtype), driver=driver)
    assert (found.residuals.shape, found.rank.shape, found.singular_values.shape) == (residuals, rank, values)
    assert {found.residuals.dtype, found.singular_values.dtype} == {engine.float64}
    assert linalg.lstsq(a[:0], a[:0]).solution.tolist() == [[0, 0], [0, 0]]


def test_a_real_signal_takes_the_lower_half_of_a_spectrum() -> None:
    """Whatever the upper half holds, as in PyTorch."""
    whole = engine.stft(engine.arange(8.0), 4, window=engine.ones(4), onesided=False, return_complex=True)
    expected = engine.istft(whole, 4, window=engine.ones(4), onesided=False)
    whole[3] = 99
    assert engine.istft(whole, 4, window=engine.ones(4)).tolist() == expected.tolist()


def test_derivatives_of_numbers() -> None:
    z = engine.tensor(1 + 1j).requires_grad_()
    engine.index_fill(z, 0, engine.tensor([0]), 2).backward(engine.tensor(1j))
    assert z.grad is not None
    assert z.grad.item() == 0
    x, w = (engine.ones(*shape, dtype=engine.float64, requires_grad=True) for shape in ((), (1,)))
    (slope,) = engine.autograd.grad(x.unfold(0, 1, 1), x, w, create_graph=True)
    (slope * 2).backward()
    assert w.grad is not None
    assert w.grad.tolist() == [2.0]
