"""Activation checkpointing. Rows E39 and E40 of the specification's checklist."""

import tracemalloc

import pytest

import engine
from engine import nn
from engine.autograd.graph import saved_tensors_hooks
from engine.utils.checkpoint import CheckpointError, checkpoint, checkpoint_sequential, set_checkpoint_early_stop


def leaf(*values):
    return engine.tensor(values, dtype=engine.float64, requires_grad=True)


def chain(x):
    return (x.sin() * x.exp()).tanh() * x


BOTH = pytest.mark.parametrize("use_reentrant", [False, True])


@BOTH
def test_E40_gradients_are_those_without_checkpoint(use_reentrant):
    x, y = leaf(0.5, 1.0, -0.3), leaf(0.5, 1.0, -0.3)
    (chain(x) * 2).sum().backward()
    (checkpoint(chain, y, use_reentrant=use_reentrant) * 2).sum().backward()
    assert y.grad.tolist() == x.grad.tolist()


@BOTH
def test_E40_parameters_of_a_module(use_reentrant):
    engine.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).double()
    x = engine.randn(3, 4, dtype=engine.float64, requires_grad=True)
    model(x).sum().backward()
    expected = [parameter.grad.tolist() for parameter in model.parameters()]
    model.zero_grad()
    checkpoint(model, x, use_reentrant=use_reentrant).sum().backward()
    assert [parameter.grad.tolist() for parameter in model.parameters()] == expected


@BOTH
def test_E40_random_numbers_are_drawn_again(use_reentrant):
    def noisy(x):
        return x * engine.rand(5, dtype=engine.float64)

    x = engine.ones(5, dtype=engine.float64, requires_grad=True)
    engine.manual_seed(3)
    out = checkpoint(noisy, x, use_reentrant=use_reentrant)
    after_forward = engine.get_rng_state().tolist()
    engine.manual_seed(99)
    expected = engine.get_rng_state().tolist()
    out.sum().backward()
    assert x.grad.tolist() == out.tolist()
    assert engine.get_rng_state().tolist() == expected != after_forward
    x.grad = None
    out = checkpoint(noisy, x, use_reentrant=use_reentrant, preserve_rng_state=False)
    out.sum().backward()
    assert x.grad.tolist() != out.tolist()


def test_E40_activations_are_not_kept():
    def deep(x):
        for _ in range(20):
            x = x.tanh()
        return x

    x = engine.ones(64 * 1024, requires_grad=True)  # 256 KiB
    tracemalloc.start()
    try:
        base = tracemalloc.get_traced_memory()[0]
        y = checkpoint(deep, x, use_reentrant=False)
        held = tracemalloc.get_traced_memory()[0] - base
        y.sum().backward()
        after = tracemalloc.get_traced_memory()[0] - base
    finally:
        tracemalloc.stop()
    assert held < 2 * 256 * 1024  # the output; 20 activations are 5 MiB
    assert after < 3 * 256 * 1024  # the output and the gradient


def test_E40_what_is_computed_again_is_given_back_piece_by_piece():
    def deep(x):
        for _ in range(30):
            x = x.tanh()
        return x

    runs = []

    def watched(x):
        runs.append(tracemalloc.get_traced_memory()[0])
        return deep(x)

    x = engine.ones(64 * 1024, requires_grad=True)
    tracemalloc.start()
    try:
        y = checkpoint(watched, x, use_reentrant=False)
        y.sum().backward()
        held_at_end = tracemalloc.get_traced_memory()[0] - runs[0]
    finally:
        tracemalloc.stop()
    assert len(runs) == 2
    assert held_at_end < 4 * 256 * 1024


def test_E40_early_stop():
    ran = []

    def three_parts(x):
        y = x.exp()
        ran.append("first")
        z = y.exp()
        ran.append("second")
        result = z + 1  # saves nothing
        ran.append("third")
        return result

    x = leaf(0.1)
    checkpoint(three_parts, x, use_reentrant=False).backward()
    assert ran == ["first", "second", "third", "first"]  # stopped where z was saved
    ran.clear()
    with set_checkpoint_early_stop(False):
        checkpoint(three_parts, x, use_reentrant=False).backward()
    assert ran == ["first", "second", "third"] * 2
    ran.clear()
    checkpoint(three_parts, x, use_reentrant=False, early_stop=False).backward()
    assert ran == ["first", "second", "third"] * 2


