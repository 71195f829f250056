"""What memory backward holds, and when it lets go: no cycles, nothing kept, sums in place that nobody can see."""

import contextlib
import gc
import tracemalloc
import weakref

import numpy as np
import pytest

import engine
from engine.autograd import Function
from engine.autograd.graph import get_gradient_edge, register_multi_grad_hook, save_on_cpu
from engine.utils.checkpoint import checkpoint


class Scaled(Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x, x * factor)
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx, g):
        ctx.saved_tensors  # noqa: B018
        return g * ctx.factor, None


def step_plain(x, w):
    (engine.linear(x, w).tanh() ** 2).sum().backward()


def step_function(x, w):
    Scaled.apply(engine.linear(x, w), 2.0).sum().backward()


def step_written_views(x, w):
    y = engine.linear(x, w)
    y[0].mul_(2)
    y[:, 1:].exp().sum().backward()
    y.unsqueeze_(0)


def step_hooks(x, w):
    y = engine.linear(x, w)
    y.retain_grad()
    y.register_hook(lambda g: 2 * g)
    y.grad_fn.register_hook(lambda inputs, outputs: None)
    z = y * 2
    with register_multi_grad_hook((y, z), lambda gradients: None):
        z.sum().backward()
    y.grad_fn.metadata["x"] = x


def step_grad_of_grad(x, w):
    y = (engine.linear(x, w).tanh()).sum()
    (g,) = engine.autograd.grad(y, w, create_graph=True)
    (g * g).sum().backward()


def step_without_backward(x, w):
    y = engine.linear(x, w).exp()
    get_gradient_edge(y)
    repr(y.grad_fn.next_functions)


def step_checkpoint(x, w):
    checkpoint(
        lambda x: engine.linear(x, w).tanh().exp(), x.clone().requires_grad_(), use_reentrant=False
    ).sum().backward()


def step_reentrant_checkpoint(x, w):
    checkpoint(
        lambda x: engine.linear(x, w).tanh().exp(), x.clone().requires_grad_(), use_reentrant=True
    ).sum().backward()


def step_saved_hooks(x, w):
    with save_on_cpu():
        y = engine.linear(x, w).exp()
    y.sum().backward()


def step_error(x, w):
    y = engine.linear(x, w)
    y.register_hook(lambda g: 1 / 0)
    with contextlib.suppress(ZeroDivisionError):
        y.exp().sum().backward()


STEPS = [value for name, value in list(globals().items()) if name.startswith("step_")]


@pytest.mark.full
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__.removeprefix("step_"))
def test_no_cycles_keep_graphs_alive(step):
    x, w = engine.ones(4, 3), engine.ones(5, 3, requires_grad=True)
    step(x, w)
    gc.collect()
    gc.disable()
    try:
        for _ in range(50):
            step(x, w)
            w.grad = None
        # An exception and its traceback refer to each other; that is Python's cycle, not one through the graph.
        unreachable = gc.collect()
    finally:
        gc.enable()
    assert unreachable == 0 or step is step_error


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


@pytest.mark.skipif(
    not __import__("os").path.exists("/proc/self/statm"), reason="needs /proc to read the resident size"
)
@pytest.mark.full
def test_resident_memory_is_flat_over_1000_steps_without_the_garbage_collector():
    layers = [engine.randn(64).requires_grad_() for _ in range(6)]
    x = engine.randn(128, 64)

    def step():
        h = x
        for w in layers:
            h = (h * w).tanh()  # 32 KiB each
        h = h + 1
        h[:, 0].mul_(2)
        h.sum().backward()
        for w in layers:
            w.grad = None

    for _ in range(100):
        step()
    gc.collect()
    gc.disable()
    try:
        before = resident_bytes()
        for _ in range(1000):
            step()
        grown = resident_bytes() - before
        assert gc.collect() == 0
    finally:
        gc.enable()
    assert grown < 4 * 2**20  # one leaked graph a step would be 400 MiB


def test_saved_tensors_are_released_as_backward_goes_on():
    depth, activation = 60, 64 * 1024 * 4
    layers = [(engine.randn(16, 16) * 0.1).requires_grad_() for _ in range(depth)]
    held = []
    x = engine.randn(4096, 16)
    warm = engine.linear(engine.linear(x, layers[0]).tanh(), layers[1]).tanh()
    warm.sum().backward()  # loads the compiled kernels: Numba's modules take memory of their own
    del warm
    tracemalloc.start()
    try:
        base = tracemalloc.get_traced_memory()[0]
        h = x
        for w in layers:
            h = engine.linear(h, w).tanh()
            h.register_hook(lambda g: held.append(tracemalloc.get_traced_memory()[0] - base))
        loss = h.sum()
        del h
        forward = tracemalloc.get_traced_memory()[0] - base
        tracemalloc.reset_peak()
        loss.backward()
        peak = tracemalloc.get_traced_memory()[1] - base
    finally:
        tracemalloc.stop()
    theoretical = depth * activation
    assert forward <= 1.1 * theoretical
    assert peak <= 1.1 * theoretical
    assert len(held) == depth
    for position in range(11, depth):  # each step frees an activation and leaves a gradient of 1 KiB
        assert held[position] <= held[position - 10] - 9.5 * activation


