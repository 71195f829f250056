"""gradcheck and gradgradcheck must find what is wrong, and only that."""

import numpy as np
import pytest

import engine
from engine.autograd import Function, gradcheck, gradgradcheck
from engine.autograd.gradcheck import GradcheckError

MODES = pytest.mark.parametrize("fast_mode", [False, True], ids=["elementwise", "projection"])


def numbers(*shape, dtype=engine.float64):
    engine.manual_seed(1)
    return engine.randn(shape, dtype=dtype).requires_grad_()


def with_backward(backward, forward=lambda ctx, x: (ctx.save_for_backward(x), x * x)[1]):
    return type("Mine", (Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)}).apply


def right(ctx, g):
    return g * 2 * ctx.saved_tensors[0]


@MODES
def test_right_derivatives_pass(fast_mode):
    a, b = numbers(3, 2), numbers(2)
    assert gradcheck(lambda a, b: (a * b, (a @ b).sin()), (a, b), fast_mode=fast_mode)
    assert gradgradcheck(lambda a, b: (a * b, (a @ b).sin()), (a, b), fast_mode=fast_mode)
    assert gradcheck(with_backward(right), a, fast_mode=fast_mode)
    assert gradcheck(lambda a, n, c: a * n + c, (a, 3.0, engine.ones(2, dtype=engine.float64)), fast_mode=fast_mode)


@MODES
def test_inputs_keep_their_values(fast_mode):
    a = numbers(3)
    before, version = a.tolist(), a._version
    gradcheck(lambda a: a.exp(), a, fast_mode=fast_mode)
    assert a.tolist() == before
    assert a._version == version
    assert a.grad is None


@MODES
@pytest.mark.parametrize(
    "wrong",
    [
        lambda ctx, g: g * 2 * ctx.saved_tensors[0] * 1.01,
        lambda ctx, g: g * 0,
        lambda ctx, g: (g * 2 * ctx.saved_tensors[0]).flip(0),
        lambda ctx, g: g * 2 * ctx.saved_tensors[0] + engine.tensor([0.0, 0.0, 0.01], dtype=engine.float64),
        lambda ctx, g: None,
    ],
    ids=["factor", "zero", "order", "one entry", "undefined"],
)
def test_wrong_derivatives_are_found(wrong, fast_mode):
    a = numbers(3)
    with pytest.raises(GradcheckError, match="Jacobian mismatch for output 0 with respect to input 0"):
        gradcheck(with_backward(wrong), a, fast_mode=fast_mode)
    assert not gradcheck(with_backward(wrong), a, fast_mode=fast_mode, raise_exception=False)


@MODES
def test_a_wrong_second_derivative_is_found(fast_mode):
    def first_right_second_wrong(ctx, g):
        return g * 2 * ctx.saved_tensors[0].detach()

    a = numbers(3)
    assert gradcheck(with_backward(first_right_second_wrong), a, fast_mode=fast_mode)
    with pytest.raises(GradcheckError, match="Jacobian mismatch"):
        gradgradcheck(with_backward(first_right_second_wrong), a, fast_mode=fast_mode)


@MODES
def test_which_output_and_input_is_said(fast_mode):
    square, wrong = with_backward(right), with_backward(lambda ctx, g: g)
    a, b = numbers(2), numbers(3)
    with pytest.raises(GradcheckError, match="for output 1 with respect to input 1"):
        gradcheck(lambda a, b: (square(a), wrong(b)), (a, b), fast_mode=fast_mode)


@MODES
def test_complex_functions(fast_mode):
    z = engine.tensor([1 + 2j, -0.5 + 1j, 3j], dtype=engine.complex128, requires_grad=True)

    def conjugated(ctx, g):
        return g * engine.from_numpy(np.conj(2 * ctx.saved_tensors[0].detach().numpy()))

    assert gradcheck(with_backward(conjugated), z, fast_mode=fast_mode)
    with pytest.raises(GradcheckError, match="Jacobian mismatch"):
        gradcheck(with_backward(lambda ctx, g: g * (2 * ctx.saved_tensors[0]).detach()), z, fast_mode=fast_mode)


