"""Who listens to calls: in which order, on which thread, and that it ends."""

import threading
from typing import Any

import engine
from engine.amp.listening import listed
from engine.amp.policies import LISTS
from engine.autograd.modes import open_blocks, state
from engine.calls.listening import AUTOGRAD, BACKWARD, FUNCTION, KERNEL, add, heard, listening, remove
from engine.nn import functional


def noting(seen: list[Any], of: str) -> Any:
    def listener(key: str, target: Any) -> Any:
        def handler(proceed: Any, *args: Any, **kwargs: Any) -> Any:
            seen.append((of, key))
            return proceed(*args, **kwargs)

        return handler

    return listener


def test_a_call_comes_by_all_keys() -> None:
    weight = engine.ones(2, 2, requires_grad=True)
    seen: list[Any] = []
    with listening(noting(seen, "it")):
        total = engine.mul(weight, weight).sum()
    assert [key for _, key in seen if key != FUNCTION] == [AUTOGRAD, KERNEL, AUTOGRAD, KERNEL]
    seen.clear()
    with listening(noting(seen, "it")):
        total.backward()
    assert [key for _, key in seen if key == BACKWARD] == [BACKWARD] * 3
    assert (weight.grad.numpy() == 2).all()


def test_the_innermost_is_told_first_and_may_answer_itself() -> None:
    @heard
    def double(value: int) -> int:
        return 2 * value

    def answering(key: str, target: Any) -> Any:
        return (lambda proceed, value: proceed(value + 1)) if target is double else None

    seen: list[Any] = []
    with listening(noting(seen, "outer")), listening(answering), listening(noting(seen, "inner")):
        assert double(3) == 8
    assert seen == [("inner", FUNCTION), ("outer", FUNCTION)]
    with listening(lambda key, target: lambda proceed, value: -1):
        assert double(3) == -1
    assert double(3) == 6


def test_other_threads_are_not_touched() -> None:
    seen: list[Any] = []
    results: list[Any] = []
    x = engine.ones(2, 2)

    def work() -> None:
        results.append((x @ x).dtype)
        results.append((x + x).dtype)

    with listening(noting(seen, "it")), engine.autocast("cpu"):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert (x @ x).dtype is engine.bfloat16
    assert results == [engine.float32, engine.float32]
    assert ("it", KERNEL) in seen
    assert not state.listeners
    assert not open_blocks.open


def test_who_listens_to_functions_alone_leaves_operators_on_their_way() -> None:
    seen: list[Any] = []
    listener = noting(seen, "functions")
    weight = engine.ones(2, 2, requires_grad=True)
    add(listener, functions_only=True)
    try:
        assert open_blocks.open
        assert not open_blocks.of_operators
        engine.exp(weight).sum().backward()
        inner: list[Any] = []
        with listening(noting(inner, "all")):
            engine.exp(weight).sum().backward()
    finally:
        remove(listener)
    assert {key for _, key in seen} == {FUNCTION}
    assert {key for _, key in inner} == {FUNCTION, AUTOGRAD, KERNEL, BACKWARD}
    assert not state.listeners
    assert not state.operator_listeners
    assert open_blocks.open == open_blocks.of_operators == 0


def test_an_exception_ends_it_too() -> None:
    try:
        with listening(noting([], "it")):
            engine.ones(2) + engine.ones(3)
    except RuntimeError:
        assert not state.listeners
        assert not open_blocks.open
    else:
        raise AssertionError("shapes do not broadcast")


def test_every_function_of_autocast_is_heard() -> None:
    names = {name for policies in LISTS.values() for name in policies}
    assert len(listed()) > 0.8 * len(names)
    for name in ("matmul", "linear", "exp", "conv2d", "cross_entropy", "sum", "cat"):
        assert getattr(engine, name, getattr(functional, name, None)) in listed(), name