def test_buffers_hold_gradients_no_longer_than_needed():
    alive = []

    class Watch(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            alive.append(weakref.ref(g._array))
            del g
            earlier = [reference() is not None for reference in alive[:-1]]
            assert not any(earlier), earlier
            return engine.ones(1000)

    x = engine.ones(1000, requires_grad=True)
    y = x
    for _ in range(5):
        y = Watch.apply(y)
    y.sum().backward()


# --- sums in the input buffer: in place where nobody can see it -------------------------------------------------------


class Fresh(Function):
    """Its gradient is memory that nobody else holds; `addresses` remembers where."""

    addresses: list[int] = []  # noqa: RUF012

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx, g):
        made = g * ctx.factor
        Fresh.addresses.append(made.data_ptr())
        return made, None


def test_gradients_that_only_the_buffer_holds_are_summed_in_place():
    Fresh.addresses.clear()
    w = engine.ones(1000, requires_grad=True)
    inner = w * 1
    y = sum((Fresh.apply(inner, float(factor)) for factor in range(1, 5)), start=engine.zeros(1000))
    seen = []
    inner.register_hook(lambda g: seen.append(g.data_ptr()))
    y.sum().backward()
    assert w.grad[0].item() == 10.0
    assert seen == [Fresh.addresses[0]]  # the first to arrive took the others in


def test_views_of_memory_that_only_they_hold_are_summed_in_place_too():
    class Reshaped(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            return (g * 2).view(2, 500).t().reshape(500, 2).view(1000) if g.ndim == 0 else (g * 2).view(1000)

    w = engine.ones(1000, requires_grad=True)
    (Reshaped.apply(w) + Reshaped.apply(w)).sum().backward()
    assert w.grad.tolist() == [4.0] * 1000


def test_no_tensor_that_somebody_holds_is_ever_changed():
    """Random graphs in which hooks, Functions and callers keep every gradient they can get hold of."""
    stream = np.random.default_rng(0)
    for _ in range(150):
        kept = []

        def keep(tensor, kept=kept):
            if tensor is not None:
                kept.append((tensor, tensor.detach().clone()))

        def kept_gradient(gradient):
            keep(gradient)

        class Pass(Function):
            @staticmethod
            def forward(ctx, x):
                return x.view_as(x).clone()

            @staticmethod
            def backward(ctx, g):
                keep(g)
                return g

        class Made(Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2

            @staticmethod
            def backward(ctx, g):
                made = g * 2
                keep(made)
                return made

        operations = [
            lambda a, b: a + b,
            lambda a, b: a - b,
            lambda a, b: a * b.detach(),
            lambda a, b: a.t(),
            lambda a, b: a.reshape(9).view(3, 3),
            lambda a, b: a + b.sum(0),
            lambda a, b: a.clone(),
            lambda a, b: a[:, [2, 0, 1]],
            lambda a, b: engine.cat([a[:1], b[1:]]),
            lambda a, b: Pass.apply(a),
            lambda a, b: Made.apply(b),
            lambda a, b: a.expand(2, 3, 3).sum(0),
        ]
        leaves = [engine.from_numpy(stream.integers(-2, 3, (3, 3)).astype(float)).requires_grad_() for _ in range(3)]
        values = list(leaves)
        for _ in range(int(stream.integers(4, 14))):
            a, b = (values[int(place)] for place in stream.integers(0, len(values), 2))
            made = operations[int(stream.integers(len(operations)))](a, b)
            if stream.random() < 0.3:
                made.register_hook(kept_gradient)
            if stream.random() < 0.2:
                made.grad_fn.register_hook(
                    lambda inputs, outputs, keep=keep: [keep(g) for g in (*inputs, *outputs)] and None
                )
            if stream.random() < 0.1:
                made.retain_grad()
            values.append(made)
        weights = [engine.from_numpy(stream.integers(-2, 3, (3, 3)).astype(float)) for _ in values]
        for weight in weights:
            keep(weight)
        roots = [value for value in values if stream.random() < 0.7] or values
        weights = weights[: len(roots)]

        captured = engine.autograd.grad(roots, values, weights, retain_graph=True, allow_unused=True)
        for tensor in captured:
            keep(tensor)
        for _ in range(2):
            engine.autograd.backward(roots, weights, retain_graph=True)
            for each in leaves:
                keep(None if each.grad is None else each.grad.clone())
        for tensor, copy in kept:
            assert tensor.tolist() == copy.tolist()
        # The sums are right, too: integers are exact in any order.
        for each, once in zip(leaves, captured, strict=False):
            assert (None if each.grad is None else each.grad.tolist()) == (
                None if once is None else (once * 2).tolist()
            )


def test_gradients_held_by_a_view_of_theirs_are_not_written():
    views = []

    class Keep(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            made = g * 3
            views.append(made[:2])  # holds the memory, not the tensor
            return made

    w = engine.ones(4, requires_grad=True)
    (Keep.apply(w) + Keep.apply(w) * 1 + w * 5).sum().backward()
    assert [view.tolist() for view in views] == [[3.0, 3.0]] * 2
    assert w.grad.tolist() == [11.0] * 4
    w.grad.zero_()
    assert [view.tolist() for view in views] == [[3.0, 3.0]] * 2


def test_gradients_whose_numpy_array_somebody_holds_are_not_written():
    arrays = []

    class Keep(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            made = g * 3
            arrays.append(made.numpy())
            return made

    w = engine.ones(4, requires_grad=True)
    (Keep.apply(w) + Keep.apply(w)).sum().backward()
    assert [array.tolist() for array in arrays] == [[3.0] * 4] * 2
