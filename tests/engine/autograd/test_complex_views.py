"""Writing in place through views that look at complex numbers as real ones, or the other way round."""

import pytest

import engine
from engine.autograd import gradcheck, gradgradcheck

C, F = engine.complex128, engine.float64


def _scaled_imag(x, y, s):
    a = x.clone()
    a.imag.mul_(s)
    return a


def _real_by_imag(x, y, s):
    a = y * 3
    c = engine.view_as_complex(a)
    c.real.mul_(c.imag)
    return a


def _one_column(x, y, s):
    a = x * 1
    engine.view_as_real(a)[:, 0].mul_(s)
    return a


def _as_complex(x, y, s):
    a = y.clone()
    engine.view_as_complex(a).mul_(2 + 1j)
    return a


def _view_of_a_written_base(x, y, s):
    a = x.clone()
    real, part = a.real, engine.view_as_complex(engine.view_as_real(a))
    a.mul_(1j)
    return real * part


def _two_views(x, y, s):
    a = x.clone()
    imag = a.imag
    engine.view_as_real(a).mul_(3)
    return imag * s


def _base_without_history(x, y, s):
    a = engine.zeros(3, dtype=C)
    a.imag.copy_(s)
    a.real.add_(s * 2)
    return a * x


def _complex_view_of_a_written_base(x, y, s):
    a = y * 2
    c = engine.view_as_complex(a)
    a.mul_(y)
    return c


def _complex_values_into_a_real_base(x, y, s):
    a = engine.zeros(2, 2, dtype=F)
    engine.view_as_complex(a).copy_(x[:2])
    return a * y


def _view_of_a_view(x, y, s):
    a = x.clone()
    a[1:].imag[0] = s[0]
    return a


def _out_of_place_result(x, y, s):
    a = x.clone()
    a.imag.masked_fill_(s.detach() > 0, 0)
    a.t().real.clamp_(max=0.6)
    return a


CASES = {name[1:]: case for name, case in globals().items() if name.startswith("_") and hasattr(case, "__code__")}


@pytest.mark.parametrize("name", CASES)
def test_gradients(name):
    inputs = (
        engine.tensor([1 + 2j, 3 - 1j, 0.5 + 0.25j], dtype=C, requires_grad=True),
        engine.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=F, requires_grad=True),
        engine.tensor([0.5, 0.7, -0.2], dtype=F, requires_grad=True),
    )

    def function(*inputs):
        result = CASES[name](*inputs)
        return result * result  # so that the values count as well

    assert gradcheck(function, inputs)
    assert gradgradcheck(function, inputs)


def test_a_leaf_is_not_written_through_such_a_view():
    x = engine.ones(2, dtype=C, requires_grad=True)
    with pytest.raises(RuntimeError, match="a view of a leaf Variable that requires grad"):
        x.imag.mul_(2)
