"""Hooks on tensors, nodes, several gradients and saved tensors. Rows E4, E10-E17, E37, E44, E46, E47, E57 of the
specification's checklist.
"""

import warnings

import numpy as np
import pytest

import engine
from engine import nn
from engine.autograd.graph import (
    allow_mutation_on_saved_tensors,
    disable_saved_tensors_hooks,
    register_multi_grad_hook,
    save_on_cpu,
    saved_tensors_hooks,
)
from tests.engine.autograd.leaves import leaf


def accumulator(tensor):
    return tensor.view_as(tensor).grad_fn.next_functions[0][0]


def test_E04_order_of_hooks_on_a_leaf():
    """((1 - 2) / 5 + 0.5) * 10: tensor hook, node pre-hook, accumulation, post-accumulate hook."""
    w = leaf(0.0)
    node = accumulator(w)

    def after(parameter):
        parameter.grad.mul_(10)

    w.register_post_accumulate_grad_hook(after)
    node.register_prehook(lambda gradients: (gradients[0] / 5 + 0.5,))
    w.register_hook(lambda g: g - 2)
    w.backward(engine.tensor([1.0]))
    assert w.grad.item() == pytest.approx(((1 - 2) / 5 + 0.5) * 10)
    assert w.grad.item() == pytest.approx(3.0)


def logging_chain():
    log = []
    x = engine.tensor(1.0, requires_grad=True)
    y = x.clone()
    node = y.grad_fn.next_functions[0][0]
    node.register_prehook(lambda gs: log.append(2))
    x.register_hook(lambda g: log.append(1))
    y.grad_fn.register_prehook(lambda gs: log.append(2))
    y.register_hook(lambda g: log.append(1))
    return x, y, log


def test_E10_tensor_hooks_run_before_node_hooks_and_also_in_grad():
    x, y, log = logging_chain()
    y.retain_grad()
    y.backward(retain_graph=True)
    assert log == [1, 2, 1, 2]
    log.clear()
    engine.autograd.grad(y, x, retain_graph=True)
    assert log == [1, 2, 1]  # the leaf is only captured: its tensor hooks run, its node's do not
    log.clear()
    y.backward(inputs=[y], retain_graph=True)
    assert log == [1, 2]


def test_E10_retain_grad_sees_tensor_hooks_and_no_node_hooks():
    x = engine.tensor(2.0, requires_grad=True)
    y = x * 1
    y.retain_grad()
    y.grad_fn.register_prehook(lambda gs: (gs[0] * 100,))
    y.register_hook(lambda g: g * 3)
    y.backward()
    assert y.grad.item() == 3.0
    assert x.grad.item() == 300.0


def test_E11_retain_grad_comes_after_all_tensor_hooks():
    x = engine.tensor(2.0, requires_grad=True)
    y = x * 1
    y.retain_grad()  # registered before both
    y.register_hook(lambda g: g * 2)
    y.register_hook(lambda g: g * 2)
    y.backward()
    assert y.grad.item() == 4.0
    z = x * 1
    z.register_hook(lambda g: g * 2)
    z.retain_grad()
    z.backward()
    assert z.grad.item() == 2.0


def test_E12_node_hooks_of_a_leaf_see_the_hooked_gradient():
    log = []
    x = engine.tensor(2.0, requires_grad=True)
    y = x.clone()
    node = y.grad_fn.next_functions[0][0]
    x.register_hook(lambda g: g * 2)
    node.register_prehook(lambda gs: log.append([g.item() for g in gs]))
    node.register_hook(lambda inputs, outputs: log.append((inputs, [g.item() for g in outputs])))
    y.backward()
    assert log == [[2.0], ((), [2.0])]


def test_E13_a_post_hook_does_not_run_where_its_node_need_not():
    log = []
    a, b = leaf(1.0), leaf(2.0)
    y = a * b
    y.grad_fn.next_functions[0][0].register_hook(lambda inputs, outputs: log.append("a"))
    engine.autograd.grad(y, a, retain_graph=True)
    y.backward(inputs=b, retain_graph=True)
    assert log == []
    y.backward()
    assert log == ["a"]


