"""Futures: values that are waited for."""

import importlib

import pytest

import ddp
import engine
from ddp import Future
from ddp.training import local_sgd

HOOKS = "ddp.algorithms.ddp_comm_hooks"


def test_a_value_is_computed_once_by_the_first_wait() -> None:
    calls = []
    future = Future(lambda: calls.append(1) or 5)
    assert not future.done()
    with pytest.raises(RuntimeError, match="before it was done"):
        future.value()
    assert (future.wait(), future.wait(), future.value(), calls) == (5, 5, 5, [1])


def test_one_that_is_ready_is_done_without_a_wait() -> None:
    ready = [False]
    future = Future(lambda: 5, lambda: ready[0])
    assert not future.done()
    ready[0] = True
    assert future.done()
    assert future.value() == 5


def test_a_value_set_by_hand() -> None:
    future: Future[int] = Future()
    with pytest.raises(RuntimeError, match="nobody has called set_result"):
        future.wait()
    doubled = future.then(lambda done: 2 * done.value())
    assert not doubled.done()
    future.set_result(4)
    assert doubled.done()
    assert doubled.wait() == 8
    with pytest.raises(RuntimeError, match="has a result already"):
        future.set_exception(ValueError())


def test_errors_come_out_of_wait_and_of_what_depends_on_it() -> None:
    def fail() -> int:
        raise KeyError("lost")

    for future in (Future(fail), Future()):
        if future._compute is None:
            future.set_exception(KeyError("lost"))
        after = future.then(lambda done: done.value() + 1)
        for waited in (after, future, future):
            with pytest.raises(KeyError, match="lost"):
                waited.wait()
        assert future.done()


def test_callbacks_come_when_it_is_done_or_at_once() -> None:
    seen = []
    future: Future[int] = Future()
    future.add_done_callback(lambda done: seen.append(("before", done.value())))
    assert seen == []
    future.set_result(3)
    future.add_done_callback(lambda done: seen.append(("after", done.value())))
    assert seen == [("before", 3), ("after", 3)]


def test_collect_all_is_done_when_all_are() -> None:
    first: Future[int] = Future()
    both = engine.futures.collect_all([first, Future(lambda: 2, lambda: True)])
    assert not both.done()
    sums = both.then(lambda done: sum(future.value() for future in done.value()))
    first.set_result(1)
    assert both.done()
    assert sums.wait() == 3
    assert engine.futures.collect_all([]).wait() == []
    lost: Future[int] = Future()
    lost.set_exception(KeyError("lost"))
    with pytest.raises(KeyError, match="lost"):
        engine.futures.collect_all([first, lost]).wait()


def test_names_are_where_pytorchs_scripts_look_for_them() -> None:
    for path, name, expected in [
        ("engine.futures", "Future", ddp.Future),
        ("ddp.optim.post_localSGD_optimizer", "PostLocalSGDOptimizer", ddp.PostLocalSGDOptimizer),
        ("ddp.algorithms.model_averaging.utils", "average_parameters", local_sgd.average_parameters),
        (HOOKS, "default", importlib.import_module(f"{HOOKS}.default_hooks")),
        (HOOKS, "quantization", importlib.import_module(f"{HOOKS}.quantization_hooks")),
    ]:
        assert getattr(importlib.import_module(path), name) is expected
    assert engine.futures.Future is ddp.Future
