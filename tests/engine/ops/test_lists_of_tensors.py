"""Operators on lists of tensors, `cat`, `stack` and indexing: one operator for any number of them."""

import pytest

import engine
from engine.autograd import gradcheck, gradgradcheck
from engine.calls import operator
from engine.calls.namespaces import OPERATORS

JOIN = {"cat": engine.cat, "stack": engine.stack}


def leaves(count, dtype=engine.float64):
    return [engine.full((2, 3), float(n), dtype=dtype, requires_grad=True) for n in range(count)]


@pytest.mark.parametrize("name", JOIN)
def test_no_operator_and_no_code_is_made_for_a_number_of_tensors(name):
    inputs = leaves(800)
    before = OPERATORS.copy()
    for count in (1, 2, 3, 40, 41, 800):
        JOIN[name](inputs[:count]).sum().backward()
    assert before == OPERATORS
    written = OPERATORS[name].recorders
    JOIN[name](inputs[:200]).sum().backward()
    at_first = len(written)
    for count in range(201, 400):
        JOIN[name](inputs[:count]).sum().backward()
    assert len(written) == at_first
    assert all(leaf.grad.shape == (2, 3) for leaf in inputs)


@pytest.mark.parametrize("name", JOIN)
def test_plans_of_long_lists_are_few(name, monkeypatch):
    monkeypatch.setattr(operator, "_PLANS_OF_LISTS_AT_MOST", 8)
    inputs = leaves(60)
    for count in range(2, 60):
        JOIN[name](inputs[:count])
    assert len(OPERATORS[name].plans) <= 8


@pytest.mark.parametrize("count", [2, 3, 8, 9, 20])
@pytest.mark.parametrize("name", JOIN)
def test_derivatives_of_first_and_second_order(name, count):
    inputs = leaves(count)
    inputs[1] = inputs[1].detach()  # one that needs none
    inputs[0] = inputs[0].detach().mul(2).requires_grad_()

    def function(*inputs):
        joined = JOIN[name](inputs, 1)
        return joined * joined

    assert gradcheck(function, inputs)
    assert gradgradcheck(function, inputs)


@pytest.mark.parametrize(
    "count", [1, 2, 5, pytest.param(9, marks=pytest.mark.full), pytest.param(10, marks=pytest.mark.full)]
)
def test_any_number_of_index_tensors(count):
    x = engine.arange(float(2**count), dtype=engine.float64).reshape((2,) * count).requires_grad_()
    indices = tuple(engine.tensor([0, 1, 1]) if n % 2 else engine.tensor([[1], [0]]) for n in range(count))
    assert (x[indices].detach().numpy() == x.detach().numpy()[tuple(i.numpy() for i in indices)]).all()
    assert gradcheck(lambda x: x[indices] ** 2, (x,))
    assert gradgradcheck(lambda x: x[indices] ** 2, (x,))
    assert x[indices].grad_fn.name() == "IndexBackward0"


@pytest.mark.parametrize("count", [2, 9])
@pytest.mark.parametrize("name", JOIN)
def test_complex_and_half_precision_tensors(name, count):
    for dtype in (engine.complex64, engine.bfloat16):
        inputs = leaves(count, dtype)
        factor = 2 + 1j if dtype.is_complex else 2.0
        (JOIN[name](inputs) * factor).abs().sum().backward()
        assert all(leaf.grad.dtype is dtype for leaf in inputs)


@pytest.mark.parametrize("count", [2, 12])
@pytest.mark.parametrize("name", JOIN)
def test_autocast_makes_one_dtype_of_them(name, count):
    inputs = [leaf.float() if n % 2 else leaf.bfloat16() for n, leaf in enumerate(leaves(count))]
    with engine.autocast("cpu", dtype=engine.bfloat16):
        joined = JOIN[name](inputs)
    assert joined.dtype is engine.float32
    joined.sum().backward()


def test_a_node_shows_the_list_it_saved():
    x = engine.ones(3, 3, requires_grad=True)
    i, j = engine.tensor([0, 2]), engine.tensor([1, 1])
    node = x[i, j].grad_fn
    assert [index.tolist() for index in node._saved_indices] == [[0, 2], [1, 1]]


def test_saved_tensor_hooks_see_every_tensor_of_a_list():
    seen = []
    x = engine.ones(3, 3, requires_grad=True)
    indices = (engine.tensor([0, 2]), engine.tensor([1, 1]))
    with engine.autograd.graph.saved_tensors_hooks(lambda t: seen.append(t.tolist()) or t, lambda t: t):
        y = x[indices]
    y.sum().backward()
    assert seen == [[0, 2], [1, 1]]
    assert x.grad.tolist() == [[0.0, 1.0, 0.0], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