def test_E14_which_hooks_run_under_grad_and_inputs():
    log = []

    def note(name):
        return lambda *_: log.append(name)

    a = leaf(1.0)
    b = a.clone()
    c = b.clone()
    for name, tensor in (("a", a), ("b", b), ("c", c)):
        tensor.register_hook(note(f"tensor {name}"))
        node = tensor.gradient_edge()[0]
        node.register_prehook(note(f"pre {name}"))
        node.register_hook(note(f"post {name}"))
    a.register_post_accumulate_grad_hook(note("accumulated a"))

    def ran(run):
        log.clear()
        run()
        return log.copy()

    of = {name: [f"tensor {name}", f"pre {name}", f"post {name}"] for name in "abc"}
    of["a"].insert(2, "accumulated a")
    everything = of["c"] + of["b"] + of["a"]
    assert ran(lambda: c.backward(retain_graph=True)) == everything
    assert ran(lambda: c.backward(inputs=(a, b), retain_graph=True)) == everything
    assert ran(lambda: c.backward(inputs=(b,), retain_graph=True)) == of["c"] + of["b"]
    assert ran(lambda: c.backward(inputs=(c,), retain_graph=True)) == of["c"]
    grad = engine.autograd.grad
    assert ran(lambda: grad(c, (a, b, c), retain_graph=True)) == of["c"] + of["b"] + ["tensor a"]
    assert ran(lambda: grad(c, (a,), retain_graph=True)) == of["c"] + of["b"] + ["tensor a"]
    assert ran(lambda: grad(c, (b,), retain_graph=True)) == of["c"] + ["tensor b"]
    assert ran(lambda: grad(c, (c,), retain_graph=True)) == ["tensor c"]
    assert ran(lambda: grad(c, (b, c), retain_graph=True)) == of["c"] + ["tensor b"]


def test_E15_a_hook_without_a_name():
    class Hook:
        def __call__(self, g):
            return g * 2

    x = leaf(1.0)
    x.register_hook(Hook())
    x.sum().backward()
    assert x.grad.item() == 2.0


@pytest.mark.parametrize(
    ("returned", "error", "message"),
    [
        (3, TypeError, "hook 'wrong' returned 'int'"),
        (engine.ones(3), RuntimeError, "hook 'wrong' has changed the size of value"),
        (engine.ones(2, dtype=engine.float64), RuntimeError, "hook 'wrong' has changed the type of value"),
        (engine.ones(2, device="meta"), RuntimeError, "hook 'wrong' has changed the device of value"),
    ],
)
def test_E15_what_a_hook_must_not_return_is_named(returned, error, message):
    def wrong(g):
        return returned

    x = leaf(1.0, 2.0)
    handle = x.register_hook(wrong)
    with pytest.raises(error, match=message):
        (x * 2).sum().backward()
    handle.remove()
    (x * 2).sum().backward()  # nothing is left broken
    assert x.grad.tolist() == [2.0, 2.0]


def test_E16_order_of_module_hooks_among_others():
    log = []

    class Model(nn.Module):
        def forward(self, x):
            y = x * 2
            y.register_hook(lambda g: log.append("inside"))
            return y

    model = Model()
    model.register_full_backward_hook(lambda *_: log.append("module"))
    model.register_full_backward_pre_hook(lambda *_: log.append("module pre"))
    x = leaf(1.0)
    x.register_hook(lambda g: log.append("input"))
    y = model(x)
    y.register_hook(lambda g: log.append("output"))
    y.sum().backward()
    assert log == ["output", "module pre", "inside", "module", "input"]


def test_E17_grad_of_a_non_leaf_warns_unless_retained():
    x = leaf(1.0)
    y = x * 2
    with pytest.warns(UserWarning, match="not a leaf Tensor"):
        assert y.grad is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert x.grad is None
        y.retain_grad()
        assert y.grad is None
        y.sum().backward(retain_graph=True)
        assert y.grad.item() == 1.0
        z = y * 3
        z.sum().backward(inputs=[z])  # asking for a non-leaf's gradient retains it
        assert z.grad.item() == 1.0


def test_E37_the_node_that_runs_is_visible_in_hooks():
    from engine.autograd.task import current_node

    seen = []
    x = leaf(1.0)
    y = x * 2
    z = y.exp()
    y.register_hook(lambda g: seen.append(current_node()))
    z.grad_fn.register_hook(lambda inputs, outputs: seen.append(current_node()))
    expected = [z.grad_fn, y.grad_fn]
    z.sum().backward()
    assert seen == expected
    assert current_node() is None


