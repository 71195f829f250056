"""The worker thread of each GPU in backward: what reaches it, and what comes back; and the same where the thread that
calls backward runs all of it.
"""

import gc
import subprocess
import sys
import threading
import weakref

import pytest

import engine
from engine.autograd import workers
from engine.autograd.function import Function


def leaf(where, values=(1.0, 2.0, 3.0)):
    return engine.tensor(values, device=where, requires_grad=True)


def thread() -> str:
    return threading.current_thread().name


@pytest.fixture(autouse=True, params=["workers", "caller"])
def runs_on(request, monkeypatch) -> str:
    """Who runs a graph that lies on the caller's stream: the caller does, and the workers could."""
    if request.param == "workers":
        monkeypatch.setattr(workers, "runs_here", lambda task: not workers._gpus(task))
    return request.param


def test_hooks_run_on_the_worker_of_their_device(two):
    seen = {}

    def note(name):
        seen[name] = (thread(), engine.cuda.current_device())

    host = leaf("cpu")
    a = host.to(two[0])
    a.register_hook(lambda gradient: note("first"))
    b = (a * 2).to(two[1])
    b.register_hook(lambda gradient: note("second"))
    host.register_hook(lambda gradient: note("host"))
    b.sum().backward()
    assert seen == {
        "first": ("engine-backward-0", 0),
        "second": ("engine-backward-1", 1),
        "host": (thread(), 0),
    }


def test_graphs_of_the_cpu_see_no_thread(cuda):
    x = leaf(cuda)
    (x * 2).sum().backward()  # workers exist by now
    host = leaf("cpu")
    seen = []
    y = host * 2
    y.register_hook(lambda gradient: seen.append(thread()))
    y.sum().backward()
    assert seen == [thread()]


