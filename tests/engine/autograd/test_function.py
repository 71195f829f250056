"""`autograd.Function`. Rows E18-E23, E43, E54 of the specification's checklist."""

import gc

import pytest

import engine
from engine.autograd import Function
from engine.autograd.function import once_differentiable
from tests.engine.autograd.leaves import leaf


def function(forward, backward=lambda ctx, *gradients: gradients[0]):
    return type("Mine", (Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)})


def test_E18_undefined_gradients_stay_undefined():
    nothing = function(lambda ctx, x: x * 2, lambda ctx, g: None)
    x = leaf(1.0)
    nothing.apply(x).backward()
    assert x.grad is None
    nothing.apply(x.exp().sum()).backward()
    assert x.grad is None
    nothing.apply(x * 3 + x).sum().backward()
    assert x.grad is None
    (nothing.apply(x) + x * 5).sum().backward()
    assert x.grad.item() == 5.0


def test_E19_gradients_are_materialized():
    seen = []

    def backward(ctx, a, b):
        seen.append((a, b))
        return a

    pair = function(lambda ctx, x: (x * 2, x * 3), backward)
    x = leaf(1.0, 2.0)
    y, _ = pair.apply(x)
    y.sum().backward()
    a, b = seen[0]
    assert a.tolist() == [1.0, 1.0]
    assert b.tolist() == [0.0, 0.0]


def test_E19_gradients_are_not_materialized_on_request():
    seen = []

    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    def backward(ctx, a, b):
        seen.append((a, b))
        return b

    x = leaf(1.0, 2.0)
    _, z = function(forward, backward).apply(x)
    z.sum().backward()
    assert seen[0][0] is None
    assert seen[0][1].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("materialize", [True, False])
def test_E19_gradients_of_non_differentiable_outputs(materialize):
    seen = []

    def forward(ctx, x):
        first, second = x * 2, x * 3
        ctx.mark_non_differentiable(second)
        ctx._materialize_non_diff_grads = materialize
        return first, second

    def backward(ctx, a, b):
        seen.append(b)
        return a

    x = leaf(1.0)
    y, z = function(forward, backward).apply(x)
    assert y.requires_grad
    assert not z.requires_grad
    assert z.grad_fn is None
    y.backward()
    assert (seen[0] is None) == (not materialize)


def test_E20_a_function_that_returns_its_input():
    identity = function(lambda ctx, x: x, lambda ctx, g: g * 2)
    for x in (leaf(1.0), leaf(1.0) * 1):
        y = identity.apply(x)
        assert y is not x
        assert y.grad_fn.name() == "MineBackward"
        assert y.data_ptr() == x.data_ptr()
    x = leaf(5.0)
    identity.apply(x).backward()
    assert x.grad.item() == 2.0
    assert not identity.apply(engine.ones(1)).requires_grad
    with pytest.raises(RuntimeError, match="created inside a custom Function"):
        identity.apply(x * 1).mul_(2)


def test_E21_inputs_and_outputs_that_are_no_tensors():
    given = []

    def forward(ctx, a, number, b, text, none):
        assert ctx.needs_input_grad == (True, False, False, False, False)
        assert (number, text, none) == (3, "text", None)
        return a * number, "more", None, b * 2, 7

    def backward(ctx, *gradients):
        given.extend(gradients)
        return gradients[0] * 3, None, None, None, None

    a, b = leaf(1.0), engine.ones(1)
    mixed = function(forward, backward)
    y, text, none, z, number = mixed.apply(a, 3, b, "text", None)
    assert (text, none, number) == ("more", None, 7)
    assert len(y.grad_fn.next_functions) == 2  # one a tensor
    y.backward()
    assert a.grad.item() == 3.0
    assert given[1:3] == [None, None]
    assert given[4] is None
    assert z.requires_grad


def test_E21_no_tensors_at_all():
    assert function(lambda ctx, n: n + 1).apply(3) == 4
    assert function(lambda ctx: None).apply() is None


def test_E21_a_gradient_for_what_is_no_tensor_is_refused():
    wrong = function(lambda ctx, n, x: x * n, lambda ctx, g: (g, g))
    with pytest.raises(RuntimeError, match="returned a gradient different from None at position 1"):
        wrong.apply(2, leaf(1.0)).backward()


def test_E21_integer_outputs_carry_no_gradient():
    y = function(lambda ctx, x: (x * 2).long()).apply(leaf(1.0))
    assert not y.requires_grad