def test_E44_saved_tensors_are_made_by_the_engine_only():
    x = leaf(2.0)
    y = x * x
    assert y.grad_fn._saved_input is x
    assert y.grad_fn._saved_self is x
    assert x.exp().grad_fn._saved_result.item() == pytest.approx(7.389056)
    with pytest.raises(TypeError):
        type(y.grad_fn._raw_saved_self)()
    with pytest.raises(TypeError, match="incompatible function arguments"):
        y.grad_fn._raw_saved_self.register_hooks(None, lambda packed: packed)
    with pytest.raises(TypeError, match="incompatible function arguments"):
        y.grad_fn._raw_saved_self.register_hooks(lambda tensor: tensor, None)
    with pytest.raises(AttributeError):
        _ = y.grad_fn._saved_nonsense
    y.sum().backward()
    with pytest.raises(RuntimeError, match="already been freed"):
        _ = y.grad_fn._saved_self


def test_E44_hooks_on_one_saved_tensor():
    x = leaf(2.0, 3.0)
    y = x.exp()
    expected = (y.detach() * 1).tolist()
    y.grad_fn._raw_saved_result.register_hooks(lambda t: t.numpy().copy(), engine.from_numpy)
    with pytest.raises(RuntimeError, match="only one pair of hooks"):
        y.grad_fn._raw_saved_result.register_hooks(lambda t: t, lambda t: t)
    y.sum().backward()
    assert x.grad.tolist() == expected
    z = x * x
    z.grad_fn._raw_saved_other.register_hooks(lambda t: 7, lambda packed: engine.tensor([10.0, 10.0]))
    (g,) = engine.autograd.grad(z.sum(), x)
    assert g.tolist() == [12.0, 13.0]


def test_E46_multi_grad_hook_all():
    log = []
    a, b = leaf(1.0, 2.0), leaf(3.0, 4.0)
    c, d = a * b, a * b
    handle = register_multi_grad_hook((a, b, c, d), lambda gs: log.append([g is not None for g in gs]))
    c.sum().backward(retain_graph=True)
    c.sum().backward(inputs=(a,), retain_graph=True)
    (c + d).sum().backward(retain_graph=True)
    engine.autograd.grad(c.sum(), (a, c), retain_graph=True)
    assert log == [
        [True, True, True, False],
        [True, False, True, False],
        [True, True, True, True],
        [True, False, True, False],
    ]
    handle.remove()
    c.sum().backward(retain_graph=True)
    assert len(log) == 4
    with pytest.raises(RuntimeError, match="does not require grad"):
        register_multi_grad_hook((a, engine.ones(2)), print)


def test_E46_multi_grad_hook_any():
    log = []
    a, b = leaf(1.0, 2.0), leaf(3.0, 4.0)
    c = a * b
    handle = register_multi_grad_hook((a, b, c, engine.ones(2)), lambda g: log.append(g.tolist()), mode="any")
    c.sum().backward(retain_graph=True)
    c.sum().backward(retain_graph=True)
    assert log == [[1.0, 1.0]] * 2
    handle.remove()
    c.sum().backward()
    assert len(log) == 2
    with pytest.raises(ValueError, match="Expects mode to be one of"):
        register_multi_grad_hook((a,), print, mode="some")


def test_E46_an_error_in_a_multi_grad_hook_leaves_it_usable():
    a, b = leaf(1.0), leaf(2.0)
    calls = []

    def hook(gradients):
        calls.append(gradients)
        if len(calls) == 1:
            raise ValueError("first")

    register_multi_grad_hook((a, b), hook)
    with pytest.raises(ValueError, match="first"):
        (a * b).backward()
    (a * b).backward()
    assert len(calls) == 2


def test_E47_hooks_stay_with_the_old_value_and_retain_grad_moves():
    x = leaf(1.0, 1.0)
    y = x * 1
    y.retain_grad()
    y.register_hook(lambda g: g * 10)
    y.mul_(3)
    y.sum().backward()
    assert y.grad.tolist() == [1.0, 1.0]
    assert x.grad.tolist() == [30.0, 30.0]