def test_a_process_without_a_gpu_starts_no_thread():
    code = """
import threading, engine
from engine.autograd import places
x = engine.ones(3, requires_grad=True)
(x * 2).sum().backward()
assert threading.active_count() == 1
assert not places.in_use
import sys
assert "engine.autograd.workers" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_modes_are_carried_over(cuda):
    seen = []

    def look(gradient):
        fresh = engine.zeros(1)
        seen.append((engine.is_grad_enabled(), engine.is_anomaly_enabled(), fresh.device.type))

    x = leaf(cuda)
    y = x * 2
    y.register_hook(look)
    with engine.device("meta"):
        y.sum().backward(retain_graph=True)
    y.sum().backward(retain_graph=True)
    engine.autograd.grad(y.sum(), x, create_graph=True)
    with pytest.warns(UserWarning, match="Anomaly"):
        anomaly = engine.autograd.detect_anomaly()
    with anomaly:
        z = x * 2
        z.register_hook(look)
        z.sum().backward()
    assert seen == [(False, False, "meta"), (False, False, "cpu"), (True, False, "cpu"), (False, True, "cpu")]


def test_modes_of_a_worker_do_not_stay(cuda):
    x = leaf(cuda)
    y = x * 2
    with engine.device("meta"):
        y.sum().backward(retain_graph=True)
    seen = []
    y.register_hook(lambda gradient: seen.append(engine.zeros(1).device.type))
    y.sum().backward()
    assert seen == ["cpu"]


def test_saved_tensor_hooks_of_forward_run_where_the_node_does(cuda, runs_on):
    seen = []

    def unpack(tensor):
        seen.append(thread())
        return tensor

    x = leaf(cuda)
    with engine.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack):
        y = x * x
    y.sum().backward()
    assert seen
    assert set(seen) == {"engine-backward-0" if runs_on == "workers" else thread()}
    assert x.grad.tolist() == [2.0, 4.0, 6.0]


def test_a_graph_that_another_stream_takes_part_in_is_for_workers(cuda, monkeypatch):
    driven = []
    monkeypatch.setattr(workers, "drain", lambda *args, drain=workers.drain: (driven.append(thread()), drain(*args)))
    x = leaf(cuda)
    side = engine.cuda.Stream()
    side.wait_stream(engine.cuda.current_stream())
    with engine.cuda.stream(side):
        y = (x * 2).sum()
    y.backward()
    assert driven == [thread()]
    assert x.grad.tolist() == [2.0] * 3


def test_a_hook_that_leaves_another_stream_current_changes_it_for_no_other_node(cuda, runs_on):
    before, other, seen = engine.cuda.current_stream(), engine.cuda.Stream(), []

    class Leaves(Function):
        @staticmethod
        def forward(ctx, input):
            return input * 2

        @staticmethod
        def backward(ctx, gradient):
            seen.append(engine.cuda.current_stream())
            engine.cuda.set_stream(other)
            return gradient

    def leave(gradient):
        seen.append(engine.cuda.current_stream())
        engine.cuda.set_stream(other)

    x = leaf(cuda)
    y = Leaves.apply(x * 2)
    z = Leaves.apply(y)
    z.register_hook(leave)
    y.register_hook(leave)
    z.sum().backward()
    assert engine.cuda.current_stream() == before
    assert seen == [before, other] * 2  # each time a hook, and the node that it belongs to
    assert x.grad.tolist() == [2.0] * 3


# --- exceptions -------------------------------------------------------------------------------------------------------


def test_an_exception_reaches_the_caller_with_the_node_named(cuda):
    x = leaf(cuda)
    y = x * 2

    def fail(gradient):
        raise KeyError("in a hook")

    y.register_hook(fail)
    with pytest.raises(KeyError, match="in a hook") as caught:
        (y * 3).sum().backward()
    assert "Error detected in MulBackward0 during backward." in caught.value.__notes__[0]
    x.grad = None
    (x * 2).sum().backward()  # the worker lives on
    assert x.grad.tolist() == [2.0] * 3


def test_the_callers_stream_is_current_after_a_hook_that_leaves_another_one_and_raises(cuda):
    before, other = engine.cuda.current_stream(), engine.cuda.Stream()

    def fail(gradient):
        engine.cuda.set_stream(other)
        raise KeyError("in a hook")

    x = leaf(cuda)
    y = x * 2
    y.register_hook(fail)
    with pytest.raises(KeyError, match="in a hook"):
        (y * 3).sum().backward()
    assert engine.cuda.current_stream() == before


class Explodes(Function):
    @staticmethod
    def forward(ctx, input):
        return input.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise ValueError("exploded")


@pytest.mark.parametrize("place", ["cpu", "first", "second"])
def test_exceptions_of_nodes_on_any_thread(place, two):
    x = leaf(two[0])
    y = (x * 2).to({"cpu": "cpu", "first": two[0], "second": two[1]}[place])
    with pytest.raises(ValueError, match="exploded") as caught:
        (Explodes.apply(y).to(two[1]) * 2).sum().backward()
    assert "ExplodesBackward" in caught.value.__notes__[0]


def test_what_was_accumulated_before_an_exception_stays(cuda):
    x, w = leaf(cuda), leaf(cuda)
    loss = (Explodes.apply(x) * w).sum()
    with pytest.raises(ValueError, match="exploded"):
        loss.backward()
    assert w.grad.tolist() == [1.0, 2.0, 3.0]
    assert x.grad is None


def test_anomaly_mode_finds_nan_on_a_worker(cuda):
    x = leaf(cuda, (0.0, 1.0))
    with pytest.warns(UserWarning, match="Anomaly"):
        anomaly = engine.autograd.detect_anomaly()
    with anomaly:
        loss = ((x * 0) / (x * 0)).sum()
        with pytest.raises(RuntimeError, match=r"Function 'DivBackward0' returned nan values in its \dth output"):
            loss.backward()


# --- re-entrant -------------------------------------------------------------------------------------------------------


class Again(Function):
    """Its backward computes the gradient by a backward of its own, `depth` deep."""

    @staticmethod
    def forward(ctx, input, depth):
        ctx.depth = depth
        ctx.save_for_backward(input)
        return input * input

    @staticmethod
    def backward(ctx, gradient):
        (input,) = ctx.saved_tensors
        with engine.enable_grad():
            inner = input.detach().requires_grad_()
            value = Again.apply(inner, ctx.depth - 1) if ctx.depth else inner * inner
            value.backward(gradient)
        return inner.grad, None


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_backward_inside_backward(depth, cuda):
    x = leaf(cuda)
    Again.apply(x, depth).sum().backward()
    assert x.grad.tolist() == [2.0, 4.0, 6.0]


def test_deep_backward_inside_backward_moves_to_other_threads(cuda):
    x = leaf(cuda)
    Again.apply(x, 90).sum().backward()
    assert x.grad.tolist() == [2.0, 4.0, 6.0]


def test_backward_inside_backward_over_two_devices(two):
    class Across(Function):
        @staticmethod
        def forward(ctx, input):
            ctx.save_for_backward(input)
            return input * input

        @staticmethod
        def backward(ctx, gradient):
            (input,) = ctx.saved_tensors
            with engine.enable_grad():
                inner = input.detach().requires_grad_()
                other = two[1 - input.device.index]
                ((inner * 2).to(other) * inner.to(other)).sum().cpu().backward()
            return gradient * inner.grad / 2

    x = leaf(two[0])
    Across.apply(Across.apply(x).to(two[1])).sum().backward()
    assert x.grad.tolist() == [4.0, 32.0, 108.0]


def test_an_exception_in_a_backward_inside_a_backward(cuda):
    class Wraps(Function):
        @staticmethod
        def forward(ctx, input):
            return input.clone()

        @staticmethod
        def backward(ctx, gradient):
            with engine.enable_grad():
                Explodes.apply(gradient.detach().requires_grad_()).sum().backward()

    x = leaf(cuda)
    with pytest.raises(ValueError, match="exploded"):
        Wraps.apply(x).sum().backward()


def test_final_callbacks_run_where_backward_was_called(cuda):
    seen = []
    x = leaf(cuda)
    y = x * 2
    y.register_hook(lambda gradient: engine.autograd.graph.queue_callback(lambda: seen.append(thread())))
    y.sum().backward()
    assert seen == [thread()]


def test_checkpoint_on_a_gpu(cuda):
    from engine.utils.checkpoint import checkpoint

    for reentrant in (False, True):
        x = leaf(cuda)
        checkpoint(lambda value: (value * value).tanh().sum(), x, use_reentrant=reentrant).backward()
        expected = leaf(cuda)
        (expected * expected).tanh().sum().backward()
        assert x.grad.tolist() == expected.grad.tolist()


# --- several callers --------------------------------------------------------------------------------------------------


def test_two_threads_share_the_worker(cuda):
    results, errors = {}, []

    def work(number):
        try:
            for _ in range(20):
                x = leaf(cuda)
                (x * number * x).sum().backward()
                results[number] = x.grad.tolist()
        except (RuntimeError, AssertionError) as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in (1, 2, 3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert not errors
    assert results == {number: [2.0 * number, 4.0 * number, 6.0 * number] for number in (1, 2, 3)}


def test_nothing_of_a_backward_stays_alive_on_the_worker(cuda):
    x = leaf(cuda)
    y = x * 2
    node = weakref.ref(y.grad_fn)
    y.sum().backward()
    del y
    gc.collect()
    assert node() is None
    assert workers._thread.run is None


def test_all_on_the_callers_thread(two):
    seen = []
    main, side = engine.cuda.current_stream(), engine.cuda.Stream()

    def look(gradient):
        seen.append((thread(), engine.cuda.current_device(), engine.cuda.current_stream() == side))

    x = leaf(two[0])
    side.wait_stream(main)
    with engine.cuda.stream(side):
        y = x * 2
    main.wait_stream(side)
    y.register_hook(look)
    z = y.to(two[1])
    z.register_hook(look)
    with engine.autograd.set_multithreading_enabled(False):
        (z * z).cpu().sum().backward()
    assert seen == [(thread(), 1, False), (thread(), 0, True)]
    assert engine.cuda.current_device() == 0
    assert engine.cuda.current_stream() == main
    assert x.grad.tolist() == [8.0, 16.0, 24.0]


def test_nothing_is_left_to_the_garbage_collector(cuda):
    def step():
        x = leaf(cuda)
        (x * x).sum().backward()

    for _ in range(3):
        step()
    gc.collect()
    gc.disable()
    try:
        before = engine.cuda.memory_allocated()
        for _ in range(20):
            step()
        assert engine.cuda.memory_allocated() == before
    finally:
        gc.enable()
