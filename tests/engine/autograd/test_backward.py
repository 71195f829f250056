"""The calls `backward` and `grad`. Rows E24-E33, E45, E52, E53 of the specification's checklist, and the errors of bad
calls.
"""

import warnings

import pytest

import engine
from engine.autograd import Function, grad
from engine.autograd.graph import GradientEdge, get_gradient_edge
from tests.engine.autograd.leaves import leaf


class Fail(Function):
    """Its backward must not run."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        raise AssertionError("this branch is not needed")


def test_E24_a_branch_that_is_not_needed_does_not_run():
    a, b = leaf(1.0, 2.0), leaf(3.0, 4.0)
    y = Fail.apply(a) * 2 + b * 3
    (g,) = grad(y.sum(), b, retain_graph=True)
    assert g.tolist() == [3.0, 3.0]
    y.sum().backward(inputs=[b])
    assert b.grad.tolist() == [3.0, 3.0]
    assert a.grad is None
    with pytest.raises(AssertionError, match="not needed"):
        (Fail.apply(a) + b).sum().backward()


def test_E24_writes_through_views_respect_what_is_needed():
    a, b = leaf(1.0, 2.0), leaf(3.0, 4.0)
    base = b * 1
    base[0] = Fail.apply(a)[0]
    (g,) = grad(base.sum(), b)
    assert g.tolist() == [0.0, 1.0]


def test_E24_gradients_nobody_asked_for_are_not_computed():
    computed = []

    class Watch(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            computed.append(g)
            return g

    x, w = leaf(1.0, 2.0), leaf(3.0, 4.0)
    y = (x * Watch.apply(w)).sum()
    assert grad(y, x)[0].tolist() == [3.0, 4.0]
    assert computed == []


def test_E25_gradients_of_non_leaves():
    x = leaf(1.0, 2.0)
    y = x * 3
    z = y * y
    gy, gx = grad(z.sum(), [y, x], retain_graph=True)
    assert gy.tolist() == [6.0, 12.0]
    assert gx.tolist() == [18.0, 36.0]
    assert x.grad is None
    for _ in range(2):  # the graph is retained, nothing accumulates
        assert grad(z.sum(), y, retain_graph=True)[0].tolist() == [6.0, 12.0]


def test_E25_several_outputs_of_one_node_captured():
    class Pair(Function):
        @staticmethod
        def forward(ctx, x):
            return x + 2, x + 4

        @staticmethod
        def backward(ctx, a, b):
            return a + b + 10

    x = leaf(2.0)
    log = []
    x.register_hook(log.append)
    p, q = Pair.apply(x)
    for tensor in (x, p, q):
        tensor.register_hook(lambda g: log.append(g.item()))
    y = p * 1 + q * 3
    gp, gq = grad(y, [p, q], retain_graph=True)
    assert (gp.item(), gq.item()) == (1.0, 3.0)
    assert log == [1.0, 3.0]
    gp, gx = grad(y, [p, x])
    assert (gp.item(), gx.item()) == (1.0, 14.0)


def test_E25_the_same_input_twice():
    x = leaf(1.0)
    first, second = grad(x * 3, [x, x])
    assert (first.item(), second.item()) == (3.0, 3.0)


def test_E26_materialize_grads():
    x, unused = leaf(1.0, 2.0), leaf(3.0)
    gx, gu = grad((x * 2).sum(), [x, unused], materialize_grads=True)
    assert gx.tolist() == [2.0, 2.0]
    assert gu.tolist() == [0.0]
    with pytest.raises(ValueError, match="Expected allow_unused to be True or not passed when materialize_grads=True"):
        grad((x * 2).sum(), x, materialize_grads=True, allow_unused=False)


def test_E27_a_gradient_edge_owns_the_graph():
    x = leaf(1.0, 2.0)
    y = x * 2
    edge = get_gradient_edge(y)
    assert isinstance(edge, GradientEdge)
    assert edge.node is y.grad_fn
    assert edge.output_nr == 0
    del y
    (g,) = grad(edge, x, engine.ones(2), retain_graph=True)
    assert g.tolist() == [2.0, 2.0]
    engine.autograd.backward(edge, engine.ones(2))
    assert x.grad.tolist() == [2.0, 2.0]
    scalar = get_gradient_edge((x * 5).sum())
    engine.autograd.backward(scalar)
    assert x.grad.tolist() == [7.0, 7.0]
    with pytest.raises(RuntimeError, match="not possible to get the gradient edge"):
        get_gradient_edge(x.detach())


def test_E27_gradient_edges_as_inputs():
    x = leaf(1.0, 2.0)
    y = x * 2
    z = (y * y).sum()
    gy, gx = grad(z, [get_gradient_edge(y), get_gradient_edge(x)], retain_graph=True)
    assert gy.tolist() == [4.0, 8.0]
    assert gx.tolist() == [8.0, 16.0]
    z.backward(inputs=[get_gradient_edge(x)])
    assert x.grad.tolist() == [8.0, 16.0]


def test_E28_backward_with_inputs():
    x, w = leaf(1.0, 2.0), leaf(3.0, 4.0)
    y = x * w
    y.sum().backward(inputs=[x], retain_graph=True)
    assert x.grad.tolist() == [3.0, 4.0]
    assert w.grad is None
    y.sum().backward(inputs=[x, w])
    assert x.grad.tolist() == [6.0, 8.0]
    assert w.grad.tolist() == [1.0, 2.0]
    with pytest.raises(RuntimeError, match="cannot be empty"):
        y.sum().backward(inputs=[])
    with pytest.raises(RuntimeError, match="does not require grad"):
        (x * 1).sum().backward(inputs=[engine.ones(2)])


def test_E28_backward_with_non_leaf_inputs():
    x = leaf(1.0, 2.0)
    b = x * 2
    c = b * 3
    c.sum().backward(inputs=[b], retain_graph=True)
    assert b.grad.tolist() == [3.0, 3.0]
    assert x.grad is None
    c.sum().backward(inputs=[b, x])
    assert b.grad.tolist() == [6.0, 6.0]
    assert x.grad.tolist() == [6.0, 6.0]


def test_E28_an_input_that_is_not_reached_gets_nothing():
    x, other = leaf(1.0), leaf(2.0)
    (x * 2).backward(inputs=[other])
    assert other.grad is None
    assert x.grad is None


def test_E29_a_single_tensor_as_inputs():
    x, w = leaf(1.0, 2.0), leaf(3.0, 4.0)
    (x * w).backward(engine.ones(2), inputs=x)
    assert x.grad.tolist() == [3.0, 4.0]
    assert w.grad is None


def test_E30_a_root_without_history():
    with pytest.raises(RuntimeError, match="element 0 of tensors does not require grad and does not have a grad_fn"):
        engine.ones(1).backward()
    with pytest.raises(RuntimeError, match="element 1 of tensors"):
        engine.autograd.backward([leaf(1.0) * 1, engine.ones(1)])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: (x * 2).backward(), RuntimeError, r"only for scalar outputs, got shape \[2\]"),
        (lambda x: (x * 2).backward(engine.ones(3)), RuntimeError, r"grad_output\[0\] has a shape of \[3\]"),
        (lambda x: (x * 2).backward([1]), TypeError, "gradients can be either Tensors or None, but got int"),
        (lambda x: (x * 2).backward(engine.ones(2, dtype=engine.complex64)), RuntimeError, "For complex Tensors"),
        (
            lambda x: engine.autograd.backward([x * 2, x], [engine.ones(2)]),
            RuntimeError,
            "got 2 tensors and 1 gradients",
        ),
        (lambda x: engine.autograd.backward(["x"]), TypeError, "expected Tensors as roots, got str"),
        (lambda x: (x * 1j).sum().backward(), RuntimeError, "only for real scalar outputs but got engine.complex64"),
        (lambda x: grad((x * 2).sum(), []), RuntimeError, r"`inputs` argument to `grad\(\)` cannot be empty"),
        (lambda x: grad((x * 2).sum(), engine.ones(2)), RuntimeError, "does not require grad"),
        (lambda x: grad((x * 2).sum(), "x"), TypeError, "expected a Tensor or a GradientEdge, got str"),
        (lambda x: grad((x * 2).sum(), x, is_grads_batched=True), NotImplementedError, "is_grads_batched"),
        (lambda x: grad([], x), RuntimeError, "index 0 appears to not have been used"),
    ],
)
def test_E30_bad_calls(call, error, message):
    with pytest.raises(error, match=message):
        call(leaf(1.0, 2.0))


def test_a_root_gradient_is_cast_to_the_roots_dtype():
    x = leaf(1.0, 2.0)
    (x * 2).backward(engine.ones(2, dtype=engine.float64))
    assert x.grad.dtype is engine.float32


@pytest.mark.parametrize(
    "make", [lambda x: (x + x).sum(), lambda x: x.sum(), lambda x: (x - 3).sum()], ids=["x+x", "sum", "x-3"]
)
def test_E31_twice_without_saved_values(make):
    x = leaf(1.0, 2.0)
    y = make(x)
    y.backward()
    first = x.grad.tolist()
    y.backward()
    assert x.grad.tolist() == [2 * value for value in first]


@pytest.mark.parametrize(
    "make", [lambda x: (x * x).sum(), lambda x: x.exp().sum(), lambda x: (x * 2).sum()], ids=["x*x", "exp", "x*2"]
)
def test_E31_twice_with_saved_values(make):
    x = leaf(1.0, 2.0)
    y = make(x)
    y.backward(retain_graph=True)
    y.backward()  # the second one was promised, and frees
    with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
        y.backward()
    with pytest.raises(RuntimeError, match=r"[Ss]pecify retain_graph=True"):
        grad(y, x)


def test_E31_create_graph_retains_by_default():
    x = leaf(2.0)
    y = x * x * x
    grad(y, x, create_graph=True)
    grad(y, x)
    with pytest.raises(RuntimeError, match="second time"):
        grad(y, x)


def test_E32_create_graph_warns_once_a_place():
    x = leaf(2.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            (x * x).backward(create_graph=True)
    assert len(caught) == 1
    assert "reference cycle" in str(caught[0].message)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        grad(x * x, x, create_graph=True)
    x.grad = None


def test_E33_what_ran_under_no_grad_cannot_be_differentiated():
    x = leaf(2.0)
    with engine.no_grad():
        y = x * x
    with pytest.raises(RuntimeError, match="does not require grad"):
        y.backward()

    @engine.no_grad
    def f(x):
        return x * x

    assert not f(x).requires_grad


def test_E45_a_sum_of_parts_has_the_gradient_of_the_whole():
    engine.manual_seed(0)
    x, w = engine.randn(8, 4, dtype=engine.float64), engine.randn(3, 4, dtype=engine.float64)
    whole = w.clone().requires_grad_()
    (engine.linear(x, whole) ** 2).sum().backward()
    parts = w.clone().requires_grad_()
    for shard in x.chunk(4):
        (engine.linear(shard, parts) ** 2).sum().backward()
    assert engine.allclose(whole.grad, parts.grad, rtol=1e-12)
    joined = w.clone().requires_grad_()
    losses = [(engine.linear(shard, joined) ** 2).sum() for shard in x.chunk(4)]
    engine.autograd.backward(losses)
    assert engine.allclose(whole.grad, joined.grad, rtol=1e-12)


def test_E52_a_root_given_twice_counts_twice():
    x = leaf(1.0, 2.0)
    y = x * x
    engine.autograd.backward([y, y], [engine.ones(2), engine.ones(2)])
    assert x.grad.tolist() == [4.0, 8.0]


def test_E52_a_root_that_another_root_leads_to():
    x = leaf(1.0, 1.0)
    y = x * x
    z = y * 2
    engine.autograd.backward([z, y], [engine.ones(2), engine.full((2,), 10.0)])
    assert x.grad.tolist() == [24.0, 24.0]


def test_E52_leaves_as_roots():
    x, w = leaf(1.0), leaf(2.0)
    engine.autograd.backward([x, w, x], [engine.ones(1), engine.full((1,), 3.0), engine.ones(1)])
    assert x.grad.item() == 2.0
    assert w.grad.item() == 3.0
    assert grad([x], [x])[0].item() == 1.0


def test_E53_an_input_that_is_not_reached():
    x, other = leaf(1.0), leaf(2.0)
    with pytest.raises(
        RuntimeError, match="The differentiated Tensor at index 1 appears to not have been used in the graph"
    ):
        grad(x * 2, [x, other])
    gx, go = grad(x * 2, [x, other], allow_unused=True)
    assert gx.item() == 2.0
    assert go is None
    y = x * 3
    with pytest.raises(RuntimeError, match="index 0"):
        grad(x * 2, [y])


def test_create_graph_and_retain_graph_through_several_orders():
    x = engine.tensor(2.0, dtype=engine.float64, requires_grad=True)
    y = x**4
    for expected in (32.0, 48.0, 48.0, 24.0):
        (y,) = grad(y, x, create_graph=True)
        assert y.item() == expected


def test_multi_output_nodes_with_some_and_with_no_gradients():
    x = engine.tensor([[3.0, 1.0], [2.0, 5.0]], requires_grad=True)
    values, indices = x.max(1)
    assert not indices.requires_grad
    values.sum().backward()
    assert x.grad.tolist() == [[1.0, 0.0], [0.0, 1.0]]

    class Nothing(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            return None

    x.grad = None
    Nothing.apply(x.max(1)[0]).sum().backward()
    assert x.grad is None


def test_zeros_of_a_gradient_that_is_differentiated_again_require_grad():
    x, unused = leaf(2.0), leaf(3.0)
    for create_graph in (False, True):
        _, zeros = engine.autograd.grad(x * x, (x, unused), create_graph=create_graph, materialize_grads=True)
        assert zeros.tolist() == [0.0]
        assert zeros.requires_grad is create_graph
    (second,) = engine.autograd.grad(zeros, unused, materialize_grads=True)
    assert second.tolist() == [0.0]