def test_E47_order_and_values_of_hooks_before_and_after_an_in_place_write():
    log = []
    x = leaf(1.0, 2.0)
    y = x * 1
    y.register_hook(lambda g: log.append(("before", g.tolist())))
    y.mul_(2)
    y.register_hook(lambda g: log.append(("after", g.tolist())))
    y.sum().backward()
    assert log == [("after", [1.0, 1.0]), ("before", [2.0, 2.0])]


@pytest.mark.parametrize("written", ["base", "view"])
@pytest.mark.parametrize("retained", ["base", "view"])
def test_E47_retain_grad_moves_on_views_and_bases(retained, written):
    x = leaf(1.0, 1.0, 1.0, 1.0)
    base = x * 1
    view = base[:2]
    watched = base if retained == "base" else view
    watched.retain_grad()
    (base if written == "base" else view).mul_(3)
    assert watched.retains_grad
    watched.sum().backward()
    assert watched.grad.tolist() == [1.0] * watched.numel()
    expected = {"base": [3.0, 3.0, 3.0, 3.0] if written == "base" else [3.0, 3.0, 1.0, 1.0], "view": [3.0, 3.0, 0, 0]}
    assert x.grad.tolist() == expected[retained]


def test_retain_grad_clones_row_major_and_accumulates_out_of_place():
    x = engine.ones(2, 3, requires_grad=True)
    y = x.t() * 1
    assert y.stride() == (1, 3)
    y.retain_grad()
    y.sum().backward(retain_graph=True)
    first = y.grad
    assert first.stride() == (2, 1)
    y.sum().backward()
    assert y.grad is not first
    assert first.tolist() == [[1.0] * 2] * 3
    assert y.grad.tolist() == [[2.0] * 2] * 3


def test_E57_what_grad_returns_for_a_tensor_that_also_lies_on_the_way():
    x = engine.ones(2, requires_grad=True)
    b = x * 3
    b.register_hook(lambda g: g * 10)
    c = (b * 2).sum()
    (alone,) = engine.autograd.grad(c, [b], retain_graph=True)
    assert alone.tolist() == [20.0, 20.0]  # captured after its hooks
    through, needed = engine.autograd.grad(c, [x, b])
    assert through.tolist() == [60.0, 60.0]
    assert needed.tolist() == [2.0, 2.0]  # captured before them, because its node runs, too


# --- node hooks -------------------------------------------------------------------------------------------------------


def test_node_hooks_may_replace_and_drop_gradients():
    x, w = leaf(1.0, 2.0), leaf(3.0, 4.0)
    y = x * w
    y.grad_fn.register_prehook(lambda gs: (gs[0] * 2,))
    y.grad_fn.register_hook(lambda inputs, outputs: (None, inputs[1] + outputs[0]))
    y.sum().backward()
    assert x.grad is None
    assert w.grad.tolist() == [4.0, 6.0]


@pytest.mark.parametrize("returned", [[None], engine.ones(2), (1, 2, 3)])
def test_what_a_node_hook_must_not_return(returned):
    x = leaf(1.0, 2.0)
    y = x * 2
    y.grad_fn.register_prehook(lambda gs: returned)
    with pytest.raises((TypeError, RuntimeError), match=r"expected tuple|incorrect number of values"):
        y.sum().backward()


