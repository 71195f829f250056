"""Complex tensors: views of their parts, constructors, errors; operators without an order or a rule refuse them."""

import math
from collections.abc import Callable

import numpy as np
import pytest

import engine

Z = engine.tensor([[1 + 2j, 3 - 1j], [0j, -2j]])


def test_parts_are_views() -> None:
    z = Z.clone()
    z.real[0, 0] = 5
    z.imag[1] = 7
    assert z.tolist() == [[5 + 2j, 3 - 1j], [7j, 7j]]
    parts = engine.view_as_real(z)
    assert parts.stride() == (4, 2, 1)
    parts[0, 1, 1] = 9
    assert z[0, 1].item() == 3 + 9j
    again = engine.view_as_complex(parts)
    assert again.data_ptr() == z.data_ptr()
    assert engine.equal(again, z)
    assert engine.view_as_real(z.t()).stride() == (2, 4, 1)


@pytest.mark.parametrize(
    "conjugate",
    [lambda x: x.conj(), lambda x: x.mH, lambda x: x.H, lambda x: x.adjoint()],
    ids=["conj", "mH", "H", "adjoint"],
)
@pytest.mark.parametrize(
    "write",
    [
        lambda y: y.zero_(),
        lambda y: y.mul_(2),
        lambda y: y[0].fill_(1),
        lambda y: y.__setitem__((0, 0), 3.0),
        lambda y: y.copy_(engine.zeros(2, 2)),
        lambda y: engine.view_as_real(y).zero_(),
        lambda y: y.detach().T.add_(1),
        lambda y: engine.add(y, y, out=y),
        lambda y: y.index_add_(0, engine.tensor([0]), engine.ones(1, 2, dtype=y.dtype)),
    ],
    ids=["zero", "mul", "row", "element", "copy", "parts", "detached", "out", "index_add"],
)
def test_writing_to_a_conjugate_is_refused(conjugate, write) -> None:
    """In PyTorch it is a view, and the base would change."""
    x = engine.tensor([[1 + 2j, 3j], [4.0, 5 - 1j]])
    y = conjugate(x)
    before = y.tolist()
    with pytest.raises(RuntimeError, match="the conjugate of a complex tensor"):
        write(y)
    assert y.tolist() == before


def test_what_is_made_of_a_conjugate_may_be_written() -> None:
    x = engine.tensor([1 + 2j, 3j], requires_grad=True)
    for copy in (x.conj().resolve_conj(), x.conj().clone(), x.conj_physical(), x.conj() * 1, engine.fft.ihfft(x.real)):
        copy.mul_(2)
    (gradient,) = engine.autograd.grad((x.conj() * (2 + 1j)).real.sum(), x, create_graph=True)
    assert gradient.tolist() == [2 + 1j, 2 + 1j]
    gradient.detach().zero_()


def test_conjugates_and_polar_form() -> None:
    assert Z.conj().tolist() == np.conj(Z.numpy()).tolist()
    assert Z.mH.shape == (2, 2)
    assert Z.H.tolist() == np.conj(Z.numpy()).T.tolist()
    x = engine.ones(2)
    assert x.conj() is x
    assert x.real is x
    assert engine.allclose(engine.polar(Z.abs(), Z.angle()), Z)
    assert engine.complex(Z.real, Z.imag).tolist() == Z.tolist()