def test_E22_an_exception_in_backward_comes_out_as_it_is():
    class Own(Exception):
        pass

    def backward(ctx, g):
        raise Own("own")

    x = leaf(1.0)
    y = function(lambda ctx, x: x * 2, backward).apply(x)
    with pytest.raises(Own, match="own") as caught:
        (y * 3).backward()
    assert any("Error detected in MineBackward" in note for note in caught.value.__notes__)
    (x * 2).backward()
    assert x.grad.item() == 2.0


def test_E23_once_differentiable_blocks_the_second_derivative():
    class Once(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @once_differentiable
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            assert not engine.is_grad_enabled()
            return g * 2 * x

    x = leaf(3.0)
    Once.apply(x).backward()
    assert x.grad.item() == 6.0
    weight = leaf(1.0)
    (g,) = engine.autograd.grad(Once.apply(x) * weight, x, create_graph=True)
    assert g.requires_grad
    assert g.grad_fn.name() == "_BlockedBackward"
    with pytest.raises(RuntimeError, match="differentiate twice a function that was marked with @once_differentiable"):
        g.backward()


def test_a_function_can_be_differentiated_twice():
    class Cube(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * 3 * x**2

    x = engine.tensor([1.5, -2.0], dtype=engine.float64, requires_grad=True)
    assert engine.autograd.gradcheck(Cube.apply, x)
    assert engine.autograd.gradgradcheck(Cube.apply, x)


def test_saved_outputs_can_be_differentiated_and_close_no_cycle():
    class Exp(Function):
        @staticmethod
        def forward(ctx, x):
            result = x.exp()
            ctx.save_for_backward(result)
            return result

        @staticmethod
        def backward(ctx, g):
            (result,) = ctx.saved_tensors
            return g * result

    x = engine.tensor([0.5], dtype=engine.float64, requires_grad=True)
    assert engine.autograd.gradgradcheck(Exp.apply, x)
    gc.collect()
    gc.disable()
    try:
        for _ in range(100):
            Exp.apply(x).sum().backward()
        assert gc.collect() == 0
    finally:
        gc.enable()


# --- E43: what is written in place ------------------------------------------------------------------------------------


def double_in_place(ctx, x):
    x.mul_(2)
    ctx.mark_dirty(x)
    return x


DOUBLE = function(double_in_place, lambda ctx, g: g * 2)


def test_E43_a_dirty_input_becomes_the_output():
    x = leaf(1.0, 2.0)
    y = x * 1
    z = DOUBLE.apply(y)
    assert z is y
    assert y.grad_fn.name() == "MineBackward"
    assert y._version == 2  # the write, and its announcement
    y.sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]


def test_E43_a_dirty_view_rewrites_its_base():
    x = leaf(1.0, 1.0, 1.0, 1.0)
    base = x * 1
    view = base[:2]
    assert DOUBLE.apply(view) is view
    assert base.grad_fn.name() == "CopySlices"
    base.sum().backward()
    assert x.grad.tolist() == [2.0, 2.0, 1.0, 1.0]


def test_E43_a_view_follows_a_dirty_base():
    x = leaf(1.0, 1.0, 1.0)
    base = x * 1
    view = base[:2]
    DOUBLE.apply(base)
    (view * 3).sum().backward()
    assert x.grad.tolist() == [6.0, 6.0, 0.0]


def test_E43_what_must_not_be_dirty():
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        DOUBLE.apply(leaf(1.0))
    with pytest.raises(RuntimeError, match="a view of a leaf Variable that requires grad"):
        DOUBLE.apply(leaf(1.0, 2.0)[:1])

    def not_returned(ctx, x):
        ctx.mark_dirty(x)
        return x * 2

    with pytest.raises(RuntimeError, match="must all be outputs of the Function"):
        function(not_returned).apply(leaf(1.0) * 1)


def test_E43_views_that_forward_returned_cannot_be_written():
    x = leaf(1.0, 2.0)
    for forward in (lambda ctx, x: x[:1], lambda ctx, x: x.clone()[:1]):
        y = function(forward, lambda ctx, g: engine.cat([g, g])).apply(x * 1)
        with pytest.raises(RuntimeError, match="created inside a custom Function"):
            y.mul_(2)

    def several(ctx, x):
        made = x.clone()
        return made, made[:1]

    _, view = function(several).apply(x * 1)
    with pytest.raises(RuntimeError, match="returns multiple views"):
        view.mul_(2)
    base = x * 1
    y = function(lambda ctx, x: x[:1], lambda ctx, g: engine.cat([g, g])).apply(base)
    base.mul_(2)
    with pytest.raises(RuntimeError, match="its base or another view of its base has been modified"):
        _ = y.grad_fn


def test_E43_a_saved_input_that_was_written_is_noticed():
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    x = leaf(1.0)
    y = x * 1
    z = function(forward, lambda ctx, g: (ctx.saved_tensors, g)[1]).apply(y)
    y.mul_(2)
    with pytest.raises(RuntimeError, match=r"modified by an inplace operation.*is at version 1; expected version 0"):
        z.backward()


def test_E43_an_input_declared_non_differentiable_is_returned_detached():
    def forward(ctx, x):
        ctx.mark_non_differentiable(x)
        return x

    y = leaf(1.0) * 1
    z = function(forward).apply(y)
    assert z is not y
    assert not z.requires_grad
    assert y.requires_grad


# --- E54 and other wrong returns --------------------------------------------------------------------------------------


def test_E54_surplus_gradients_must_be_none():
    x = leaf(1.0)
    function(lambda ctx, x: x * 2, lambda ctx, g: (g, None, None)).apply(x).backward()
    assert x.grad.item() == 1.0
    for backward, got in ((lambda ctx, g: (g, g), 2), (lambda ctx, g: (g, None, g), 3)):
        with pytest.raises(
            RuntimeError, match=rf"MineBackward returned an incorrect number of gradients \(expected 1, got {got}\)"
        ):
            function(lambda ctx, x: x * 2, backward).apply(x).backward()
    with pytest.raises(RuntimeError, match=r"expected 2, got 1"):
        function(lambda ctx, x, n: x * n, lambda ctx, g: g).apply(x, 2.0).backward()


@pytest.mark.parametrize(
    ("gradient", "message"),
    [
        (3, r"expected Variable or None \(got int\)"),
        (
            engine.ones(3),
            r"Function MineBackward returned an invalid gradient at index 0 - got \[3\] but expected .* \[2\]",
        ),
        (
            engine.ones(2, dtype=engine.complex64),
            "MineBackward returned an invalid gradient at index 0 - got engine.complex64",
        ),
        (engine.ones(2, device="meta"), "expected device cpu but got meta"),
    ],
)
def test_E54_wrong_gradients_name_the_function(gradient, message):
    x = leaf(1.0, 2.0)
    y = function(lambda ctx, x: x * 2, lambda ctx, g: gradient).apply(x)
    with pytest.raises(RuntimeError, match=message):
        y.sum().backward()


# --- the context ------------------------------------------------------------------------------------------------------


def test_saved_tensors_are_freed_by_backward_and_attributes_are_not():
    def forward(ctx, x):
        ctx.save_for_backward(x, None)
        ctx.number = 7
        return x * 2

    def backward(ctx, g):
        x, none = ctx.saved_tensors
        assert none is None
        return g * ctx.number * x

    x = leaf(2.0)
    y = function(forward, backward).apply(x)
    assert y.grad_fn.number == 7
    assert y.grad_fn.needs_input_grad == (True,)
    y.backward(retain_graph=True)
    y.backward()
    assert x.grad.item() == 28.0
    with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
        y.backward()
    with pytest.raises(RuntimeError, match="already been freed"):
        _ = y.grad_fn.saved_tensors


def test_only_tensors_can_be_saved():
    with pytest.raises(TypeError, match="argument 1 is of type int"):
        function(lambda ctx, x: ctx.save_for_backward(x, 3)).apply(leaf(1.0))


def test_setup_context_sees_default_arguments():
    class Scale(Function):
        @staticmethod
        def forward(x, factor=3.0):
            return x * factor

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.factor = inputs[1]

        @staticmethod
        def backward(ctx, g):
            return g * ctx.factor, None

    x = leaf(1.0)
    Scale.apply(x).backward()
    Scale.apply(x, factor=4.0).backward()
    assert x.grad.item() == 7.0


def test_vjp_is_another_name_for_backward():
    class Square(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def vjp(ctx, g):
            return g * 2 * ctx.saved_tensors[0]

    x = leaf(3.0)
    Square.apply(x).backward()
    assert x.grad.item() == 6.0

    class Both(Square):
        backward = Square.vjp

    with pytest.raises(RuntimeError, match="both 'backward' and 'vjp'"):
        Both.apply(x).backward()


def test_wrong_uses_are_named():
    x = leaf(1.0)
    with pytest.raises(NotImplementedError, match="implement the forward function"):
        Function.apply(x)
    with pytest.raises(NotImplementedError, match="implement either the backward or vjp"):
        type("Half", (Function,), {"forward": staticmethod(lambda ctx, x: x * 2)}).apply(x).backward()
    with pytest.raises(RuntimeError, match="Legacy autograd function"):
        DOUBLE()(x)


def test_no_grad_records_nothing():
    with engine.no_grad():
        y = function(lambda ctx, x: x * 2).apply(leaf(1.0))
    assert y.grad_fn is None
