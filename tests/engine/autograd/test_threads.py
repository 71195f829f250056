"""Backward on several threads at once. Row E55 of the specification's checklist. Integer-valued gradients make every
sum exact.
"""

import sys
import threading

import pytest

import engine
from engine.autograd import Function
from tests.engine.autograd.leaves import leaf


@pytest.fixture
def eager_switching():
    """Threads change places as often as the interpreter can make them."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def run_on_threads(functions):
    errors = []

    def guarded(function):
        try:
            function()
        except BaseException as error:  # noqa: BLE001 - handed to the test whatever it is
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


def test_E55_graphs_of_their_own_on_shared_leaves(eager_switching):
    w = engine.ones(4, 3, requires_grad=True)
    b = engine.zeros(3, requires_grad=True)

    def work(number):
        def run():
            for step in range(20):
                x = engine.full((2, 4), float(number + step))
                (x @ w + b).sum().backward()

        return run

    run_on_threads([work(number) for number in range(6)])
    total = sum(2 * (number + step) for number in range(6) for step in range(20))
    assert w.grad.tolist() == [[float(total)] * 3] * 4
    assert b.grad.tolist() == [2.0 * 6 * 20] * 3


def test_E55_leaves_used_for_the_first_time_on_many_threads_at_once(eager_switching):
    for _ in range(50):
        w = leaf(1.0, 2.0)
        barrier = threading.Barrier(4)

        def run(w=w, barrier=barrier):
            barrier.wait()
            (w * 3).sum().backward()

        run_on_threads([run] * 4)
        assert w.grad.tolist() == [12.0, 12.0]


def test_E55_one_graph_on_several_threads(eager_switching):
    x = leaf(1.0, 2.0, 3.0)
    y = ((x * x).relu() + x * 2).sum()

    def run():
        for _ in range(25):
            y.backward(retain_graph=True)

    run_on_threads([run] * 4)
    assert x.grad.tolist() == [100.0 * (2 * value + 2) for value in (1.0, 2.0, 3.0)]


def test_E55_grad_on_several_threads_returns_each_its_own(eager_switching):
    x = leaf(1.0, 2.0)
    y = x * x
    found = {}

    def work(number):
        def run():
            for _ in range(20):
                found[number] = engine.autograd.grad(y, x, engine.full((2,), float(number)), retain_graph=True)[0]

        return run

    run_on_threads([work(number) for number in range(5)])
    assert {number: g.tolist() for number, g in found.items()} == {n: [2.0 * n, 4.0 * n] for n in range(5)}
    assert x.grad is None


def test_E55_hooks_run_on_the_thread_that_called_backward():
    seen = []
    x = leaf(1.0)
    x.register_hook(lambda g: seen.append(threading.current_thread()))
    threads = []

    def run():
        threads.append(threading.current_thread())
        (x * 2).backward()

    run_on_threads([run] * 3)
    assert sorted(map(id, seen)) == sorted(map(id, threads))


def test_E55_an_error_on_one_thread_does_not_disturb_the_others(eager_switching):
    class Fail(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            raise ValueError("on purpose")

    w = leaf(1.0)

    def fail():
        for _ in range(20):
            with pytest.raises(ValueError, match="on purpose"):
                Fail.apply(w).backward()

    def work():
        for _ in range(20):
            (w * 2).backward()

    run_on_threads([fail, work, fail, work])
    assert w.grad.item() == 80.0


def test_modes_belong_to_a_thread():
    seen = []
    with engine.no_grad(), engine.autograd.set_detect_anomaly(True):
        run_on_threads([lambda: seen.append((engine.is_grad_enabled(), engine.autograd.is_anomaly_enabled()))])
    assert seen == [(True, False)]