def test_a_post_hook_added_while_the_node_runs_gets_no_outputs():
    log = []

    class Add(engine.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            y.grad_fn.register_hook(lambda inputs, outputs: log.append((len(inputs), outputs)))
            return g

    x = leaf(1.0)
    y = Add.apply(x)
    y.sum().backward()
    assert log == [(1, ())]


def test_removing_handles():
    x = leaf(1.0)
    handle = x.register_hook(lambda g: g * 5)
    with x.register_hook(lambda g: g * 7):
        (x * 1).sum().backward()
    assert x.grad.item() == 35.0
    x.grad = None
    handle.remove()
    handle.remove()
    (x * 1).sum().backward()
    assert x.grad.item() == 1.0


def test_metadata_belongs_to_the_user():
    y = leaf(1.0) * 2
    y.grad_fn.metadata["mine"] = 1
    assert y.grad_fn.metadata == {"mine": 1}


# --- hooks on saved tensors -------------------------------------------------------------------------------------------


def test_saved_tensors_hooks_pack_and_unpack():
    packed = []

    def pack(tensor):
        assert not tensor.requires_grad
        packed.append(tensor.numpy().copy())
        return len(packed) - 1

    x = leaf(2.0, 3.0)
    with saved_tensors_hooks(pack, lambda key: engine.from_numpy(packed[key])):
        y = (x * x).exp()
    assert len(packed) == 3
    (first,) = engine.autograd.grad(y.sum(), x, create_graph=True)
    (second,) = engine.autograd.grad(first.sum(), x)
    values, exponentials = engine.tensor([2.0, 3.0]), (engine.tensor([2.0, 3.0]) ** 2).exp()
    assert engine.allclose(first, 2 * values * exponentials)
    assert engine.allclose(second, (2 + 4 * values**2) * exponentials)


def test_saved_tensors_hooks_innermost_counts_and_is_restored_after_an_error():
    x = leaf(2.0)
    with saved_tensors_hooks(lambda t: t, lambda t: t * 0):
        with pytest.raises(ZeroDivisionError):  # noqa: PT012, SIM117 - the error must come from inside both
            with saved_tensors_hooks(lambda t: t, lambda t: t * 100):
                inner = x * x
                1 / 0  # noqa: B018
        outer = x * x
    plain = x * x
    grads = [engine.autograd.grad(y, x)[0].item() for y in (inner, outer, plain)]
    assert grads == [400.0, 0.0, 4.0]


def test_saved_tensors_hooks_errors():
    x = leaf(2.0)
    with pytest.raises(TypeError, match="expected two functions"):
        saved_tensors_hooks(None, None)
    with saved_tensors_hooks(lambda t: t.add_(1), lambda t: t), pytest.raises(RuntimeError, match="in place"):
        x.exp()
    with saved_tensors_hooks(lambda t: t, lambda t: "no tensor"):
        y = x.exp()
    with pytest.raises(TypeError, match=r"expected to be a Tensor but got result of type str in ExpBackward0"):
        y.backward()


def test_disable_saved_tensors_hooks():
    with disable_saved_tensors_hooks("not here"):
        with pytest.raises(RuntimeError, match="not here"), saved_tensors_hooks(lambda t: t, lambda t: t):
            pass
        with disable_saved_tensors_hooks("nor here"), pytest.raises(RuntimeError, match="nor here"), save_on_cpu():
            pass
        with pytest.raises(RuntimeError, match="not here"), save_on_cpu():
            pass
    hooks = saved_tensors_hooks(lambda t: t, lambda t: t)
    with hooks, pytest.raises(RuntimeError, match="too late"), disable_saved_tensors_hooks("too late"):
        pass
    for pinned in (False, True):  # which says something about tensors on GPUs only
        with save_on_cpu(pinned):
            y = leaf(2.0).exp()
        y.backward()


def test_hooks_that_an_unpack_function_enters_or_leaves_do_not_stay():
    outer = saved_tensors_hooks(lambda x: x, lambda x: x)

    def enters(x):
        outer.__enter__()
        return x

    with saved_tensors_hooks(lambda x: x, enters):
        y = leaf(2.0).exp().exp()
    y.backward()
    assert engine.autograd.modes.state.saved_tensor_hooks == ()

    def leaves(x):
        outer.__exit__()
        return x

    with saved_tensors_hooks(lambda x: x, leaves):
        y = leaf(2.0).exp()
    with outer:
        y.backward()
        assert len(engine.autograd.modes.state.saved_tensor_hooks) == 1
    assert engine.autograd.modes.state.saved_tensor_hooks == ()


def test_saved_tensors_may_be_written_where_that_is_allowed():
    a = engine.ones(2, 3, requires_grad=True)
    with allow_mutation_on_saved_tensors():
        b = a.clone()
        result = (b**2).sum() + b.exp().mul_(1).sum()
        b.sin_()
        result.backward()
    assert engine.allclose(a.grad, engine.full((2, 3), 2.0 + float(np.exp(1.0))))


def test_a_product_knows_the_shapes_and_strides_of_its_operands() -> None:
    left, right = engine.ones(3, 4, requires_grad=True), engine.ones(4, 5, requires_grad=True)
    node = (left @ right).grad_fn
    assert (node._saved_self_sym_sizes, node._saved_mat2_sym_strides) == ((3, 4), (5, 1))
    assert node._saved_mat2 is right
    with pytest.raises(AttributeError, match="_saved_other_sym_sizes"):
        node._saved_other_sym_sizes  # noqa: B018