@MODES
def test_layouts_and_sizes(fast_mode):
    for x in (
        numbers(3, 2).t().detach().requires_grad_(),
        numbers(4, 3)[::2, 1:].detach().requires_grad_(),
        engine.zeros(2, 0, dtype=engine.float64, requires_grad=True),
        engine.tensor(0.5, dtype=engine.float64, requires_grad=True),
    ):
        assert gradcheck(lambda x: (x * x).exp(), x, fast_mode=fast_mode)
        assert gradgradcheck(lambda x: (x * x).exp(), x, fast_mode=fast_mode, gen_non_contig_grad_outputs=True)


@MODES
def test_an_output_that_does_not_depend_on_an_input(fast_mode):
    a, b = numbers(2), numbers(2)
    assert gradcheck(lambda a, b: a * 2 + b * 0, (a, b), fast_mode=fast_mode)
    assert gradcheck(lambda a, b: a * 2, (a, b), fast_mode=fast_mode)
    assert gradcheck(lambda a: a.detach() * 0 + 1, a, fast_mode=fast_mode)
    with pytest.raises(GradcheckError, match="expected to be zero"):
        gradcheck(lambda a: a.detach() * 2, a, fast_mode=fast_mode)


def test_a_backward_that_differs_from_run_to_run_is_found():
    runs = []

    def unsteady(ctx, g):
        runs.append(1)
        return g * 2 * ctx.saved_tensors[0] * (1 + len(runs) * 1e-9)

    a = numbers(2)
    with pytest.raises(GradcheckError, match="Backward is not reentrant"):
        gradcheck(with_backward(unsteady), a, fast_mode=True)
    assert gradcheck(with_backward(unsteady), a, fast_mode=True, nondet_tol=1e-6)


def test_undefined_gradients_must_be_as_good_as_zeros():
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x)
        return x * x

    def careless(ctx, g):
        return (1.0 if g is None else g) * 2 * ctx.saved_tensors[0]

    a = numbers(2)
    with pytest.raises(GradcheckError, match="undefined or zero when all output grads are undefined or zero"):
        gradcheck(with_backward(careless, forward), a)
    assert gradcheck(with_backward(careless, forward), a, check_undefined_grad=False)


def test_the_random_state_is_left_alone():
    engine.manual_seed(5)
    before = engine.get_rng_state().tolist()
    a = engine.ones(3, dtype=engine.float64, requires_grad=True)
    gradgradcheck(lambda a: a.exp(), a, fast_mode=True)
    assert engine.get_rng_state().tolist() == before


def test_what_cannot_be_checked_is_said():
    with pytest.raises(ValueError, match="at least one input tensor to require gradient"):
        gradcheck(lambda a: a, engine.ones(2))
    with pytest.warns(UserWarning, match="Input #0 requires gradient and is not a double precision"):
        gradcheck(lambda a: a * 2, engine.ones(2, requires_grad=True), atol=1e-1, eps=1e-2)
    expanded = engine.ones(1, dtype=engine.float64).expand(3).requires_grad_()
    with pytest.raises(RuntimeError, match="0th input has a dimension with stride 0"):
        gradcheck(lambda a: a * 2, expanded)
    for option in ("check_forward_ad", "check_batched_grad"):
        with pytest.raises(NotImplementedError, match="not implemented"):
            gradcheck(lambda a: a, numbers(2), **{option: True})


START = 0.5


@MODES
@pytest.mark.parametrize(
    ("function", "what"),
    [
        (
            lambda x: x.reshape(-1) if bool(x.detach()[0, 0] > START) else x * 1,
            "the same shape when inputs",
        ),
        (lambda x: x.float() if bool(x.detach()[0, 0] > START) else x * 1, "the same dtype when inputs"),
    ],
    ids=["shape", "dtype"],
)
def test_outputs_whose_form_depends_on_values_are_found(function, what, fast_mode):
    x = engine.full((2, 2), START, dtype=engine.float64, requires_grad=True)
    with pytest.raises(GradcheckError, match=what):
        gradcheck(function, x, fast_mode=fast_mode)
