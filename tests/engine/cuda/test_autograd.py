"""Backward on a GPU: on the streams of forward, ordered by events, joined at the end. On the CPU driver a missing
event is an error."""

import pytest

import engine
import engine.nn as nn
from engine.autograd import delivery, workers
from tests import cuda_device


def leaf(where, values=(1.0, 2.0, 3.0)):
    return engine.tensor(values, device=where, requires_grad=True)


def on(stream, *others):
    for other in others:
        stream.wait_stream(other)
    return engine.cuda.stream(stream)


def test_gradients_on_one_stream(cuda):
    x, w = leaf(cuda), leaf(cuda, (2.0, 0.0, 1.0))
    (x * w * x).sum().backward()
    assert x.grad.tolist() == [4.0, 0.0, 6.0]
    assert w.grad.tolist() == [1.0, 4.0, 9.0]
    assert x.grad.device is cuda
    (x * w).sum().backward()
    assert x.grad.tolist() == [6.0, 0.0, 7.0]


def test_backward_runs_on_the_stream_of_forward(cuda):
    side, main = engine.cuda.Stream(), engine.cuda.current_stream()
    x = leaf(cuda)
    seen = []
    with on(side, main):
        y = x * 2
        y.register_hook(lambda gradient: seen.append(engine.cuda.current_stream()))
        z = y * y
    main.wait_stream(side)
    z.sum().backward()
    assert seen == [side]
    assert engine.cuda.current_stream() == main
    assert x.grad.tolist() == [8.0, 16.0, 24.0]


def test_two_branches_on_two_streams(cuda):
    first, second, main = engine.cuda.Stream(), engine.cuda.Stream(), engine.cuda.current_stream()
    x = leaf(cuda)
    with on(first, main):
        a = x * 2
    with on(second, main):
        b = x * 3
    main.wait_stream(first)
    main.wait_stream(second)
    (a * b).sum().backward()
    assert x.grad.tolist() == [12.0, 24.0, 36.0]


@pytest.mark.parametrize("branches", [2, 3, 5])
def test_gradients_accumulated_from_several_streams_are_ordered(branches, cuda):
    main = engine.cuda.current_stream()
    streams = [engine.cuda.Stream() for _ in range(branches)]
    x = leaf(cuda)
    y = x * 1  # an inner node, to whose gradient all branches add
    total = None
    for number, stream in enumerate(streams):
        with on(stream, main):
            part = y * (number + 1)
        main.wait_stream(stream)
        total = part if total is None else total + part
    total.sum().backward()
    assert x.grad.tolist() == [branches * (branches + 1) / 2] * 3


def test_what_makes_a_gradient_fit_comes_before_its_event(cuda):
    """The gradients of both inputs leave for other streams, and the second one is summed first: it was broadcast."""
    first, second, main = engine.cuda.Stream(), engine.cuda.Stream(), engine.cuda.current_stream()
    x, scale = leaf(cuda), leaf(cuda, [2.0])
    with on(first, main):
        a = x * 2
    with on(second, main):
        b = scale * 3
    main.wait_stream(first)
    main.wait_stream(second)
    (a * b).sum().backward()
    assert x.grad.tolist() == [12.0] * 3
    assert scale.grad.tolist() == [36.0]


def test_a_stream_that_does_not_wait_in_forward_is_a_race_in_forward_only(on_driver):
    """Backward orders itself, whatever the caller's stream is when it is called."""
    side, third, main = engine.cuda.Stream(), engine.cuda.Stream(), engine.cuda.current_stream()
    x = leaf(on_driver)
    with on(side, main):
        loss = (x * x).sum()
    with on(third, side):
        loss.backward()
        assert (x.grad * 1).tolist() == [2.0, 4.0, 6.0]
    assert engine.cuda.current_stream() == main


def test_grad_is_safe_on_the_stream_that_called(cuda):
    side, main = engine.cuda.Stream(), engine.cuda.current_stream()
    x = leaf(cuda)
    with on(side, main):
        loss = (x * x * x).sum()
    main.wait_stream(side)
    (found,) = engine.autograd.grad(loss, x)
    assert (found + 0).tolist() == [3.0, 12.0, 27.0]
    with on(side, main):
        y = x * x
        loss = (y * x).sum()
    main.wait_stream(side)
    gy, gx = engine.autograd.grad(loss, [y, x])
    assert (gy + 0).tolist() == [1.0, 2.0, 3.0]
    assert (gx + 0).tolist() == [3.0, 12.0, 27.0]


@pytest.mark.parametrize("captured", [False, True])
def test_memory_of_gradients_is_not_given_away_while_the_caller_reads_it(captured, cuda):
    side, main = engine.cuda.Stream(), engine.cuda.current_stream()
    x = leaf(cuda)
    with on(side, main):
        loss = (x * x).sum()
    main.wait_stream(side)
    found = engine.autograd.grad(loss, x)[0] if captured else loss.backward() or x.grad
    doubled = found * 2
    found = x.grad = None
    with engine.cuda.stream(side):  # which does not wait for the product on the main stream
        others = [engine.zeros(3, device=cuda) for _ in range(20)]
    assert doubled.tolist() == [4.0, 8.0, 12.0]
    assert len(others) == 20