@pytest.mark.parametrize("early_stop", [True, False])
def test_E40_nesting(early_stop):
    counts = {"outer": 0, "inner": 0}

    def inner(x):
        counts["inner"] += 1
        return x.sin().exp()

    def outer(x):
        counts["outer"] += 1
        y = x.cos()
        z = checkpoint(inner, y, use_reentrant=False)
        return (z * y).tanh()

    def plain(x):
        y = x.cos()
        return (y.sin().exp() * y).tanh()

    x, expected = leaf(0.3, 0.7), leaf(0.3, 0.7)
    plain(expected).sum().backward()
    with set_checkpoint_early_stop(early_stop):
        y = checkpoint(outer, x, use_reentrant=False)
        assert counts == {"outer": 1, "inner": 1}
        y.sum().backward()
    assert x.grad.tolist() == expected.grad.tolist()
    assert counts["outer"] == 2

    triple = leaf(0.3, 0.7)
    checkpoint(lambda x: checkpoint(outer, x, use_reentrant=False), triple, use_reentrant=False).sum().backward()
    assert triple.grad.tolist() == expected.grad.tolist()


def test_E40_the_inputs_of_an_inner_checkpoint_are_dropped_by_the_outer():
    def inner(x):
        return x.tanh().tanh()

    def outer(x):
        for _ in range(10):
            x = checkpoint(inner, x, use_reentrant=False)
        return x

    x = engine.ones(64 * 1024, requires_grad=True)
    tracemalloc.start()
    try:
        base = tracemalloc.get_traced_memory()[0]
        y = checkpoint(outer, x, use_reentrant=False)
        held = tracemalloc.get_traced_memory()[0] - base
        y.sum().backward()
    finally:
        tracemalloc.stop()
    assert held < 2 * 256 * 1024


def test_E40_a_different_second_run_is_noticed():
    calls = []

    def changing(x):
        calls.append(1)
        return x.exp().exp() if len(calls) == 1 else x.exp()

    x = leaf(0.5)
    with pytest.raises(
        CheckpointError, match=r"A different number of tensors was saved.*\n.*forward: 2\n.*recomputation: 1"
    ):
        checkpoint(changing, x, use_reentrant=False).backward()
    calls.clear()

    def growing(x):
        calls.append(1)
        return x.repeat(len(calls)).exp().sum()

    with pytest.raises(
        CheckpointError, match=r"different metadata than during the forward pass.\ntensor at position 0"
    ):
        checkpoint(growing, x, use_reentrant=False).backward()


def test_E40_the_determinism_check_can_be_left_out():
    calls = []

    def growing(x):
        calls.append(1)
        return x.exp() if len(calls) == 1 else x.repeat(2).exp()

    x = leaf(0.5)
    y = checkpoint(growing, x, use_reentrant=False, determinism_check="none")
    y.backward()  # broadcasting hides the difference
    with pytest.raises(ValueError, match="determinism_check should be one of"):
        checkpoint(growing, x, use_reentrant=False, determinism_check="some")


def test_E40_grad_inputs_retain_graph_and_second_derivatives():
    x, y = leaf(0.5, 1.0), leaf(0.5, 1.0)

    def derivatives(f, x):
        out = f(x)
        (first,) = engine.autograd.grad(out.sum(), x, create_graph=True)
        (second,) = engine.autograd.grad((first * first).sum(), x, retain_graph=True)
        out.sum().backward(inputs=[x], retain_graph=True)
        out.sum().backward()
        return [first.tolist(), second.tolist(), x.grad.tolist()]

    assert derivatives(lambda x: checkpoint(chain, x, use_reentrant=False), x) == derivatives(chain, y)


def test_E40_keyword_arguments_and_non_tensor_results():
    def f(a, b, *, c, name):
        return a * b * c, name, None

    a, c = leaf(2.0), leaf(5.0)
    y, name, none = checkpoint(f, a, 3.0, c=c, name="n", use_reentrant=False)
    assert (name, none) == ("n", None)
    y.backward()
    assert (a.grad.item(), c.grad.item()) == (15.0, 6.0)


