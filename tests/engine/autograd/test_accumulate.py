"""AccumulateGrad: what `.grad` is after backward. Rows E1-E3, E5-E9, E56, E58, E59, E61 of the specification's
checklist.
"""

import gc
import weakref

import numpy as np
import pytest

import engine
from engine.optim import SGD
from tests.engine.autograd.leaves import leaf


def test_E01_a_second_gradient_is_added_in_place_and_out_of_place_under_create_graph():
    w = leaf(1.0, 2.0)
    w.grad = engine.tensor([10.0, 20.0])
    first = w.grad
    (w * w).sum().backward()
    assert w.grad is first
    assert first.tolist() == [12.0, 24.0]
    assert first._version == 1
    with pytest.warns(UserWarning, match="create_graph=True will create a reference cycle"):
        (w * w).sum().backward(create_graph=True)
    assert w.grad is not first
    assert first.tolist() == [12.0, 24.0]
    assert w.grad.tolist() == [14.0, 28.0]
    assert w.grad.requires_grad
    w.grad = None


def test_E02_a_gradient_nobody_else_holds_is_stolen():
    class Keep(engine.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            made = g * 2
            Keep.address = made.data_ptr()
            return made

    w = leaf(1.0, 2.0)
    Keep.apply(w).backward(engine.ones(2))
    assert w.grad.data_ptr() == Keep.address
    assert w.grad._version == 0


def test_E02_a_gradient_somebody_holds_is_copied():
    kept = []

    class Hold(engine.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            kept.append(g * 2)
            return kept[-1]

    w = leaf(1.0, 2.0)
    Hold.apply(w).backward(engine.ones(2))
    assert w.grad.data_ptr() != kept[0].data_ptr()
    assert w.grad._version == 1  # the fresh memory was filled in place
    w.grad.zero_()
    assert kept[0].tolist() == [2.0, 2.0]


def test_E02_two_leaves_fed_by_one_gradient_never_share_memory():
    a, b = leaf(1.0, 2.0), leaf(3.0, 4.0)
    (a + b).backward(engine.ones(2))
    assert not np.shares_memory(a.grad.numpy(), b.grad.numpy())


def test_E02_a_gradient_that_breaks_the_layout_contract_is_copied_into_it():
    w = engine.zeros(3, 2, requires_grad=True)
    (w.t() * 1).backward(engine.ones(2, 3))
    assert w.grad.stride() == (2, 1)
    column = engine.zeros(2, 3).t().requires_grad_()
    column.sum().backward()  # an expanded gradient
    assert column.grad.stride() == column.stride() == (1, 3)


def test_E03_a_gradient_without_elements():
    for shape in ((0,), (3, 0, 2)):
        w = engine.ones(shape, requires_grad=True)
        for _ in range(2):
            (w * 2).sum().backward()
        assert w.grad.shape == shape
        w.grad = engine.ones(shape)
        w.backward(engine.ones(shape))
        assert w.grad.shape == shape


def test_E05_several_post_accumulate_hooks_run_in_order():
    log = []
    a, b = leaf(1.0), leaf(2.0)
    for tensor, name in ((a, "a"), (b, "b")):
        tensor.register_post_accumulate_grad_hook(lambda p, name=name: log.append((name, 1, p.grad.item())))
        tensor.register_post_accumulate_grad_hook(lambda p, name=name: log.append((name, 2, p.grad.item())))
    a.sum().backward()
    (b * 3).sum().backward()
    assert log == [("a", 1, 1.0), ("a", 2, 1.0), ("b", 1, 3.0), ("b", 2, 3.0)]


def test_E06_a_post_accumulate_hook_on_a_non_leaf_is_refused():
    w = leaf(1.0)
    with pytest.raises(RuntimeError, match="post accumulate grad hooks cannot be registered on non-leaf tensors"):
        (w * 2).register_post_accumulate_grad_hook(print)
    with pytest.raises(RuntimeError, match="doesn't require grad"):
        engine.ones(2).register_post_accumulate_grad_hook(print)


def test_E07_a_post_accumulate_hook_must_return_none():
    w = leaf(1.0)
    w.register_post_accumulate_grad_hook(lambda p: p.grad)
    with pytest.raises(RuntimeError, match="must return None"):
        w.sum().backward()


def test_E08_an_optimizer_in_the_hook_until_the_handle_is_removed():
    w = leaf(5.0, 6.0)
    optimizer = SGD([w], lr=0.5)

    def step(parameter):
        assert parameter is w
        optimizer.step()
        optimizer.zero_grad()

    handle = w.register_post_accumulate_grad_hook(step)
    (w * 2).sum().backward()
    assert w.tolist() == [4.0, 5.0]
    assert w.grad is None
    handle.remove()
    (w * 2).sum().backward()
    assert w.tolist() == [4.0, 5.0]
    assert w.grad.tolist() == [2.0, 2.0]


def test_E09_the_closure_of_a_hook_is_freed_with_its_tensor():
    class Something:
        pass

    gc.disable()
    try:
        w, captured = leaf(1.0), Something()
        dead = weakref.ref(captured)
        handles = [
            w.register_post_accumulate_grad_hook(lambda p, captured=captured: None),
            w.register_hook(lambda g, captured=captured: None),
        ]
        (w * 2).sum().backward()
        del captured
        assert dead() is not None
        del w
        assert dead() is None
        for handle in handles:
            handle.remove()  # after the tensor is gone: nothing happens
    finally:
        gc.enable()


def test_E56_a_broadcast_gradient_is_reduced_and_its_dtype_cast():
    class Odd(engine.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            return engine.ones(4, 2, 3, dtype=engine.float64)

    w = engine.ones(2, 1, requires_grad=True)
    Odd.apply(w).sum().backward()
    assert w.grad.dtype is engine.float32
    assert w.grad.tolist() == [[12.0], [12.0]]
    b = engine.ones(3, requires_grad=True)
    (engine.ones(2, 3, dtype=engine.float64) * b).sum().backward()
    assert b.grad.dtype is engine.float32
    assert b.grad.tolist() == [2.0, 2.0, 2.0]


def test_E58_hooks_around_a_leaf_also_run_without_a_gradient():
    class Nothing(engine.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return None

    log = []
    w = leaf(1.0)
    w.register_hook(lambda g: log.append(("tensor", g)))
    node = w.gradient_edge()[0]
    node.register_prehook(lambda gs: log.append(("pre", gs)))
    w.register_post_accumulate_grad_hook(lambda p: log.append(("accumulated", p.grad)))
    node.register_hook(lambda inputs, outputs: log.append(("post", inputs, outputs)))
    Nothing.apply(w).sum().backward()
    assert w.grad is None
    assert log == [("tensor", None), ("pre", (None,)), ("accumulated", None), ("post", (), (None,))]


def test_E59_the_memory_of_the_users_gradient_never_becomes_a_grad():
    """PyTorch counts references to the tensor object only, and shares the memory here; this engine asks who holds the
    memory.
    """
    w = engine.zeros(2, 3, requires_grad=True)
    g = engine.ones(6)
    w.view(6).backward(g)
    w.grad.add_(5)
    assert g.tolist() == [1.0] * 6
    root = engine.zeros(3, requires_grad=True)
    root.backward(given := engine.ones(3))
    root.grad.add_(5)
    assert given.tolist() == [1.0] * 3


def test_E61_a_grad_the_user_put_there_is_filled_in_place():
    flat = engine.zeros(10)
    w, b = engine.ones(2, 3, requires_grad=True), engine.ones(3, requires_grad=True)
    w.grad, b.grad = flat[1:7].view(2, 3), flat[7:]
    for _ in range(2):
        (w * 2 + b).sum().backward()
    assert flat.tolist() == [0.0] + [4.0] * 6 + [4.0] * 3
    assert w.grad.data_ptr() == flat.data_ptr() + 4


def test_grad_assignment_is_checked():
    w = engine.ones(2, requires_grad=True)
    with pytest.raises(TypeError, match="expected to be a Tensor or None but got int"):
        w.grad = 3
    with pytest.raises(RuntimeError, match="own grad"):
        w.grad = w
    with pytest.raises(RuntimeError, match=r"different size: expected \[2\], got \[3\]"):
        w.grad = engine.ones(3)
    with pytest.raises(RuntimeError, match="different type"):
        w.grad = engine.ones(2, dtype=engine.float64)
    with pytest.raises(RuntimeError, match="different device"):
        w.grad = engine.ones(2, device="meta")
    w.grad = None


def test_data_swapped_for_another_shape_while_a_graph_is_alive():
    w = engine.ones(2, requires_grad=True)
    y = w * 2
    w.data = engine.ones(3)
    y.sum().backward()
    assert w.grad.tolist() == [2.0, 2.0]
    with pytest.raises(RuntimeError, match=r"shape \[3\] and the .grad that is there \[2\]"):
        (w * 2).sum().backward()


def test_a_leaf_that_stopped_requiring_grad_gets_none():
    w = engine.ones(2, requires_grad=True)
    y = (w * 2).sum()
    w.requires_grad_(False)
    y.backward()
    assert w.grad is None