def test_steepest_ascent_is_along_the_gradient() -> None:
    """PyTorch's convention: a step along the gradient of a real loss is the one that raises it most."""
    z = engine.tensor([1.0 + 1.0j], dtype=engine.complex128, requires_grad=True)
    (z.abs() ** 2).sum().backward()
    assert z.grad is not None
    assert z.grad.tolist() == [2 + 2j]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: engine.imag(engine.ones(2)), RuntimeError, "non-complex"),
        (lambda: engine.view_as_real(engine.ones(2)), RuntimeError, "only supported for complex"),
        (lambda: engine.view_as_complex(engine.ones(3)), RuntimeError, "last dimension of size 2"),
        (lambda: engine.view_as_complex(engine.ones(2, 2).t()), RuntimeError, "stride 1"),
        (lambda: engine.view_as_complex(engine.ones(2, 3)[:, :2]), RuntimeError, "divisible by 2"),
        (lambda: engine.view_as_complex(engine.ones(5)[1:].view(2, 2)), RuntimeError, "storage_offset divisible by 2"),
        (lambda: engine.view_as_complex(engine.ones(2).long()), RuntimeError, "half, float and double"),
        (lambda: engine.complex(engine.ones(2), engine.ones(2).double()), RuntimeError, "float64"),
        (lambda: engine.complex(engine.ones(2).long(), engine.ones(2).long()), RuntimeError, "Half, Float or Double"),
        *(
            (lambda name=name: getattr(engine, name)(Z), NotImplementedError, f'"{name}" not implemented for')
            for name in ("amax", "amin", "median", "unique", "nansum")
        ),
        (lambda: engine.topk(Z, 1), NotImplementedError, '"topk" not implemented'),
        (lambda: engine.cummax(Z, 0), NotImplementedError, '"cummax" not implemented'),
        (lambda: Z > 0, NotImplementedError, "complex numbers have no order"),
        (lambda: engine.relu(Z), NotImplementedError, "relu"),
        (lambda: Z[0].H, RuntimeError, "2-D"),
    ],
)
def test_errors(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def waves(*shape: int) -> engine.Tensor:
    """Complex numbers in no pattern, double precision."""
    count = math.prod(shape)
    steps = engine.arange(float(count), dtype=engine.float64).reshape(shape)
    return engine.complex((steps * 0.7).sin(), (steps * 1.3).cos()).requires_grad_()


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("transposed", [False, True])
def test_complex_convolutions_are_those_of_their_parts(dims: int, transposed: bool) -> None:
    function = getattr(engine.nn.functional, f"conv{'_transpose' if transposed else ''}{dims}d")
    x, weight, bias = waves(2, 2, *(3,) * dims), waves(2, 2, *(2,) * dims), waves(2)
    out = function(x, weight, bias, stride=1, padding=1)
    parts = [function(a, b, None, stride=1, padding=1) for a in (x.real, x.imag) for b in (weight.real, weight.imag)]
    expected = engine.complex(parts[0] - parts[3], parts[1] + parts[2]) + bias.reshape(1, -1, *(1,) * dims)
    np.testing.assert_allclose(out.detach().numpy(), expected.detach().numpy(), atol=1e-12)
    for found, wanted in zip(
        engine.autograd.grad(out.abs().sum(), (x, weight, bias)),
        engine.autograd.grad(expected.abs().sum(), (x, weight, bias)),
        strict=True,
    ):
        np.testing.assert_allclose(found.numpy(), wanted.numpy(), atol=1e-12)
    with pytest.raises(RuntimeError, match="same dtype"):
        function(x, weight.real)


def test_complex_layers_convolve() -> None:
    layer = engine.nn.Conv2d(2, 4, 2, dtype=engine.complex64)
    assert layer(engine.ones(1, 2, 4, 4, dtype=engine.complex64)).shape == (1, 4, 3, 3)


def test_complex_log_sums() -> None:
    x, y = waves(5, 2), waves(5, 2)
    sums, running = engine.logaddexp(x, y * 1j), engine.logcumsumexp(x, 0)
    with engine.no_grad():
        np.testing.assert_allclose(sums.exp().numpy(), (x.exp() + (y * 1j).exp()).numpy(), rtol=1e-12)
        np.testing.assert_allclose(running.exp().numpy(), x.exp().cumsum(0).numpy(), rtol=1e-12)
    assert engine.autograd.gradcheck(lambda z: engine.logcumsumexp(z, 0), (x,), fast_mode=True)
    large = engine.tensor([800 + 1j, -math.inf + 0j])
    assert engine.logaddexp(large, large.flip(0)).tolist() == [800 + 1j, 800 + 1j]
    nothing = engine.tensor([-math.inf + 0j])
    assert engine.logaddexp(nothing, nothing).real.item() == -math.inf


def test_silu_of_complex_numbers() -> None:
    z = waves(4).detach()
    np.testing.assert_allclose(engine.nn.functional.silu(z).numpy(), (z * engine.sigmoid(z)).numpy(), rtol=1e-14)