def test_several_backwards_accumulate_over_streams(cuda):
    main = engine.cuda.current_stream()
    x = leaf(cuda)
    for scale in (1.0, 2.0, 3.0):
        side = engine.cuda.Stream()
        with on(side, main):
            loss = (x * scale).sum()
        loss.record_stream(main)
        main.wait_stream(side)
        loss.backward()
    assert x.grad.tolist() == [6.0] * 3


def test_root_gradients_of_another_stream(cuda):
    side, main = engine.cuda.Stream(), engine.cuda.current_stream()
    x = leaf(cuda)
    with on(side, main):
        y = x * 2
    y.backward(engine.full((3,), 5.0, device=cuda))
    assert x.grad.tolist() == [10.0] * 3


def test_create_graph_on_another_stream(cuda):
    side, main = engine.cuda.Stream(), engine.cuda.current_stream()
    x = leaf(cuda)
    with on(side, main):
        loss = (x * x * x).sum()
    main.wait_stream(side)
    (first,) = engine.autograd.grad(loss, x, create_graph=True)
    (second,) = engine.autograd.grad(first.sum(), x)
    assert second.tolist() == [6.0, 12.0, 18.0]


# --- devices ----------------------------------------------------------------------------------------------------------


def test_two_devices(two):
    x, w = leaf(two[0]), leaf(two[1], (3.0, 2.0, 1.0))
    y = (x * 2).to(two[1]) * w
    loss = (y * y).sum() + (x * 3).sum().to(two[1])
    loss.backward()
    assert x.grad.device is two[0]
    assert w.grad.device is two[1]
    assert x.grad.tolist() == [75.0, 67.0, 27.0]
    assert w.grad.tolist() == [24.0, 64.0, 72.0]
    assert engine.cuda.current_device() == 0


def test_cpu_and_gpu_in_one_graph(cuda):
    host, x = leaf("cpu"), leaf(cuda)
    y = (host * 2).to(cuda) * x
    z = y.cpu() * host
    z.sum().backward()
    assert host.grad.tolist() == [4.0, 16.0, 36.0]
    assert x.grad.tolist() == [2.0, 8.0, 18.0]
    assert host.grad.device.type == "cpu"


def test_cpu_and_two_devices(two):
    host = leaf("cpu")
    parts = [(host * (index + 1)).to(where) * leaf(where) for index, where in enumerate(two)]
    sum(part.cpu() for part in parts).sum().backward()
    assert host.grad.tolist() == [3.0, 6.0, 9.0]


# --- what it costs ----------------------------------------------------------------------------------------------------


def _model(where):
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).to(where)


def test_a_step_on_one_stream_makes_no_synchronisation(on_driver):
    model = _model(on_driver)
    x, y = engine.randn(3, 4, device=on_driver), engine.randn(3, 2, device=on_driver)

    def step():
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        with engine.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
                parameter.grad = None
        return loss

    before = step()
    with cuda_device.counters() as count:
        after = step()
    assert count.synchronizations == 0
    assert count.pageable == 0
    assert after.item() < before.item()


def test_no_events_where_there_is_one_stream(on_driver, monkeypatch):
    for module in (workers, delivery):
        monkeypatch.setattr(module, "event_after", lambda place: pytest.fail("an event on one stream"))
    x = leaf(on_driver)
    (x * x + x).sum().backward()
    assert x.grad.tolist() == [3.0, 5.0, 7.0]


def test_the_same_numbers_as_on_the_cpu_and_in_the_same_order(cuda):
    engine.manual_seed(0)
    model = _model("cpu")
    x = engine.randn(16, 4)
    order: dict[str, list[str]] = {}
    found = {}
    for where in ("cpu", cuda):
        model.to(where).zero_grad()
        order[str(where)] = names = []
        handles = [
            parameter.register_post_accumulate_grad_hook(lambda _, name=name, names=names: names.append(name))
            for name, parameter in model.named_parameters()
        ]
        model(x.to(where)).square().sum().backward()
        found[str(where)] = [parameter.grad.cpu() for parameter in model.parameters()]
        for handle in handles:
            handle.remove()
    assert order["cpu"] == order["cuda:0"]
    for mine, theirs in zip(found["cpu"], found["cuda:0"], strict=True):
        engine.testing.assert_close(mine, theirs)


def test_gradients_keep_the_layout_of_their_parameters(cuda):
    x = engine.randn(3, 4, device=cuda).t().requires_grad_()
    (x.contiguous() * 2).sum().backward()
    assert x.grad.stride() == x.stride() == (1, 4)


def test_memory_is_freed_as_backward_goes(on_driver):
    x = engine.ones(1000, device=on_driver, requires_grad=True)
    y = x
    for _ in range(50):
        y = (y * 1.0).tanh()
    loss = y.sum()
    held = engine.cuda.memory_allocated()
    engine.cuda.reset_peak_memory_stats()
    loss.backward()
    assert engine.cuda.max_memory_allocated() <= held + 4 * 4096
    del loss, y
    assert engine.cuda.memory_allocated() <= 2 * 4096 + held - 50 * 4096