def test_E40_contexts_of_both_runs():
    log = []

    class Context:
        def __init__(self, name):
            self.name = name

        def __enter__(self):
            log.append(self.name)

        def __exit__(self, *_):
            log.append(f"left {self.name}")

    x = leaf(0.5)
    y = checkpoint(chain, x, use_reentrant=False, context_fn=lambda: (Context("forward"), Context("again")))
    assert log == ["forward", "left forward"]
    y.backward()
    assert log[2:] == ["again", "left again"]


def test_E40_under_no_grad_it_is_a_plain_call():
    with engine.no_grad():
        y = checkpoint(chain, leaf(0.5), use_reentrant=False)
    assert not y.requires_grad


def test_E40_the_users_hooks_see_inputs_only():
    packed = []
    x = leaf(0.5)
    with saved_tensors_hooks(lambda t: (packed.append(t), t)[1], lambda t: t):
        y = checkpoint(chain, x * 1, use_reentrant=False)
    assert len(packed) == 1
    y.backward()
    assert x.grad is not None


def test_E40_an_input_written_after_forward_is_noticed():
    x = leaf(0.5)
    h = x * 1
    y = checkpoint(chain, h, use_reentrant=False)
    h.add_(1)
    with pytest.raises(RuntimeError, match=r"modified by an inplace operation: .*saved as an input of checkpoint"):
        y.backward()


def test_E40_errors_of_the_function():
    def fail(x):
        raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        checkpoint(fail, leaf(1.0), use_reentrant=False)
    (checkpoint(chain, x := leaf(1.0), use_reentrant=False)).backward()
    assert x.grad is not None


def test_E39_a_reentrant_checkpoint_under_grad_is_refused_and_the_flag_restored():
    x = leaf(0.5)
    y = checkpoint(chain, x, use_reentrant=True)
    for call in (
        lambda: engine.autograd.grad(y, x, retain_graph=True),
        lambda: y.backward(inputs=[x], retain_graph=True),
    ):
        with pytest.raises(RuntimeError, match=r"incompatible with .grad\(\) or passing an `inputs` parameter"):
            call()
        assert engine.autograd._is_checkpoint_valid()
    y.backward()
    assert x.grad is not None


def test_reentrant_checkpoints_nest_and_warn():
    x, expected = leaf(0.3), leaf(0.3)
    (chain(chain(expected)) * 2).backward()
    y = checkpoint(lambda x: chain(checkpoint(chain, x, use_reentrant=True)), x, use_reentrant=True)
    (y * 2).backward()
    assert x.grad.tolist() == expected.grad.tolist()
    with pytest.warns(UserWarning, match="None of the inputs have requires_grad=True"):
        checkpoint(chain, engine.ones(1), use_reentrant=True)
    with pytest.warns(UserWarning, match="use_reentrant parameter should be passed explicitly"):
        checkpoint(chain, x)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"use_reentrant": True, "surprise": 1}, ValueError, "Unexpected keyword arguments: surprise"),
        ({"use_reentrant": True, "context_fn": lambda: None}, ValueError, "only supported when use_reentrant=False"),
        ({"use_reentrant": False, "debug": True}, NotImplementedError, "debug=True"),
    ],
    ids=["keywords", "context", "debug"],
)
def test_options_a_variant_does_not_have(options, error, message):
    with pytest.raises(error, match=message):
        checkpoint(chain, leaf(1.0), **options)


@BOTH
def test_checkpoint_sequential(use_reentrant):
    engine.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(3, 3).double() for _ in range(5)])
    x = engine.randn(2, 3, dtype=engine.float64, requires_grad=True)
    model(x).sum().backward()
    expected = [x.grad.tolist(), *[parameter.grad.tolist() for parameter in model.parameters()]]
    for segments in (1, 2, 3):
        x.grad = None
        model.zero_grad()
        checkpoint_sequential(model, segments, x, use_reentrant=use_reentrant).sum().backward()
        assert [x.grad.tolist(), *[parameter.grad.tolist() for parameter in model.parameters()]] == expected
    out = checkpoint_sequential([chain, chain], 2, x, use_reentrant=use_reentrant)
    assert out.tolist() == chain(chain(x)).tolist()
